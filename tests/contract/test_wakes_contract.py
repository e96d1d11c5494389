"""The one contract of the wake-ups, kept by both adapters."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from nats.aio.client import Client

from kernel.domain.errors import InvariantBroken
from kernel.embedded import EmbeddedServer
from kernel.log.jetstream import JetStreamLog
from kernel.log.memory import MemoryWakes
from kernel.log.wakes import NatsWakes
from kernel.ports import Wakes
from tests.support.wait import wait_until_async

SHARDS = 2


class WakesHarness(ABC):
    """Two processes' wake-ups; they are one where the adapter has no processes."""

    mine: Wakes
    others: Wakes

    @abstractmethod
    async def go_offline(self) -> None: ...

    @abstractmethod
    async def come_back(self) -> None: ...


class MemoryWakesHarness(WakesHarness):
    def __init__(self) -> None:
        self.mine = self.others = self._wakes = MemoryWakes()

    async def go_offline(self) -> None:
        self._wakes.is_connected = False

    async def come_back(self) -> None:
        self._wakes.is_connected = True


class NatsWakesHarness(WakesHarness):
    def __init__(self, server: EmbeddedServer, logs: list[JetStreamLog]) -> None:
        self._server = server
        self._logs = logs
        self.mine, self.others = (NatsWakes(log.connection) for log in logs)

    async def go_offline(self) -> None:
        await self._server.kill()
        await wait_until_async(lambda: not any(log.is_connected for log in self._logs), "the loss to be seen")

    async def come_back(self) -> None:
        await self._server.start()
        await wait_until_async(lambda: all(log.is_connected for log in self._logs), "the connections to come back")
        for log in self._logs:
            await log.connection.round_trip()


class Heard(list[bytes]):
    """What a listener heard."""

    def __call__(self, payload: bytes) -> None:
        self.append(payload)

    async def something(self, count: int = 1) -> list[bytes]:
        await wait_until_async(lambda: len(self) >= count, f"{count} wake-ups to be heard")
        return list(self)


