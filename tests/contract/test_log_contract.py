"""The one contract of the log, kept by both adapters."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from nats.aio.client import Client

from kernel.embedded import EmbeddedServer
from kernel.log.memory import DUPLICATE_WINDOW_MICROSECONDS, MemoryLog
from kernel.ports import Acknowledged
from tests.contract.log_bodies import BodyOutageSuite, BodySuite
from tests.contract.log_entries import EntrySuite, OutageSuite, RefusalSuite, SendSuite
from tests.contract.log_following import FollowingOutageSuite, FollowingSuite
from tests.contract.log_harness import SHARD, LogHarness, MemoryLogHarness, append, jetstream_harness, outgoing


class LogContract(
    EntrySuite,
    SendSuite,
    RefusalSuite,
    OutageSuite,
    FollowingSuite,
    FollowingOutageSuite,
    BodySuite,
    BodyOutageSuite,
):
    """All of it. An adapter's test provides the fixtures `harness` and `lone_harness`."""


class TestMemoryLog(LogContract):
    @pytest_asyncio.fixture
    async def harness(self) -> LogHarness:
        return MemoryLogHarness()

    @pytest.fixture
    def lone_harness(self, harness: LogHarness) -> LogHarness:
        return harness


class TestJetStreamLog(LogContract):
    @pytest_asyncio.fixture
    async def harness(self, nats_server: EmbeddedServer, fresh_nats: Client) -> AsyncIterator[LogHarness]:
        async with jetstream_harness(nats_server) as harness:
            yield harness

    @pytest_asyncio.fixture
    async def lone_harness(self, private_nats: EmbeddedServer) -> AsyncIterator[LogHarness]:
        async with jetstream_harness(private_nats) as harness:
            yield harness


class TestMemoryLogAlone:
    """What only the clock of the memory adapter makes quick to see."""

    async def test_an_id_is_forgotten_two_minutes_after_it_was_first_seen(self) -> None:
        now = 1_800_000_000_000_000
        log = MemoryLog(clock=lambda: now)
        sent = outgoing()
        await append(log, sent)
        now += DUPLICATE_WINDOW_MICROSECONDS
        assert (await append(log, sent)).is_duplicate

        # Seeing it again has not made it younger.
        now += 1
        assert await append(log, sent) == Acknowledged(seq=2, is_duplicate=False)

    async def test_time_in_the_log_is_the_clocks(self) -> None:
        log = MemoryLog(clock=lambda: 1_800_000_000_000_001)
        await append(log)

        found = await log.get(SHARD, 1)

        assert found is not None
        assert found.stored_at == (await log.state(SHARD)).broker_time == 1_800_000_000_000_001

    async def test_a_stream_made_anew_is_another_and_its_followers_hear_of_it(self) -> None:
        log = MemoryLog()
        await append(log)
        before = await log.state(SHARD)
        async with log.follow(SHARD, after_seq=1) as follower:
            log.recreate(SHARD)

            after = await log.state(SHARD)
            assert (after.first_seq, after.last_seq) == (1, 0)
            assert after.created_at != before.created_at
            assert follower.restarts == 1
