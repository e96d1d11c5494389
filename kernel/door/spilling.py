"""Putting bodies that are large, or will likely be sent again, beside the log before their entry goes into it."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from kernel.domain.errors import LogUnavailable, OutcomeUnknown
from kernel.domain.spilling import SHARED_BYTES_MIN, cut, places_to_spill, spilled_as
from kernel.door.concurrent import together
from kernel.ports import Log, Piece
from schemas.bodies import NULL, Spilled
from schemas.entries import (
    SPILLED_SCHEMA,
    AnyEntry,
    ExecutionCompleted,
    ExecutionCreated,
    ExecutionFailed,
    Outcome,
    StepCompleted,
    StepFailed,
    StepSubmitted,
)

PUTS_MAX = 32
"""Pieces of one body that are on their way at once."""
KNOWN_MAX = 262_144
"""Pieces of conversations that are known to be stored, about 60 MB of memory. One that is forgotten is stored again."""

_NULL = Raw(NULL)
_SETTLE = "settle."
_NOT_IN_TIME = "a body could not be stored in time"
_GONE_BACK = "a stream of bodies has gone back"

Put = Callable[[bytes], Coroutine[Any, Any, int]]

SomeEntry = TypeVar("SomeEntry", bound=AnyEntry)


class Stored(Struct, frozen=True):
    """Which pieces of conversations one entry refers to, and how often a stream had gone back by then."""

    known: dict[bytes, int]
    losses: int


NOTHING_STORED = Stored({}, 0)


class Spilling:
    """The way of bodies to the streams beside the shards. Remembers what it has stored of conversations that go on."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._ends: dict[int, int] = {}
        """The highest sequence that each shard's stream of bodies is known to have given."""
        self._losses = 0
        """How often a stream was found to have gone back."""

    async def spilled(self, entry: SomeEntry, *, shard: int, deadline: float) -> tuple[SomeEntry, Stored]:
        """Return the entry with its large bodies elsewhere; they are durable by then. It is not in the log yet.

        Once it is, `keep` is to be told what was stored. Raises LogUnavailable where a body could not be stored in
        time: then nothing happened.
        """
        texts = dict(_bodies(entry))
        shared = ("args",) if isinstance(entry, StepSubmitted) and entry.kind == "llm_call" else ()
        places = places_to_spill({place: len(text) for place, text in texts.items()}, shared=shared)
        if not places:
            return entry, NOTHING_STORED
        slots = asyncio.Semaphore(PUTS_MAX)
        losses = self._losses

        async def put(payload: bytes) -> int:
            async with slots:
                return await self._put(Piece(shard, entry.tenant, entry.execution_id, entry.id, payload), deadline)

        known: dict[bytes, int] = {}
        stored: dict[str, Spilled] = {}
        for place in places:
            pieces, rest = cut(texts[place], is_shared=place in shared)
            if place in shared:
                keys = _keys(entry.execution_id, pieces)
                known = await self._put_shared(dict(zip(keys, pieces, strict=True)), put)
                seqs = [known[key] for key in keys]
            else:
                seqs = await together([put(piece) for piece in pieces])
            stored[place] = spilled_as(texts[place], seqs, rest)
        if losses != self._losses:
            # Another request has found it out meanwhile, and what this one has put may be among what is gone.
            raise LogUnavailable(_GONE_BACK)
        return _without(entry, stored), Stored(known, losses)

    def keep(self, stored: Stored) -> None:
        """Remember what an entry refers to that is in the log now.

        Not before: what no entry refers to is removed some day, and nothing may refer to it any more.
        """
        if stored.losses != self._losses:
            return
        for key, seq in stored.known.items():
            self._known[key] = seq
            self._known.move_to_end(key)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    async def _put_shared(self, pieces: Mapping[bytes, bytes], put: Put) -> dict[bytes, int]:
        """Return the sequence of each piece by its key; only those are put that are not known to be stored."""
        known = {key: self._known[key] for key in pieces if key in self._known}
        new = {key: piece for key, piece in pieces.items() if key not in known}
        return known | dict(zip(new, await together([put(piece) for piece in new.values()]), strict=True))

    async def _put(self, piece: Piece, deadline: float) -> int:
        left_seconds = deadline - asyncio.get_running_loop().time()
        if left_seconds <= 0:
            raise LogUnavailable(_NOT_IN_TIME)
        end = self._ends.get(piece.shard, 0)
        try:
            stored = await self._log.put_piece(piece, timeout_seconds=left_seconds)
        except OutcomeUnknown as error:
            # A piece that nothing refers to is no part of the record: the request has certainly not happened.
            raise LogUnavailable(_NOT_IN_TIME) from error
        if stored.seq <= end and not stored.is_duplicate:
            # Another stream than the one it was: what is known to be stored may be gone, and nothing may refer to it.
            self._known.clear()
            self._ends.pop(piece.shard, None)
            self._losses += 1
            raise LogUnavailable(_GONE_BACK)
        self._ends[piece.shard] = max(stored.seq, self._ends.get(piece.shard, 0))
        return stored.seq


def _keys(execution_id: str, pieces: Sequence[bytes]) -> list[bytes]:
    """Return what each piece is remembered by: it and whose it is."""
    of_execution = execution_id.encode()
    return [hashlib.sha256(of_execution + piece).digest() for piece in pieces]


def may_spill(request_bytes: int) -> bool:
    """Whether a request of so many bytes may have a body that is to stand elsewhere."""
    return request_bytes >= SHARED_BYTES_MIN


def _bodies(entry: AnyEntry) -> Iterator[tuple[str, bytes]]:
    match entry:
        case ExecutionCreated():
            yield "input", bytes(entry.input)
        case StepSubmitted():
            yield "args", bytes(entry.args)
            yield from _settled(entry.settle)
        case StepCompleted():
            yield "result", bytes(entry.result)
        case StepFailed():
            yield "error", bytes(entry.error)
        case ExecutionCompleted():
            yield "output", bytes(entry.output)
            if not isinstance(entry.state, UnsetType):
                yield "state", bytes(entry.state)
            yield from _settled(entry.settle)
        case ExecutionFailed():
            yield from _settled(entry.settle)
        case _:
            return


def _settled(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, bytes]]:
    for index, outcome in enumerate(outcomes):
        raw = outcome.error if isinstance(outcome.result, UnsetType) else outcome.result
        if not isinstance(raw, UnsetType):
            yield f"{_SETTLE}{index}", bytes(raw)


def _without(entry: SomeEntry, stored: dict[str, Spilled]) -> SomeEntry:
    """Return the entry with null in place of the bodies that are stored elsewhere."""
    members: dict[str, object] = {place: _NULL for place in stored if not place.startswith(_SETTLE)}
    indexes = {int(place.removeprefix(_SETTLE)) for place in stored if place.startswith(_SETTLE)}
    if indexes and isinstance(entry, StepSubmitted | ExecutionCompleted | ExecutionFailed):
        members["settle"] = tuple(
            _emptied(outcome) if index in indexes else outcome for index, outcome in enumerate(entry.settle)
        )
    return replace(entry, **members, spilled=stored, schema=SPILLED_SCHEMA)


def _emptied(outcome: Outcome) -> Outcome:
    if outcome.result is UNSET:
        return replace(outcome, error=_NULL)
    return replace(outcome, result=_NULL)