class WakesContract:
    """All of it. An adapter's test provides the fixtures `harness` and `lone_harness`."""

    async def test_everybody_who_listens_hears(self, harness: WakesHarness) -> None:
        listeners = [Heard(), Heard(), Heard()]
        for wakes, heard in zip((harness.mine, harness.others, harness.mine), listeners, strict=True):
            await wakes.listen("answers.a1b2c3d4", heard)

        harness.mine.tell("answers.a1b2c3d4", b"\x00one")
        harness.mine.tell("answers.a1b2c3d4", b"")

        assert [await heard.something(2) for heard in listeners] == [[b"\x00one", b""]] * 3

    async def test_channels_are_apart(self, harness: WakesHarness) -> None:
        one, two = Heard(), Heard()
        await harness.mine.listen("due.1", one)
        await harness.mine.listen("due.11", two)

        harness.others.tell("due.1", b"one")
        harness.others.tell("due.11", b"two")

        assert await two.something() == [b"two"]
        assert await one.something() == [b"one"]

    async def test_of_a_group_only_one_hears(self, harness: WakesHarness) -> None:
        group, alone = [Heard(), Heard(), Heard()], Heard()
        for wakes, heard in zip((harness.mine, harness.others, harness.others), group, strict=True):
            await wakes.listen("due.1", heard, group="dispatchers")
        other_group = Heard()
        await harness.mine.listen("due.1", other_group, group="others")
        await harness.mine.listen("due.1", alone)

        for number in range(30):
            harness.others.tell("due.1", b"%d" % number)

        await alone.something(30)
        await other_group.something(30)
        await wait_until_async(lambda: sum(map(len, group)) >= 30, "the group to hear everything")
        assert sorted(int(payload) for heard in group for payload in heard) == list(range(30))

    async def test_a_closed_listener_hears_no_more(self, harness: WakesHarness) -> None:
        closed, open_ = Heard(), Heard()
        subscription = await harness.mine.listen("due.1", closed)
        await harness.mine.listen("due.1", open_)
        await subscription.close()
        await subscription.close()

        harness.mine.tell("due.1", b"late")

        await open_.something()
        assert closed == []

    async def test_a_listener_that_fails_harms_nobody_else(self, harness: WakesHarness) -> None:
        def fail(_: bytes) -> None:
            raise RuntimeError("a listener at fault")

        heard = Heard()
        await harness.mine.listen("due.1", fail)
        await harness.mine.listen("due.1", heard)

        harness.mine.tell("due.1", b"1")
        harness.mine.tell("due.1", b"2")

        assert await heard.something(2) == [b"1", b"2"]

    @pytest.mark.parametrize("channel", ["", "*", "due.>", "due..1", "due.1 x", "due.1\r\nPUB a 0", ".due", "due."])
    async def test_a_channel_cannot_reach_others(self, harness: WakesHarness, channel: str) -> None:
        with pytest.raises(InvariantBroken):
            harness.mine.tell(channel, b"")
        with pytest.raises(InvariantBroken):
            await harness.mine.listen(channel, Heard())

    async def test_telling_in_an_outage_does_nothing_and_nothing_comes_later(self, lone_harness: WakesHarness) -> None:
        heard = Heard()
        await lone_harness.mine.listen("due.1", heard)
        await lone_harness.go_offline()

        lone_harness.mine.tell("due.1", b"lost")
        lone_harness.others.tell("due.1", b"lost")
        await lone_harness.come_back()
        lone_harness.others.tell("due.1", b"after")

        assert await heard.something() == [b"after"]

    async def test_who_begins_to_listen_in_an_outage_hears_after_it(self, lone_harness: WakesHarness) -> None:
        heard, closed = Heard(), Heard()
        await lone_harness.go_offline()
        await lone_harness.mine.listen("due.1", heard, group="dispatchers")
        await (await lone_harness.mine.listen("due.1", closed)).close()
        await lone_harness.come_back()

        lone_harness.others.tell("due.1", b"after")

        assert await heard.something() == [b"after"]
        assert closed == []


class TestMemoryWakes(WakesContract):
    @pytest_asyncio.fixture
    async def harness(self) -> WakesHarness:
        return MemoryWakesHarness()

    @pytest.fixture
    def lone_harness(self, harness: WakesHarness) -> WakesHarness:
        return harness


class TestNatsWakes(WakesContract):
    @pytest_asyncio.fixture
    async def harness(self, nats_server: EmbeddedServer) -> AsyncIterator[WakesHarness]:
        async with two_processes(nats_server) as harness:
            yield harness

    @pytest_asyncio.fixture
    async def lone_harness(self, private_nats: EmbeddedServer) -> AsyncIterator[WakesHarness]:
        async with two_processes(private_nats) as harness:
            yield harness

    async def test_no_stream_stores_a_wake_up(self, fresh_nats: Client, nats_server: EmbeddedServer) -> None:
        async with two_processes(nats_server) as harness:
            log = await JetStreamLog.connect(nats_server.url, shards=SHARDS, name="streams")
            await log.ensure_streams()
            heard = Heard()
            for channel in ("due.1", "control", "1.acme.7"):
                await harness.mine.listen(channel, heard)
                harness.mine.tell(channel, b"")
            await heard.something(3)

            streams = await fresh_nats.jetstream().streams_info()
            await log.close()

            # Two a shard, for entries and for bodies, the control stream and that of the marks.
            assert len(streams) == 2 * SHARDS + 2
            assert sum(stream.state.messages for stream in streams) == 0


@asynccontextmanager
async def two_processes(server: EmbeddedServer) -> AsyncGenerator[WakesHarness]:
    logs = [await JetStreamLog.connect(server.url, shards=SHARDS, name=name) for name in ("mine", "others")]
    try:
        yield NatsWakesHarness(server, logs)
    finally:
        for log in logs:
            await log.close()
