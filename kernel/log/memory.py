"""The log and the wake-ups in memory, for fast tests: the behaviour of the real ones, without a clock of their own.

The knobs do what a broker may do: go away, lose acknowledgements, be full, lose or damage a record, start anew.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

from kernel.domain.errors import InvariantBroken, LogUnavailable
from kernel.log.appending import Said, append_through
from kernel.log.limits import EntryTooLarge, LogLimits
from kernel.log.memory_stream import DUPLICATE_WINDOW_MICROSECONDS, MemoryFollower, MemoryStream
from kernel.log.memory_wakes import MemoryWakes
from kernel.log.naming import (
    CHECKSUM_HEADER,
    ENTRY_ID_HEADER,
    EXECUTION_HEADER,
    REPLY_HEADER,
    as_message,
    entry_headers,
    entry_subject,
    message_bytes,
    piece_subject,
    tenant_of,
)
from kernel.log.silence import CONTROL, Silences, Watched
from kernel.ports import Acknowledged, ControlMessage, LogMessage, LogState, Outgoing, Piece, Rejected

__all__ = ["DUPLICATE_WINDOW_MICROSECONDS", "MemoryLog", "MemoryWakes"]

_MESSAGE_BYTES_MAX = 8 * 1024 * 1024


def system_clock() -> int:
    """The system's clock in unix microseconds."""
    return time.time_ns() // 1000


def _message(outgoing: Outgoing, subject: str) -> tuple[LogMessage, int]:
    """Return a message as it will lie in its stream, but for its place, and its size."""
    headers = entry_headers(outgoing)
    message = LogMessage(
        shard=outgoing.shard,
        seq=0,
        stored_at=0,
        tenant=tenant_of(subject),
        entry_id=headers[ENTRY_ID_HEADER],
        execution_id=headers[EXECUTION_HEADER],
        checksum=headers[CHECKSUM_HEADER],
        reply_to=headers.get(REPLY_HEADER, ""),
        payload=outgoing.payload,
    )
    return message, message_bytes(headers, outgoing.payload)


