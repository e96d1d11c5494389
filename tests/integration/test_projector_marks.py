"""Marks: a log that went back, or became another, is noticed though the view is lost; and nothing waits for a mark."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from kernel.domain.errors import LogUnavailable
from kernel.log.memory import MemoryLog
from kernel.ports import Outgoing
from kernel.view.memory import MemoryView
from schemas.marks import ShardMark, decode_mark, encode_mark
from tests.support.projecting import Projection
from tests.support.wait import loop_turns, wait_until_async
from tests.support.worlds import World

LOST = 5


class CountingLog(MemoryLog):
    """A log that counts marks, and may keep whoever records or reads one waiting or refuse him."""

    def __init__(self, projection: Projection) -> None:
        super().__init__(shards=1, clock=lambda: projection.now)
        self.recorded: list[ShardMark] = []
        self.hangs = False
        self.refuses = False
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        """What somebody else does while the mark is being read, once."""

    async def mark(self, shard: int) -> bytes | None:
        if self.refuses:
            raise LogUnavailable("no marks today")
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().mark(shard)

    async def put_mark(self, shard: int, payload: bytes, *, timeout_seconds: float) -> None:
        if self.refuses:
            raise LogUnavailable("no marks today")
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        self.recorded.append(decode_mark(payload))
        await super().put_mark(shard, payload, timeout_seconds=timeout_seconds)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.projecting.marks.LOOK_SECONDS", 0.01)


@pytest.fixture
def projection() -> Projection:
    projection = Projection()
    projection.log = CountingLog(projection)
    return projection


def log_of(projection: Projection) -> CountingLog:
    assert isinstance(projection.log, CountingLog)
    return projection.log


def world_of(projection: Projection, seed: int, entries: int = 40) -> list[Outgoing]:
    return World(random.Random(seed), entries=entries, now=projection.now).outgoing()


def said(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return any(words in record.getMessage() and record.levelname == "CRITICAL" for record in caplog.records)


async def is_marked(projection: Projection) -> None:
    """Wait until the mark names the head of the log."""
    head = (await projection.log.state(0)).last_seq

    def names_head() -> bool:
        raw = projection.log.marks.get(0)
        return raw is not None and decode_mark(raw).seq == head

    await wait_until_async(names_head, "the mark to name the head of the log")


async def folded_and_marked(projection: Projection, seed: int) -> None:
    await projection.append(*world_of(projection, seed))
    async with projection.projector():
        await projection.level()
        await is_marked(projection)


def lose_the_view(projection: Projection) -> None:
    projection.view = MemoryView()


async def test_a_mark_names_stream_entry_and_floor(seed: int, projection: Projection) -> None:
    await folded_and_marked(projection, seed)
    state = await projection.log.state(0)
    mark = log_of(projection).recorded[-1]
    last = await projection.log.get(0, state.last_seq)
    assert last is not None
    assert (mark.shard, mark.created_at, mark.floor_seq) == (0, state.created_at, state.first_seq)
    assert (mark.seq, mark.checksum) == (state.last_seq, last.checksum)


async def test_a_mark_of_entries_that_came_during_a_take_over_is_no_sign_of_a_restored_log(
    seed: int, projection: Projection, caplog: pytest.LogCaptureFixture
) -> None:
    await folded_and_marked(projection, seed)
    more = world_of(projection, seed + 1, entries=10)

    async def another_owner_folds_on() -> None:
        await projection.append(*more)
        state = await projection.log.state(0)
        last = await projection.log.get(0, state.last_seq)
        assert last is not None
        mark = replace(log_of(projection).recorded[-1], seq=state.last_seq, checksum=last.checksum)
        await projection.log.put_mark(0, encode_mark(mark), timeout_seconds=1)

    log_of(projection).meanwhile = another_owner_folds_on
    async with projection.projector("successor"):
        await wait_until_async(lambda: log_of(projection).meanwhile is None, "the mark to be read")
        await projection.level()
    assert not said(caplog, "was it restored from a backup?")


async def test_a_log_restored_from_a_backup_stops_the_shard_though_its_view_is_lost(
    seed: int, projection: Projection, caplog: pytest.LogCaptureFixture
) -> None:
    await folded_and_marked(projection, seed)
    head = (await projection.log.state(0)).last_seq
    projection.log.restore(0, last_seq=head - LOST)
    lose_the_view(projection)
    async with projection.projector("successor"):
        await wait_until_async(lambda: said(caplog, "was it restored from a backup?"), "the shard to stop")
        assert said(caplog, "nats stream purge STEPWELL_MARKS --subject stepwell.marks.0")
        assert projection.view.shard(0).watermark is None

    # What the operator does who wants to go on without what is lost.
    del projection.log.marks[0]
    async with projection.projector("after the operator"):
        await projection.level()


async def test_another_stream_stops_the_shard_though_its_view_is_lost(
    seed: int, projection: Projection, caplog: pytest.LogCaptureFixture
) -> None:
    await folded_and_marked(projection, seed)
    projection.log.recreate(0)
    await projection.append(*world_of(projection, seed))
    lose_the_view(projection)
    async with projection.projector("successor"):
        await wait_until_async(lambda: said(caplog, "is not the one that was marked"), "the shard to stop")
    assert projection.view.shard(0).watermark is None


async def test_another_entry_at_the_mark_stops_the_shard_though_its_view_is_lost(
    seed: int, projection: Projection, caplog: pytest.LogCaptureFixture
) -> None:
    await folded_and_marked(projection, seed)
    head = (await projection.log.state(0)).last_seq
    await projection.damaged(head, checksum="0" * 16 + "-" + "0" * 16)
    lose_the_view(projection)
    async with projection.projector("successor"):
        await wait_until_async(
            lambda: said(caplog, f"entry {head} is not the one that was marked"), "the shard to stop"
        )
    assert projection.view.shard(0).watermark is None


async def test_a_lost_view_over_the_log_that_was_marked_is_rebuilt(seed: int, projection: Projection) -> None:
    await folded_and_marked(projection, seed)
    before = projection.contents()
    lose_the_view(projection)
    async with projection.projector("successor"):
        await projection.level()
    assert projection.contents() == before


async def test_a_mark_below_the_head_of_a_purged_log_stops_nothing(seed: int, projection: Projection) -> None:
    await folded_and_marked(projection, seed)
    marked_seq = decode_mark(projection.log.marks[0]).seq
    await projection.append(*world_of(projection, seed + 1))
    for seq in range(1, marked_seq + 1):
        projection.log.delete(0, seq)
    lose_the_view(projection)
    async with projection.projector("successor"):
        await projection.level()


@pytest.mark.parametrize("payload", [b"", b"{}", b"null", b"\xff"])
async def test_a_mark_that_cannot_be_read_stops_the_shard(
    projection: Projection, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    projection.log.marks[0] = payload
    async with projection.projector():
        await wait_until_async(lambda: said(caplog, "its mark cannot be read"), "the shard to stop")


async def test_a_mark_of_a_later_build_stops_the_shard(
    seed: int, projection: Projection, caplog: pytest.LogCaptureFixture
) -> None:
    await folded_and_marked(projection, seed)
    projection.log.marks[0] = encode_mark(replace(log_of(projection).recorded[-1], schema=2))
    async with projection.projector("successor"):
        await wait_until_async(lambda: said(caplog, "upgrade this process"), "the shard to stop")


# ---------------------------------------------------------------- recording


async def test_a_mark_is_recorded_at_most_once_a_period_and_not_again_where_nothing_moved(
    seed: int, projection: Projection, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(projection)

    def names_pieces() -> bool:
        mark = log.recorded[-1]
        return mark.pieces is not None and mark.pieces.seq == mark.seq

    await folded_and_marked(projection, seed)
    # Whoever marked the entries first may not have looked at their pieces by then.
    async with projection.projector("heir"):
        await wait_until_async(names_pieces, "the mark to name what the pieces of all entries are")
    async with projection.projector("successor"):
        await projection.level()
        count = len(log.recorded)
        await loop_turns(100)
        assert len(log.recorded) == count
        # The first one of an owner whose mark is behind comes at once, the next one after the period.
        for number in range(3):
            await projection.append(*world_of(projection, seed + 1 + number))
            await projection.level()
            await wait_until_async(lambda: len(log.recorded) > count, "the mark that was behind")
        assert len(log.recorded) == count + 1


async def test_a_mark_that_could_not_be_recorded_does_not_wait_for_the_next_period(
    seed: int, projection: Projection, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of(projection)
    caplog.set_level("INFO", "workers.projecting.marks")
    async with projection.projector():
        await projection.level()
        log.refuses = True
        await projection.append(*world_of(projection, seed))
        await projection.level()
        await wait_until_async(lambda: "could not be recorded" in caplog.text, "the mark to be refused")
        log.refuses = False
        await is_marked(projection)
    assert caplog.text.count("could not be recorded") == 1


async def test_a_projector_that_cannot_record_goes_on_folding(seed: int, projection: Projection) -> None:
    log = log_of(projection)
    log.hangs = True
    async with projection.projector():
        for number in range(3):
            await projection.append(*world_of(projection, seed + number))
            await projection.level()
    assert log.recorded == []


async def test_without_its_mark_a_shard_is_not_taken_over_and_then_it_is(seed: int, projection: Projection) -> None:
    """Fail closed: what is not known to be the right log is not folded into an empty view."""
    log = log_of(projection)
    await folded_and_marked(projection, seed)
    lose_the_view(projection)
    log.refuses = True
    async with projection.projector("successor") as projector:
        await wait_until_async(lambda: projector.owned == (0,), "the shard to be owned")
        await loop_turns(50)
        assert projection.view.shard(0).watermark is None
        log.refuses = False
        await projection.level()
