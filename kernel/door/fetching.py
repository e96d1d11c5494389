"""Client bodies for an answer: small ones stand in the view, large ones in the log entry that brought them."""

import asyncio
from collections.abc import Iterable

import msgspec
from msgspec import Raw, UnsetType

from kernel.domain.errors import InvariantBroken, LogUnavailable, Unavailable
from kernel.domain.framing import is_payload_sound
from kernel.door.concurrent import together
from kernel.door.freshness import POLL_SECONDS_MAX
from kernel.ports import Log, LogMessage
from schemas.bodies import NULL, Body
from schemas.entries import AnyEntry, ExecutionCompleted, ExecutionFailed, StepSubmitted, decode_entry

FETCHES_MAX = 16
"""Entries one request fetches at once."""
_SETTLE = "settle."


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
        fetched: dict[tuple[int, str], bytes] = {}
        slots = asyncio.Semaphore(FETCHES_MAX)

        async def fetch(key: tuple[int, str], body: Body) -> None:
            async with slots:
                fetched[key] = await self._fetch(shard, execution_id, body, deadline)

        await together([fetch(key, body) for key, body in wanted.items()])
        return Texts(fetched)

    async def _fetch(self, shard: int, execution_id: str, body: Body, deadline: float) -> bytes:
        message = await self._message(shard, body.seq, deadline)
        if message is None:
            raise Unavailable("a body is missing from the log")
        if message.execution_id != execution_id or not is_payload_sound(message.checksum, message.payload):
            raise InvariantBroken("the entry of a body is another execution's, or damaged")
        try:
            entry = decode_entry(message.payload)
        except msgspec.DecodeError as error:
            raise InvariantBroken("the entry of a body cannot be read") from error
        text = _member(entry, body.place)
        if entry.execution_id != execution_id or len(text) != body.size_bytes:
            raise InvariantBroken("the entry of a body holds another one")
        return text

    async def _message(self, shard: int, seq: int, deadline: float) -> LogMessage | None:
        """Ask the log until it answers or the time is up."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._log.get(shard, seq)
            except TimeoutError as error:
                raise Unavailable("the log did not answer in time") from error
            except LogUnavailable:
                if loop.time() + POLL_SECONDS_MAX >= deadline:
                    raise
                await asyncio.sleep(POLL_SECONDS_MAX)


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
