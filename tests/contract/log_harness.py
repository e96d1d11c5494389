"""What the contract suites of the log do to an adapter from outside: cut it off, silence it, fill it, lose a record."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import nats
from nats.js import JetStreamContext

from kernel.embedded import EmbeddedServer
from kernel.log.jetstream import JetStreamLog
from kernel.log.limits import LogLimits
from kernel.log.memory import MemoryLog
from kernel.log.naming import stream_name
from kernel.ports import Acknowledged, LogMessage, Outgoing, Rejected
from schemas.ids import new_uuid7
from tests.support.wait import wait_until_async

SHARD = 1
SHARDS = 3
TENANT = "acme"
SECONDS = 10.0

# Periods short enough for tests; every bound is as shipped.
LIMITS = LogLimits(republish_seconds=0.3)

AnyLog = JetStreamLog | MemoryLog


class LogHarness(ABC):
    """One adapter under test."""

    log: AnyLog

    @abstractmethod
    async def go_offline(self) -> None:
        """Take the log away; return when the adapter knows."""

    @abstractmethod
    async def come_back(self) -> None:
        """Give it back; return when the adapter is connected."""

    @abstractmethod
    async def fall_silent(self) -> None:
        """From now on publishes arrive, and nobody hears of it."""

    @abstractmethod
    async def speak_again(self) -> None: ...

    @abstractmethod
    async def fill(self, shard: int) -> None:
        """Leave no room in the shard."""

    @abstractmethod
    async def make_room(self, shard: int) -> None: ...

    @abstractmethod
    async def lose(self, shard: int, seq: int) -> None:
        """Let a record disappear."""


class MemoryLogHarness(LogHarness):
    def __init__(self, limits: LogLimits = LIMITS) -> None:
        self.log = self._memory = MemoryLog(shards=SHARDS, limits=limits)

    async def go_offline(self) -> None:
        self._memory.go_offline()

    async def come_back(self) -> None:
        self._memory.come_back()

    async def fall_silent(self) -> None:
        self._memory.drop_acks = True

    async def speak_again(self) -> None:
        self._memory.drop_acks = False

    async def fill(self, shard: int) -> None:
        self._memory.reject_full = True

    async def make_room(self, shard: int) -> None:
        self._memory.reject_full = False

    async def lose(self, shard: int, seq: int) -> None:
        self._memory.delete(shard, seq)


class JetStreamLogHarness(LogHarness):
    def __init__(self, server: EmbeddedServer, log: JetStreamLog) -> None:
        self.log = log
        self.server = server

    async def go_offline(self) -> None:
        await self.server.kill()
        await wait_until_async(lambda: not self.log.is_connected, "the loss of the server to be seen")

    async def come_back(self) -> None:
        await self.server.start()
        await wait_until_async(lambda: self.log.is_connected, "the connection to come back")

    async def fall_silent(self) -> None:
        self.server.pause()

    async def speak_again(self) -> None:
        self.server.resume()

    async def fill(self, shard: int) -> None:
        async with operating(self.server) as operator:
            info = await operator.stream_info(stream_name(shard))
            await operator.update_stream(info.config.evolve(max_bytes=max(1, info.state.bytes)))

    async def make_room(self, shard: int) -> None:
        async with operating(self.server) as operator:
            info = await operator.stream_info(stream_name(shard))
            await operator.update_stream(info.config.evolve(max_bytes=-1))

    async def lose(self, shard: int, seq: int) -> None:
        async with operating(self.server) as operator:
            await operator.delete_msg(stream_name(shard), seq)


@asynccontextmanager
async def operating(server: EmbeddedServer) -> AsyncGenerator[JetStreamContext]:
    """An operator's connection, for as long as it takes: the client library's own reconnection outlives its close."""
    connection = await nats.connect(server.url, allow_reconnect=False)
    try:
        yield connection.jetstream()
    finally:
        await connection.close()


@asynccontextmanager
async def jetstream_harness(server: EmbeddedServer, limits: LogLimits = LIMITS) -> AsyncGenerator[JetStreamLogHarness]:
    """A log with its streams on a server that has none of them."""
    log = await JetStreamLog.connect(server.url, shards=SHARDS, name="contract", limits=limits)
    try:
        await log.ensure_streams(timeout_seconds=SECONDS)
        yield JetStreamLogHarness(server, log)
    finally:
        await log.close()


def outgoing(
    payload: bytes = b"{}",
    *,
    shard: int = SHARD,
    tenant: str = TENANT,
    execution_id: str | None = None,
    entry_id: str | None = None,
    reply_to: str = "",
) -> Outgoing:
    return Outgoing(
        shard=shard,
        tenant=tenant,
        execution_id=execution_id or new_uuid7(),
        entry_id=entry_id or new_uuid7(),
        payload=payload,
        reply_to=reply_to,
    )


async def append(log: AnyLog, entry: Outgoing | None = None) -> Acknowledged:
    return await log.append(entry or outgoing(), timeout_seconds=SECONDS)


async def append_many(log: AnyLog, payloads: list[bytes], *, shard: int = SHARD) -> list[int]:
    """Append in this order and return the sequences."""
    return [(await append(log, outgoing(payload, shard=shard))).seq for payload in payloads]


async def read_all(log: AnyLog, shard: int = SHARD) -> list[LogMessage]:
    """Everything the shard holds, by direct reads."""
    state = await log.state(shard)
    found = [await log.get(shard, seq) for seq in range(state.first_seq, state.last_seq + 1)]
    return [message for message in found if message is not None]


class Spoken:
    """A callback for `send` that remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[Acknowledged | Rejected] = []

    def __call__(self, said: Acknowledged | Rejected) -> None:
        self.said.append(said)