class MemoryLog:
    """The ports Log and ControlLog. Everything that one instance is told is shared by whoever holds it.

    `clock` returns unix microseconds and stands for the broker's.
    """

    def __init__(
        self, *, shards: int = 8, clock: Callable[[], int] = system_clock, limits: LogLimits | None = None
    ) -> None:
        self.drop_acks = False
        """Entries are stored and nobody hears of it."""
        self.fail_writes = False
        """Nothing that is published is stored, or spoken of, as after a failed write to the disk."""
        self.reject_full = False
        """Every publish of a new id is refused for want of room."""
        self.marks: dict[int, bytes] = {}
        """What `put_mark` recorded; a mark that is deleted here is a mark that an operator deleted."""
        self._limits = limits or LogLimits()
        self._clock = clock
        self._connected = asyncio.Event()
        self._connected.set()
        self._lost: asyncio.Future[None] | None = None
        self._silences = Silences(
            seconds=self._limits.silence_of_acknowledgements_seconds,
            probe_seconds=self._limits.silence_probe_seconds,
            clock=time.monotonic,
        )
        self._streams = {shard: MemoryStream(clock, number=0) for shard in (CONTROL, *range(shards))}
        self._bodies = {shard: MemoryStream(clock, number=0) for shard in range(shards)}
        self._hinted = asyncio.Event()

    # ------------------------------------------------------------ knobs

    def go_offline(self) -> None:
        """From now on nothing is sent and nothing is received; what was sent before stays in the log."""
        self._connected.clear()
        self._silences.forget()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        for stream in self._streams.values():
            stream.pause()

    def come_back(self) -> None:
        """Undo `go_offline`: followers go on with a consumer made anew."""
        self._lost = None
        self._connected.set()
        for stream in self._streams.values():
            stream.resume()

    def delete(self, shard: int, seq: int) -> None:
        """Lose a record, as damage or an operator may. Followers see a jump in the sequences."""
        self._stream(shard).delete(seq)

    def replace(self, message: LogMessage) -> None:
        """Put another message where one is, as damage may."""
        self._stream(message.shard).replace(message)

    def forget_ids(self, shard: int) -> None:
        """End the window in which ids de-duplicate: an entry that is sent again is stored again."""
        self._stream(shard).forget_ids()

    def recreate(self, shard: int) -> None:
        """Drop the stream and make it anew, empty, under another time of creation.

        Followers are told by their count of restarts, and receive nothing up to the sequence they had.
        """
        self._stream(shard).recreate()

    def restore(self, shard: int, *, last_seq: int) -> None:
        """Put back a backup of the stream, taken when it ended at that sequence."""
        self._stream(shard).restore(last_seq)

    # ------------------------------------------------------------ Log

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    @property
    def lost(self) -> asyncio.Future[None]:
        if self._lost is None:
            self._lost = asyncio.get_running_loop().create_future()
            if not self.is_connected:
                self._lost.set_result(None)
        return self._lost

    async def wait_connected(self) -> None:
        await self._connected.wait()

    def is_silent(self, shard: int) -> bool:
        return self._silences.is_silent(shard)

    def note_stored(self, shard: int, *, sent_at: float) -> None:
        self._silences.note_stored(shard, sent_at=sent_at)

    def send(self, outgoing: Outgoing, acknowledged: Callable[[Acknowledged | Rejected], None]) -> None:
        subject = entry_subject(outgoing.shard, outgoing.tenant, outgoing.execution_id)
        message, size = _message(outgoing, subject)
        self._store(self._stream(outgoing.shard), message, size, self._silences.watch(outgoing.shard, acknowledged))

    async def append(self, outgoing: Outgoing, *, timeout_seconds: float) -> Acknowledged:
        return await append_through(
            self, partial(self.send, outgoing), timeout_seconds=timeout_seconds, limits=self._limits
        )

    async def get(self, shard: int, seq: int) -> LogMessage | None:
        self._refuse_unconnected()
        return self._stream(shard).get(seq)

    async def state(self, shard: int) -> LogState:
        return self._state(self._stream(shard))

    async def mark(self, shard: int) -> bytes | None:
        self._refuse_unconnected()
        self._stream(shard)
        return self.marks.get(shard)

    async def put_mark(self, shard: int, payload: bytes, *, timeout_seconds: float) -> None:
        self._stream(shard)
        if not self.is_connected:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self.wait_connected()
            except TimeoutError as error:
                raise LogUnavailable("not connected to the log") from error
        self.marks[shard] = payload

    def send_piece(self, piece: Piece, acknowledged: Callable[[Said], None]) -> None:
        """Put a piece once, as `send` does an entry."""
        self._stream(piece.shard)
        subject = piece_subject(piece.shard, piece.tenant, piece.execution_id)
        message, size = _message(as_message(piece), subject)
        self._store(self._bodies[piece.shard], message, size, acknowledged)

    async def put_piece(self, piece: Piece, *, timeout_seconds: float) -> Acknowledged:
        return await append_through(
            self, partial(self.send_piece, piece), timeout_seconds=timeout_seconds, limits=self._limits
        )

    async def piece(self, shard: int, seq: int) -> LogMessage | None:
        self._refuse_unconnected()
        self._stream(shard)
        return self._bodies[shard].get(seq)

    async def bodies_state(self, shard: int) -> LogState:
        self._stream(shard)
        return self._state(self._bodies[shard])

    async def drop_piece(self, shard: int, seq: int) -> None:
        self._refuse_unconnected()
        self._stream(shard)
        if self._bodies[shard].get(seq) is not None:
            self._bodies[shard].delete(seq)

    def bodies(self, shard: int) -> MemoryStream:
        """The stream of bodies beside a shard, for what may happen to it."""
        return self._bodies[shard]

    @asynccontextmanager
    async def follow(self, shard: int, *, after_seq: int) -> AsyncGenerator[MemoryFollower]:
        stream = self._stream(shard)
        follower = stream.follow(after_seq)
        try:
            yield follower
        finally:
            stream.unfollow(follower)

    # ------------------------------------------------------------ ControlLog

    async def append_control(self, *, entry_id: str, payload: bytes, timeout_seconds: float) -> int:
        message = LogMessage(
            shard=CONTROL,
            seq=0,
            stored_at=0,
            tenant="",
            entry_id=entry_id,
            execution_id="",
            checksum="",
            reply_to="",
            payload=payload,
        )

        def send(said: Callable[[Said], None]) -> None:
            self._store(self._streams[CONTROL], message, len(payload), self._silences.watch(CONTROL, said))

        appended = await append_through(self, send, timeout_seconds=timeout_seconds, limits=self._limits)
        self._hinted.set()
        return appended.seq

    async def read_control(self, *, after_seq: int) -> list[ControlMessage]:
        self._refuse_unconnected()
        return list(self._control_page(after_seq))

    async def control_head(self) -> int:
        self._refuse_unconnected()
        return self._streams[CONTROL].last_seq

    async def wait_control(self, *, wait_seconds: float) -> None:
        try:
            async with asyncio.timeout(wait_seconds):
                await self._hinted.wait()
        except TimeoutError:
            return
        self._hinted.clear()

    def _control_page(self, after_seq: int) -> Iterator[ControlMessage]:
        stream = self._streams[CONTROL]
        first_seq = max(after_seq + 1, stream.first_seq)
        end_seq = min(stream.last_seq + 1, first_seq + self._limits.control_page_messages_max)
        for seq in range(first_seq, end_seq):
            message = stream.get(seq)
            if message is not None:
                yield ControlMessage(seq=seq, payload=message.payload)

    def _store(
        self, stream: MemoryStream, message: LogMessage, size: int, heard: Watched | Callable[[Said], None]
    ) -> None:
        self._refuse_unconnected()
        if size > _MESSAGE_BYTES_MAX - self._limits.message_reserve_bytes:
            raise EntryTooLarge("the message is larger than the log takes")
        said = None if self.fail_writes else self._spoken(stream, message)
        if isinstance(heard, Watched):
            self._silences.sent(heard)
        if said is not None and not self.drop_acks:
            asyncio.get_running_loop().call_soon(heard, said)

    def _spoken(self, stream: MemoryStream, message: LogMessage) -> Said:
        if self.reject_full and not stream.has_seen(message.entry_id):
            return Rejected(reason="maximum bytes exceeded", is_full=True)
        return stream.store(message)

    def _state(self, stream: MemoryStream) -> LogState:
        self._refuse_unconnected()
        return LogState(
            created_at=stream.created_at,
            first_seq=stream.first_seq,
            last_seq=stream.last_seq,
            broker_time=self._clock(),
        )

    def _refuse_unconnected(self) -> None:
        if not self.is_connected:
            raise LogUnavailable("not connected to the log")

    def _stream(self, shard: int) -> MemoryStream:
        if shard not in self._streams or shard == CONTROL:
            raise InvariantBroken(f"there is no shard {shard} among {len(self._streams) - 1}")
        return self._streams[shard]
