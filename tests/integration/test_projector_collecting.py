"""Pieces of bodies that no entry refers to are removed some day, and nothing else ever is: hours, in virtual time."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from kernel.log.memory import MemoryLog
from kernel.ports import Outgoing, Piece
from kernel.view.memory import MemoryView
from schemas.bodies import Spilled
from schemas.entries import SPILLED_SCHEMA, Lease, Outcome, StepSubmitted, Verdict, encode_entry
from schemas.ids import new_uuid7
from schemas.marks import decode_mark
from tests.fault.simulation.virtual import VirtualLoop, VirtualSecrets, VirtualTime, substituted
from tests.support.projecting import Projection
from workers.projecting import collecting
from workers.projecting.batch import Answered, inspect
from workers.projecting.collecting import Collecting
from workers.projecting.marks import MARK_PERIOD_SECONDS

KEPT_SECONDS = 240.0
LOOK_SECONDS = KEPT_SECONDS / 8
LONG_SECONDS = 3 * KEPT_SECONDS
EXECUTION_ID = "0199aaaa-0000-7000-8000-0000000000ff"

Scenario = Callable[[Projection], Coroutine[Any, Any, None]]


def in_virtual_time(scenario: Scenario) -> Callable[[], None]:
    """Make a test of a scenario, whose broker, view and projectors have the time of a virtual loop.

    The broker's clock is ahead by `projection.now`.
    """

    def test() -> None:
        rng = random.Random(1)
        loop = VirtualLoop(rng)
        clock = VirtualTime(loop)
        projection = Projection(now=0)
        projection.settings = replace(projection.settings, unreferenced_seconds=KEPT_SECONDS)
        projection.log = MemoryLog(shards=1, clock=lambda: clock.true_ns() // 1000 + projection.now)
        projection.view = MemoryView(clock=lambda: clock.true_ns() // 1_000_000)
        with substituted(clock, VirtualSecrets(rng)):
            try:
                loop.run_until_complete(scenario(projection))
                loop.run_until_complete(loop.shutdown_asyncgens())
            finally:
                loop.close()

    return test


async def passed(seconds: float) -> None:
    """Return when so much virtual time is over; whatever has to happen until then has happened."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, over.set_result, None)
    await over


async def put(projection: Projection, *, count: int = 1) -> list[int]:
    """Put pieces for an entry that is still to come."""
    entry_id = new_uuid7()
    pieces = [Piece(0, "default", EXECUTION_ID, entry_id, b"%d" % number) for number in range(count)]
    return [(await projection.log.put_piece(each, timeout_seconds=5)).seq for each in pieces]


def referring(args: list[int], settled: tuple[int, ...] = ()) -> Outgoing:
    """Return an entry with its arguments in some pieces, and an outcome that travels with them in others."""
    entry_id = new_uuid7()
    spilled = {"args": Spilled(9, b"", tuple(args), ""), "settle.0": Spilled(9, b"", settled, "")}
    entry = StepSubmitted(
        id=entry_id,
        tenant="default",
        execution_id=EXECUTION_ID,
        at=1,
        lease=Lease(new_uuid7(), 1),
        kind="llm_call",
        target="t",
        args=Raw(b"null"),
        args_hash="cd" * 32,
        idempotency="safe_to_retry",
        verdict=Verdict("allow", "local", 0),
        settle=(Outcome("ab" * 32, result=Raw(b"null")),),
        spilled=spilled,
        schema=SPILLED_SCHEMA,
    )
    return Outgoing(0, "default", EXECUTION_ID, entry_id, encode_entry(entry), "")


async def present(projection: Projection) -> list[int]:
    """Return which pieces are there."""
    state = await projection.log.bodies_state(0)
    found = [await projection.log.piece(0, seq) for seq in range(1, state.last_seq + 1)]
    return [piece.seq for piece in found if piece is not None]


