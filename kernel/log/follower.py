"""Following one stream: a consumer made anew whenever it may be broken, so that nothing is skipped or waited for.

The driver's own ordered consumer stays silent for many seconds after about half of the broker's restarts.
"""

import asyncio
import logging

from kernel.domain.errors import LogUnavailable
from kernel.log.api import stream_info
from kernel.log.backlog import Backlog
from kernel.log.connection import Connection, random_seconds
from kernel.log.consumer import Consumer
from kernel.ports import LogMessage

_DOUBLINGS_MAX = 16
_GRACE = 0.25
"""Part of the patience that a message may be under way."""

_log = logging.getLogger(__name__)


class JetStreamFollower:
    """The port's Follower. Somebody has to be in `run` meanwhile."""

    def __init__(self, connection: Connection, *, stream: str, shard: int, after_seq: int) -> None:
        self._connection = connection
        self._limits = connection.limits
        self._stream = stream
        self._shard = shard
        self._backlog = Backlog(after_seq=after_seq, limits=connection.limits)
        self._consumer: Consumer | None = None
        self._made = 0
        self._silences = 0
        self._failures = 0

    @property
    def restarts(self) -> int:
        return max(0, self._made - 1)

    async def next(self, *, messages_max: int, bytes_max: int, wait_seconds: float) -> list[LogMessage]:
        taken = await self._backlog.take(messages_max=messages_max, bytes_max=bytes_max, wait_seconds=wait_seconds)
        if self._consumer is not None:
            self._consumer.let_flow()
        return taken

    async def run(self) -> None:
        """Keep a consumer until cancelled."""
        while True:
            try:
                await self._connection.wait_connected()
                await self._backlog.wait_eased()
                await self._consume()
            except LogUnavailable as error:
                _log.info("%s cannot be followed: %s", self._stream, error)
                await asyncio.sleep(self._pause())
                self._failures += 1
            except Exception:  # noqa: BLE001 - the top of the loop, see below
                # An error nobody foresaw must not leave a reader waiting for ever.
                _log.exception("%s cannot be followed", self._stream)
                await asyncio.sleep(self._limits.silence_seconds_max)

    async def _consume(self) -> None:
        """Make one consumer and watch it to its end."""
        lost = self._connection.lost
        consumer = Consumer(
            self._connection, stream=self._stream, shard=self._shard, backlog=self._backlog, made=self._count_made
        )
        try:
            head = await self._head()
            self._consumer = consumer
            pending = await consumer.open()
            # Nothing to deliver up to the head means that nothing is there, whatever the sequences say.
            level_seq = head if pending == 0 else None
            reason = await self._watch(consumer, lost, level_seq)
        finally:
            self._consumer = None
            consumer.close()
        _log.info("%s is followed anew after %d: %s", self._stream, self._backlog.received_seq, reason)
        if not consumer.has_received and not lost.done():
            self._silences += 1
            await asyncio.sleep(self._pause())

    async def _watch(self, consumer: Consumer, lost: asyncio.Future[None], level_seq: int | None) -> str:
        """Return when the consumer has to be replaced, and why."""
        while True:
            received_seq = self._backlog.received_seq
            await self._wait((consumer.ended, lost), self._patience())
            if consumer.has_received:
                self._silences = 0
            if consumer.ended.done():
                return consumer.ended.result()
            if lost.done():
                return "the connection was lost"
            if self._backlog.received_seq != received_seq or consumer.is_held:
                continue
            head = await self._head()
            if head in (received_seq, level_seq):
                continue
            # What was stored just now may still be on its way.
            await self._wait((consumer.ended, lost), self._patience() * _GRACE)
            if self._backlog.received_seq == received_seq and not consumer.is_held:
                return f"nothing came though the head is {head}"

    async def _wait(self, ends: tuple[asyncio.Future[str], asyncio.Future[None]], seconds: float) -> None:
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def _count_made(self) -> None:
        self._made += 1
        self._failures = 0

    async def _head(self) -> int:
        return (await stream_info(self._connection, self._stream)).state.last_seq

    def _patience(self) -> float:
        """How long silence is borne: longer each time, because a large message over a slow line takes its time."""
        limits = self._limits
        return min(limits.silence_seconds_min * 2 ** min(self._silences, _DOUBLINGS_MAX), limits.silence_seconds_max)

    def _pause(self) -> float:
        """Short at first, because a broker that has just come back needs a moment, and longer with each failure."""
        limits = self._limits
        pause = random_seconds(limits.reconnect_seconds_min, limits.reconnect_seconds_max)
        return min(pause * 2 ** min(self._failures, _DOUBLINGS_MAX), limits.silence_seconds_max)
