"""Owning a shard: which entries are believed, and in which order a batch is kept and told."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from kernel.domain.framing import checksum
from kernel.log.memory import MemoryLog, MemoryWakes
from kernel.ports import Batch, LogMessage, Outgoing, Ownership, Watermark, answers_channel, changes_channel
from kernel.settings import Settings
from kernel.view.memory import MemoryView
from schemas.entries import encode_entry
from schemas.records import HEADER_FIELD, Header, decode_header
from tests.support.folding import EXECUTION, ListLog
from tests.support.wait import loop_turns, wait_until_async
from workers.projecting.batch import ShardStopped
from workers.projecting.shard import ShardOwner

DOOR = "doorname"
OWNED_SECONDS_MAX = 5.0


class WatchedView(MemoryView):
    """A view that notes what is done to it, and applies nothing while its gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self.batches: list[Batch] = []
        self.wipes = 0

    async def apply(self, ownership: Ownership, batch: Batch) -> None:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        self.batches.append(batch)
        await super().apply(ownership, batch)

    async def wipe(self, ownership: Ownership, *, created_at: str, lease_ms: int) -> Watermark:
        self.wipes += 1
        return await super().wipe(ownership, created_at=created_at, lease_ms=lease_ms)


class Bench:
    """One shard on memory adapters; `story` is what its only execution goes through."""

    def __init__(self) -> None:
        self.settings = Settings(shards=1, owner_ttl_seconds=0.4)
        self.log = MemoryLog(shards=1)
        self.view = WatchedView()
        self.wakes = MemoryWakes()
        self.story = ListLog()
        self.story.now = time.time_ns() // 1000
        self._sent = 0

    async def append(self) -> None:
        """Append what the story has more than the log."""
        for entry, _ in self.story.entries[self._sent :]:
            payload = encode_entry(entry)
            await self.log.append(
                Outgoing(0, "default", EXECUTION, entry.id, payload, reply_to=DOOR), timeout_seconds=5
            )
        self._sent = len(self.story.entries)

    async def begin(self) -> None:
        """Append a create, a claim and a submission: entries 1 to 3."""
        self.story.create()
        self.story.claim()
        self.story.submit()
        await self.append()

    async def own(self) -> None:
        """Own the shard until that ends by itself, which is soon."""
        ownership = await self.view.acquire(0, owner="owner", ttl_ms=5_000, lease_ms=1_000)
        assert ownership is not None
        owner = ShardOwner(ownership, settings=self.settings, log=self.log, view=self.view, wakes=self.wakes)
        try:
            async with asyncio.timeout(OWNED_SECONDS_MAX):
                await owner.run()
        finally:
            await owner.release()

    @asynccontextmanager
    async def owned(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.own())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))

    async def reached(self, seq: int) -> None:
        def is_there() -> bool:
            watermark = self.view.shard(0).watermark
            return watermark is not None and watermark.seq == seq

        await wait_until_async(is_there, f"the view to reach {seq}", deadline_seconds=OWNED_SECONDS_MAX)

    async def repeat(self, seq: int) -> None:
        """Put a copy of an entry, with its id, where the log's last one is."""
        first, last = await self.message(seq), await self.message((await self.log.state(0)).last_seq)
        self.log.replace(msgspec.structs.replace(first, seq=last.seq, stored_at=last.stored_at))

    async def message(self, seq: int) -> LogMessage:
        found = await self.log.get(0, seq)
        assert found is not None
        return found

    async def alter(self, seq: int) -> None:
        """Let another whole entry stand where one is, as after a restore from a backup."""
        message = await self.message(seq)
        entry_id = message.entry_id[:-1] + ("0" if message.entry_id[-1] != "0" else "1")
        seal = checksum(tenant="default", execution_id=EXECUTION, entry_id=entry_id, payload=message.payload)
        self.log.replace(msgspec.structs.replace(message, entry_id=entry_id, checksum=seal))

    @property
    def header(self) -> Header:
        return decode_header(self.view.shard(0).hash("default", EXECUTION)[HEADER_FIELD])


# ---------------------------------------------------------------- the log


async def test_a_gap_after_the_watermark_stops_the_shard() -> None:
    bench = Bench()
    await bench.begin()
    async with bench.owned():
        await bench.reached(3)
    bench.story.heartbeat()
    bench.story.heartbeat()
    await bench.append()
    bench.log.delete(0, 4)

    with pytest.raises(ShardStopped, match="entries 4 to 4 are not in the log"):
        await bench.own()
    assert bench.view.batches[-1].watermark.seq == 3


async def test_an_owner_looks_at_its_watermark_again_when_its_consumer_was_made_anew() -> None:
    bench = Bench()
    await bench.begin()
    owning = asyncio.create_task(bench.own())
    await bench.reached(3)

    await bench.alter(3)
    bench.log.go_offline()
    bench.log.come_back()

    with pytest.raises(ShardStopped, match="entry 3 is not the one"):
        await owning


@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_an_entry_that_is_in_the_log_twice_is_folded_once(is_taken_over: bool) -> None:
    bench = Bench()
    await bench.begin()
    if is_taken_over:
        async with bench.owned():
            await bench.reached(3)
    bench.story.heartbeat()
    await bench.append()
    await bench.repeat(3)

    async with bench.owned():
        await bench.reached(4)

    assert bench.header.entry_count == 4
    assert bench.header.step_count == 1


# ---------------------------------------------------------------- the view


async def test_nobody_is_told_before_the_view_has_the_batch() -> None:
    bench = Bench()
    heard: list[bytes] = []
    await bench.wakes.listen(answers_channel(DOOR), heard.append)
    await bench.wakes.listen(changes_channel(0), heard.append)
    async with bench.owned():
        await bench.reached(0)
        await wait_until_async(lambda: bench.view.batches, "readers to be let in")
        bench.view.gate.clear()
        await bench.begin()
        await wait_until_async(lambda: bench.view.waiting, "the batch to be on its way to the view")
        await loop_turns()
        assert heard == []

        bench.view.gate.set()
        await wait_until_async(lambda: heard, "those who wait to be told")


async def test_the_owner_of_a_half_applied_batch_sends_it_again() -> None:
    bench = Bench()
    async with bench.owned():
        await wait_until_async(lambda: bench.view.batches, "readers to be let in")
        bench.view.fail_next_apply(0)
        await bench.begin()
        await bench.reached(3)

    assert bench.view.wipes == 1
    assert bench.view.shard(0).dirty is None
    assert bench.header.step_count == 1


async def test_a_view_that_went_back_into_its_rebuild_lets_readers_in_again() -> None:
    bench = Bench()
    bench.view.gate.clear()
    async with bench.owned():
        await wait_until_async(lambda: bench.view.waiting, "the end of the rebuild to be on its way to the view")
        rebuilding = bench.view.snapshot()
        bench.view.gate.set()
        await wait_until_async(lambda: not bench.view.shard(0).is_rebuilding, "readers to be let in")
        bench.view.go_back(rebuilding)
        assert bench.view.shard(0).is_rebuilding

        await wait_until_async(lambda: not bench.view.shard(0).is_rebuilding, "readers to be let in again")

    assert bench.view.wipes == 1