@in_virtual_time
async def test_what_no_entry_refers_to_is_removed_in_time_and_all_else_stays(projection: Projection) -> None:
    async with projection.projector():
        await passed(1.5 * LOOK_SECONDS)
        first, lost, last = await put(projection, count=3)
        await projection.append(referring([first], settled=(last,)))
        await passed(KEPT_SECONDS)
        assert await present(projection) == [first, lost, last]

        await passed(LONG_SECONDS)

        assert await present(projection) == [first, last]


@in_virtual_time
async def test_an_entry_may_come_late(projection: Projection) -> None:
    async with projection.projector():
        await passed(1.5 * LOOK_SECONDS)
        late, _ = await put(projection, count=2)
        await passed(KEPT_SECONDS * 0.9)
        await projection.append(referring([late]))

        await passed(LONG_SECONDS)

        assert await present(projection) == [late]


@in_virtual_time
async def test_a_broker_whose_clock_leaps_makes_no_piece_old(projection: Projection) -> None:
    async with projection.projector():
        await passed(1.5 * LOOK_SECONDS)
        late, _ = await put(projection, count=2)
        await passed(LOOK_SECONDS)
        projection.now += 3600 * 1_000_000
        await passed(3 * LOOK_SECONDS)
        await projection.append(referring([late]))

        await passed(LONG_SECONDS)

        assert await present(projection) == [late]


@in_virtual_time
async def test_another_owner_goes_on_where_the_last_one_was(projection: Projection) -> None:
    async with projection.projector():
        await passed(1.5 * LOOK_SECONDS)
        _, kept = await put(projection, count=2)
        await projection.append(referring([kept]))
        await passed(LOOK_SECONDS + 2 * MARK_PERIOD_SECONDS)
    (meanwhile,) = await put(projection)
    await projection.append(referring([meanwhile]))
    for _ in range(2):
        async with projection.projector():
            await passed(LONG_SECONDS)
            assert await present(projection) == [kept, meanwhile]


@in_virtual_time
async def test_what_was_folded_after_the_last_mark_is_read_again(projection: Projection) -> None:
    async with projection.projector():
        await passed(1.5 * LOOK_SECONDS)
        marked, lost = await put(projection, count=2)
        await projection.append(referring([]))
        await passed(LOOK_SECONDS + 2 * MARK_PERIOD_SECONDS)
        mark = decode_mark(projection.log.marks[0])
        assert mark.pieces is not None
        assert mark.pieces.unreferenced == (marked, lost)
        (ahead,) = await put(projection)
        await projection.append(referring([marked, ahead]))
        await projection.level()
    async with projection.projector():
        await passed(LONG_SECONDS)

        assert await present(projection) == [marked, ahead]


@in_virtual_time
async def test_a_mark_knows_of_no_later_entries_than_pieces(projection: Projection) -> None:
    """Entries that came while an owner looked refer to pieces that it has not looked at."""

    class Slow(MemoryLog):
        async def bodies_state(self, shard: int) -> Any:
            state = await super().bodies_state(shard)
            if self.marks:
                await passed(1.0)
            return state

    log = projection.log = Slow(shards=1, clock=projection.log._clock)
    async with projection.projector():
        await projection.append(referring([]))
        await passed(2 * MARK_PERIOD_SECONDS)
        assert log.marks
        kept: list[int] = []
        while decode_mark(log.marks[0]).pieces is None or len(kept) < 3 * LOOK_SECONDS:
            kept += await put(projection)
            await projection.append(referring(kept[-1:]))
            await passed(0.7)
    async with projection.projector():
        await passed(LONG_SECONDS)

        assert await present(projection) == kept


@in_virtual_time
async def test_what_a_damaged_entry_may_refer_to_is_kept(projection: Projection) -> None:
    async with projection.projector():
        await passed(1.5 * LOOK_SECONDS)
        unknown = await put(projection, count=2)
        await projection.append(referring([]))
        await passed(LOOK_SECONDS + 2 * MARK_PERIOD_SECONDS)
    await projection.append(referring(unknown[:1]))
    await projection.damaged(2, payload=b"?")
    async with projection.projector():
        await passed(LONG_SECONDS)
        await put(projection)
        await passed(LONG_SECONDS)

        assert await present(projection) == unknown


