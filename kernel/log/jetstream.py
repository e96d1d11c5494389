"""The log on NATS JetStream: one stream a shard and the control stream, over one connection."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Self

from kernel.domain.errors import InvariantBroken
from kernel.log.api import read_acknowledgement
from kernel.log.appending import append_through
from kernel.log.connection import Connection
from kernel.log.control import JetStreamControlLog
from kernel.log.driver import Delivery
from kernel.log.follower import JetStreamFollower
from kernel.log.limits import LogLimits
from kernel.log.messages import direct_message, drop_message, read_direct, read_last, read_state
from kernel.log.naming import (
    MARKS_STREAM,
    as_message,
    bodies_stream,
    entry_headers,
    entry_subject,
    mark_subject,
    message_bytes,
    piece_subject,
    stream_name,
)
from kernel.log.streams import ensure_streams
from kernel.ports import Acknowledged, LogMessage, LogState, Outgoing, Piece, Rejected


class JetStreamLog(JetStreamControlLog):
    """The ports Log and ControlLog. Made by `connect`, ended by `close`."""

    def __init__(self, connection: Connection, *, shards: int) -> None:
        super().__init__(connection)
        self.connection = connection
        self._shards = shards

    @classmethod
    async def connect(cls, url: str, *, shards: int = 8, name: str, limits: LogLimits | None = None) -> Self:
        """Connect to one of the comma-separated addresses. Raises LogUnavailable when none answers in time.

        From then on the connection comes back by itself, for as long as it takes.
        """
        return cls(await Connection.open(url, name=name, limits=limits or LogLimits()), shards=shards)

    async def close(self) -> None:
        await self.connection.close()

    async def ensure_streams(self, *, timeout_seconds: float = 30.0) -> None:
        """Make the streams that are missing and check those that are there.

        Raises Misconfigured, with what to do, where one cannot serve as the log; LogUnavailable when the time is up.
        """
        await ensure_streams(self.connection, shards=self._shards, timeout_seconds=timeout_seconds)

    @property
    def is_connected(self) -> bool:
        return self.connection.is_connected

    def is_silent(self, shard: int) -> bool:
        return self.connection.silences.is_silent(shard)

    def note_stored(self, shard: int, *, sent_at: float) -> None:
        self.connection.silences.note_stored(shard, sent_at=sent_at)

    def send(self, outgoing: Outgoing, acknowledged: Callable[[Acknowledged | Rejected], None]) -> None:
        """As the port says; also EntryTooLarge, a LogUnavailable, for what the broker never takes."""
        watched = self.connection.silences.watch(outgoing.shard, acknowledged)
        subject = entry_subject(self._checked(outgoing.shard), outgoing.tenant, outgoing.execution_id)
        headers = entry_headers(outgoing)
        self.connection.ask(
            subject,
            outgoing.payload,
            partial(_hear_acknowledgement, watched),
            headers=headers,
            size=message_bytes(headers, outgoing.payload),
        )
        self.connection.silences.sent(watched)

    async def append(self, outgoing: Outgoing, *, timeout_seconds: float) -> Acknowledged:
        return await append_through(
            self.connection,
            partial(self.send, outgoing),
            timeout_seconds=timeout_seconds,
            limits=self.connection.limits,
        )

    async def get(self, shard: int, seq: int) -> LogMessage | None:
        delivery = await read_direct(self.connection, stream_name(self._checked(shard)), seq)
        return None if delivery is None else direct_message(shard, seq, delivery)

    async def state(self, shard: int) -> LogState:
        return await read_state(self.connection, stream_name(self._checked(shard)))

    async def mark(self, shard: int) -> bytes | None:
        delivery = await read_last(self.connection, MARKS_STREAM, mark_subject(self._checked(shard)))
        return None if delivery is None else delivery.data

    async def put_mark(self, shard: int, payload: bytes, *, timeout_seconds: float) -> None:
        subject = mark_subject(self._checked(shard))

        def send(said: Callable[[Acknowledged | Rejected], None]) -> None:
            self.connection.ask(subject, payload, partial(_hear_acknowledgement, said))

        await append_through(self.connection, send, timeout_seconds=timeout_seconds, limits=self.connection.limits)

    async def put_piece(self, piece: Piece, *, timeout_seconds: float) -> Acknowledged:
        message = as_message(piece)
        subject = piece_subject(self._checked(piece.shard), piece.tenant, piece.execution_id)
        headers = entry_headers(message)
        size = message_bytes(headers, piece.payload)

        def send(said: Callable[[Acknowledged | Rejected], None]) -> None:
            heard = partial(_hear_acknowledgement, said)
            self.connection.ask(subject, piece.payload, heard, headers=headers, size=size)

        limits = self.connection.limits
        return await append_through(self.connection, send, timeout_seconds=timeout_seconds, limits=limits)

    async def piece(self, shard: int, seq: int) -> LogMessage | None:
        delivery = await read_direct(self.connection, bodies_stream(self._checked(shard)), seq)
        return None if delivery is None else direct_message(shard, seq, delivery)

    async def bodies_state(self, shard: int) -> LogState:
        return await read_state(self.connection, bodies_stream(self._checked(shard)))

    async def drop_piece(self, shard: int, seq: int) -> None:
        await drop_message(self.connection, bodies_stream(self._checked(shard)), seq)

    @asynccontextmanager
    async def follow(self, shard: int, *, after_seq: int) -> AsyncGenerator[JetStreamFollower]:
        stream = stream_name(self._checked(shard))
        follower = JetStreamFollower(self.connection, stream=stream, shard=shard, after_seq=after_seq)
        running = asyncio.create_task(follower.run(), name=f"follower of {stream}")
        try:
            yield follower
        finally:
            running.cancel()
            await asyncio.wait([running])

    def _checked(self, shard: int) -> int:
        if not 0 <= shard < self._shards:
            raise InvariantBroken(f"there is no shard {shard} among {self._shards}")
        return shard


def _hear_acknowledgement(acknowledged: Callable[[Acknowledged | Rejected], None], delivery: Delivery) -> None:
    said = read_acknowledgement(delivery)
    if said is not None:
        acknowledged(said)
