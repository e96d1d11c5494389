"""The one contract of the control log, kept by both adapters."""

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from nats.aio.client import Client

from kernel.domain.errors import LogUnavailable, OutcomeUnknown
from kernel.embedded import EmbeddedServer
from kernel.log.jetstream import JetStreamLog
from kernel.ports import ControlLog, ControlMessage
from tests.contract.log_harness import (
    LIMITS,
    SECONDS,
    SHARDS,
    AnyLog,
    LogHarness,
    MemoryLogHarness,
    append,
    jetstream_harness,
    read_all,
)
from tests.support.wait import loop_turns

PAGE_MESSAGES = 10
SMALL_PAGES = msgspec.structs.replace(LIMITS, control_page_messages_max=PAGE_MESSAGES, control_reads_max=4)
IMPATIENT_SECONDS = 0.4
SHORT_SECONDS = 0.05


async def put(log: ControlLog, entry_id: str, payload: bytes = b"{}") -> int:
    return await log.append_control(entry_id=entry_id, payload=payload, timeout_seconds=SECONDS)


async def read_to_the_head(log: ControlLog, after_seq: int = 0) -> list[ControlMessage]:
    """Read as the port's callers do, and see that an empty page is the head."""
    messages: list[ControlMessage] = []
    while page := await log.read_control(after_seq=messages[-1].seq if messages else after_seq):
        messages += page
    return messages


class ControlLogContract:
    """All of it. An adapter's test provides the fixtures `harness`, `other` and `lone_harness`."""

    async def test_what_is_appended_is_read_in_order(self, harness: LogHarness) -> None:
        seqs = [await put(harness.log, f"id-{number}", b"%d" % number) for number in range(3)]

        assert seqs == [1, 2, 3]
        assert await harness.log.read_control(after_seq=0) == [
            ControlMessage(seq=1, payload=b"0"),
            ControlMessage(seq=2, payload=b"1"),
            ControlMessage(seq=3, payload=b"2"),
        ]
        assert await harness.log.read_control(after_seq=2) == [ControlMessage(seq=3, payload=b"2")]

    async def test_level_with_the_head_there_is_nothing_to_read(self, harness: LogHarness) -> None:
        assert await harness.log.control_head() == 0
        assert await harness.log.read_control(after_seq=0) == []

        await put(harness.log, "one")

        assert await harness.log.control_head() == 1
        assert await harness.log.read_control(after_seq=1) == []
        assert await harness.log.read_control(after_seq=9) == []

    @pytest.mark.parametrize("count", [PAGE_MESSAGES - 1, PAGE_MESSAGES, PAGE_MESSAGES + 1, 3 * PAGE_MESSAGES + 5])
    async def test_pages_are_bounded_and_leave_nothing_out(self, harness: LogHarness, count: int) -> None:
        await asyncio.gather(*(put(harness.log, f"id-{number}", b"%d" % number) for number in range(count)))

        assert len(await harness.log.read_control(after_seq=0)) == min(count, PAGE_MESSAGES)
        messages = await read_to_the_head(harness.log)
        assert [message.seq for message in messages] == list(range(1, count + 1))
        assert {message.payload for message in messages} == {b"%d" % number for number in range(count)}

    async def test_a_repeated_id_is_stored_once(self, harness: LogHarness) -> None:
        first = await put(harness.log, "one", b"first")
        await put(harness.log, "two")

        assert await put(harness.log, "one", b"first") == first
        assert await harness.log.control_head() == 2

    async def test_control_entries_are_not_in_the_shards(self, harness: LogHarness) -> None:
        await put(harness.log, "one")
        await append(harness.log)

        assert [len(await read_all(harness.log, shard)) for shard in range(SHARDS)] == [0, 1, 0]
        assert await harness.log.control_head() == 1

    async def test_an_entry_by_anybody_ends_the_wait(self, harness: LogHarness, other: AnyLog) -> None:
        waiting = asyncio.create_task(harness.log.wait_control(wait_seconds=SECONDS))
        await loop_turns()

        await put(other, "one")

        async with asyncio.timeout(SECONDS / 2):
            await waiting
        # The hint comes when the entry can be read, not before.
        assert await harness.log.control_head() == 1

    async def test_a_hint_between_two_waits_is_not_lost(self, harness: LogHarness) -> None:
        await put(harness.log, "one")
        await loop_turns(50)

        began_at = time.monotonic()
        await harness.log.wait_control(wait_seconds=SECONDS)

        assert time.monotonic() - began_at < SECONDS / 2

        # And one hint ends one wait.
        began_at = time.monotonic()
        await harness.log.wait_control(wait_seconds=SHORT_SECONDS)
        assert time.monotonic() - began_at >= SHORT_SECONDS * 0.9

    async def test_a_wait_ends_when_its_time_is_up(self, harness: LogHarness) -> None:
        began_at = time.monotonic()
        await harness.log.wait_control(wait_seconds=SHORT_SECONDS)

        assert SHORT_SECONDS * 0.9 <= time.monotonic() - began_at < SECONDS

    async def test_what_is_refused_in_an_outage_is_never_stored_later(self, lone_harness: LogHarness) -> None:
        log = lone_harness.log
        await put(log, "before")
        await lone_harness.go_offline()

        with pytest.raises(LogUnavailable):
            await log.append_control(entry_id="refused", payload=b"refused", timeout_seconds=IMPATIENT_SECONDS)
        with pytest.raises(LogUnavailable):
            await log.read_control(after_seq=0)
        with pytest.raises(LogUnavailable):
            await log.control_head()
        await lone_harness.come_back()

        await put(log, "after", b"after")
        assert [message.payload for message in await read_to_the_head(log)] == [b"{}", b"after"]

    async def test_an_unanswered_entry_is_called_unknown_and_repeating_it_settles_it(
        self, lone_harness: LogHarness
    ) -> None:
        log = lone_harness.log
        await lone_harness.fall_silent()
        with pytest.raises(OutcomeUnknown):
            await log.append_control(entry_id="one", payload=b"once", timeout_seconds=2 * IMPATIENT_SECONDS)
        await lone_harness.speak_again()

        assert await put(log, "one", b"once") == 1
        assert [message.payload for message in await read_to_the_head(log)] == [b"once"]


class TestMemoryControlLog(ControlLogContract):
    @pytest_asyncio.fixture
    async def harness(self) -> LogHarness:
        return MemoryLogHarness(SMALL_PAGES)

    @pytest.fixture
    def other(self, harness: LogHarness) -> AnyLog:
        return harness.log

    @pytest.fixture
    def lone_harness(self, harness: LogHarness) -> LogHarness:
        return harness


class TestJetStreamControlLog(ControlLogContract):
    @pytest_asyncio.fixture
    async def harness(self, nats_server: EmbeddedServer, fresh_nats: Client) -> AsyncIterator[LogHarness]:
        async with jetstream_harness(nats_server, SMALL_PAGES) as harness:
            yield harness

    @pytest_asyncio.fixture
    async def other(self, harness: LogHarness, nats_server: EmbeddedServer) -> AsyncIterator[AnyLog]:
        log = await JetStreamLog.connect(nats_server.url, shards=SHARDS, name="other", limits=LIMITS)
        yield log
        await log.close()

    @pytest_asyncio.fixture
    async def lone_harness(self, private_nats: EmbeddedServer) -> AsyncIterator[LogHarness]:
        async with jetstream_harness(private_nats, SMALL_PAGES) as harness:
            yield harness
