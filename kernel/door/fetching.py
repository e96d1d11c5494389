"""Client bodies for an answer: small ones stand in the view, large ones in the log entry that brought them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, UnsetType

from kernel.domain.errors import InvariantBroken, LogUnavailable, Unavailable
from kernel.domain.framing import is_payload_sound
from kernel.domain.spilling import joined
from kernel.door.concurrent import together
from kernel.door.freshness import POLL_SECONDS_MAX
from kernel.ports import Log, LogMessage
from schemas.bodies import NULL, Body, Spilled
from schemas.entries import AnyEntry, ExecutionCompleted, ExecutionFailed, StepSubmitted, decode_entry

FETCHES_MAX = 16
"""Entries, or pieces, that one request fetches at once."""
_SETTLE = "settle."

Fetched = TypeVar("Fetched")
Get = Callable[[int, int], Awaitable[LogMessage | None]]


class Texts:
    """The JSON of bodies by where they stand."""

    __slots__ = ("_fetched",)

    def __init__(self, fetched: dict[tuple[int, str], bytes]) -> None:
        self._fetched = fetched

    def raw(self, body: Body | None) -> Raw:
        """Return a body's JSON, null where there is none."""
        if body is None:
            return Raw(NULL)
        return Raw(body.json or self._fetched[(body.seq, body.place)])


NO_TEXTS = Texts({})


class Shelf:
    """Fetches bodies from the log."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def texts(self, shard: int, execution_id: str, bodies: Iterable[Body | None], *, deadline: float) -> Texts:
        """Return the texts of these bodies of one execution; nothing is asked where all of them are small."""
        wanted = {(body.seq, body.place): body for body in bodies if body is not None and not body.json}
        if not wanted:
            return NO_TEXTS

        async def entry(seq: int) -> AnyEntry:
            return _entry_of(await self._sound(shard, seq, execution_id, deadline, self._log.get), execution_id)

        async def piece(seq: int) -> bytes:
            return await self._sound(shard, seq, execution_id, deadline, self._log.piece)

        entries = await _each({seq for seq, _ in wanted}, entry)
        spilled = {(seq, place): _spilled(entries[seq], place) for seq, place in wanted}
        # What the calls of one conversation have in common is fetched once.
        pieces = await _each({seq for one in spilled.values() if one is not None for seq in one.pieces}, piece)
        texts: dict[tuple[int, str], bytes] = {}
        for (seq, place), body in wanted.items():
            apart = spilled[seq, place]
            if apart is None:
                text = _member(entries[seq], place)
            else:
                text = joined(apart, [pieces[each] for each in apart.pieces])
            if len(text) != body.size_bytes:
                raise InvariantBroken("the entry of a body holds another one")
            texts[seq, place] = text
        return Texts(texts)

    async def _sound(self, shard: int, seq: int, execution_id: str, deadline: float, get: Get) -> bytes:
        """Return the payload of a message that is whole and this execution's."""
        message = await self._message(shard, seq, deadline, get)
        if message is None:
            raise Unavailable("a body is missing from the log")
        if message.execution_id != execution_id or not is_payload_sound(message.checksum, message.payload):
            raise InvariantBroken("what holds a body is another execution's, or damaged")
        return message.payload

    async def _message(self, shard: int, seq: int, deadline: float, get: Get) -> LogMessage | None:
        """Ask the log until it answers or the time is up."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await get(shard, seq)
            except TimeoutError as error:
                raise Unavailable("the log did not answer in time") from error
            except LogUnavailable:
                if loop.time() + POLL_SECONDS_MAX >= deadline:
                    raise
                await asyncio.sleep(POLL_SECONDS_MAX)


async def _each(keys: Collection[int], fetch: Callable[[int], Coroutine[Any, Any, Fetched]]) -> dict[int, Fetched]:
    """Return what is fetched for each key, so many at once."""
    slots = asyncio.Semaphore(FETCHES_MAX)

    async def one(key: int) -> Fetched:
        async with slots:
            return await fetch(key)

    return dict(zip(keys, await together([one(key) for key in keys]), strict=True))


def _entry_of(payload: bytes, execution_id: str) -> AnyEntry:
    try:
        entry = decode_entry(payload)
    except msgspec.DecodeError as error:
        raise InvariantBroken("the entry of a body cannot be read") from error
    if entry.execution_id != execution_id:
        raise InvariantBroken("the entry of a body is another execution's")
    return entry


def _spilled(entry: AnyEntry, place: str) -> Spilled | None:
    """Return where a body of an entry stands instead of in it."""
    return None if isinstance(entry.spilled, UnsetType) else entry.spilled.get(place)


def _member(entry: AnyEntry, place: str) -> bytes:
    """Return the body at a place of its entry, the record's own spelling."""
    raw: object = None
    if place.startswith(_SETTLE) and isinstance(entry, StepSubmitted | ExecutionCompleted | ExecutionFailed):
        outcome = entry.settle[int(place.removeprefix(_SETTLE))]
        raw = outcome.error if isinstance(outcome.result, UnsetType) else outcome.result
    elif place in entry.__struct_fields__:
        raw = getattr(entry, place)
    if not isinstance(raw, Raw):
        raise InvariantBroken("the entry has no body at this place")
    return bytes(raw)