@in_virtual_time
async def test_where_the_mark_is_lost_all_that_is_there_is_kept(projection: Projection) -> None:
    async with projection.projector():
        await passed(1.5 * LOOK_SECONDS)
        there = await put(projection, count=2)
        await projection.append(referring(there[:1]))
        await passed(LOOK_SECONDS + 2 * MARK_PERIOD_SECONDS)
    projection.log.marks.clear()
    async with projection.projector():
        await passed(LONG_SECONDS)
        await put(projection)
        await passed(LONG_SECONDS)

        assert await present(projection) == there


@in_virtual_time
async def test_a_piece_in_a_stream_that_went_back_is_as_old_as_it_is(projection: Projection) -> None:
    """It has the place of one that nothing referred to for long."""
    async with projection.projector():
        await passed(1.5 * LOOK_SECONDS)
        await put(projection)
        await passed(KEPT_SECONDS)
        projection.log.bodies(0).restore(0)
        (young,) = await put(projection)
        await passed(KEPT_SECONDS * 0.6)
        await projection.append(referring([young]))

        await passed(LONG_SECONDS)

        assert await present(projection) == [young]


@in_virtual_time
async def test_in_a_stream_that_is_shorter_than_it_was_all_that_is_there_is_kept(projection: Projection) -> None:
    async with projection.projector():
        await passed(1.5 * LOOK_SECONDS)
        there = await put(projection, count=2)
        await put(projection)
        await passed(1.5 * LOOK_SECONDS)
        projection.log.bodies(0).restore(2)
        await passed(LONG_SECONDS)

        assert await present(projection) == there


@in_virtual_time
async def test_nothing_is_removed_while_entries_wait_to_be_folded(projection: Projection) -> None:
    log = projection.log
    owner = Collecting(0, log, unreferenced_seconds=KEPT_SECONDS)
    async with owner.beside(None, 0):
        await passed(1.5 * LOOK_SECONDS)
        kept, lost = await put(projection, count=2)
        await projection.append(referring([kept]))
        await passed(LONG_SECONDS)
        assert await present(projection) == [kept, lost]

        message = await log.get(0, 1)
        assert message is not None
        owner.note([Answered(message, inspect(message).entry, None)])
        await passed(LONG_SECONDS)

        assert await present(projection) == [kept]


@in_virtual_time
async def test_many_are_removed_one_lot_after_another(projection: Projection) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collecting, "UNREFERENCED_MAX", 4)
        async with projection.projector():
            await passed(1.5 * LOOK_SECONDS)
            await put(projection, count=10)
            (kept,) = await put(projection)
            await projection.append(referring([kept]))

            await passed(3 * LONG_SECONDS)

            assert await present(projection) == [kept]


@in_virtual_time
async def test_where_too_many_references_are_to_be_remembered_all_that_is_there_is_kept(projection: Projection) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collecting, "AHEAD_MAX", 2)
        async with projection.projector():
            await passed(1.5 * LOOK_SECONDS)
            there = await put(projection, count=4)
            await projection.append(referring(there[:3]))
            await passed(LONG_SECONDS)
            await put(projection)
            await passed(LONG_SECONDS)

            assert await present(projection) == there


@in_virtual_time
async def test_an_outage_of_the_log_costs_time_and_nothing_else(projection: Projection) -> None:
    async with projection.projector():
        await passed(1.5 * LOOK_SECONDS)
        kept, _ = await put(projection, count=2)
        await projection.append(referring([kept]))
        await projection.level()
        projection.log.go_offline()
        await passed(KEPT_SECONDS)
        projection.log.come_back()

        await passed(LONG_SECONDS)

        assert await present(projection) == [kept]
