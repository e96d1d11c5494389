"""Contract of the view: due work is given in order, to one dispatcher at a time, by the view's own clock."""

import msgspec

from kernel.ports import DueItem
from tests.contract.view_harness import HOLD_MS, SHARD, ViewHarness
from tests.support.records import (
    LEASE_MS,
    change,
    ended_header,
    execution_id,
    make_batch,
    make_dispatch,
    make_header,
)


async def due_in(harness: ViewHarness, ms: int) -> int:
    """A time of the log, in microseconds, that lies ahead."""
    return (await harness.now_ms() + ms) * 1000


class DueWorkSuite:
    async def test_due_work_is_given_in_the_order_of_its_times(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        times = {1: 3_000_000, 2: 1_000_000, 3: 2_000_000}
        headers = [make_header(number, dispatch=make_dispatch(due_at=at)) for number, at in times.items()]
        await harness.view.apply(ownership, make_batch(0, 1, *map(change, headers)))

        work = await harness.view.take_due(SHARD, items_max=100, hold_ms=HOLD_MS, lease_ms=LEASE_MS)

        expected = [
            DueItem(
                kind="delivery",
                tenant="acme",
                agent_id="researcher",
                execution_id=headers[at].execution_id,
                header=headers[at],
            )
            for at in (1, 2, 0)
        ]
        assert list(work.items) == expected

    async def test_a_held_item_is_given_to_no_other_until_the_hold_ends(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(make_header())))

        first = await harness.take_due()
        during = await harness.take_due()
        await harness.pass_time(HOLD_MS + 1)
        after = await harness.take_due()

        assert first == after == [("delivery", "acme", execution_id(1))]
        assert during == []

    async def test_work_that_is_not_due_yet_is_waited_for(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        waiting = make_dispatch("waiting", due_at=await due_in(harness, 3_000))
        await harness.view.apply(ownership, make_batch(0, 1, change(make_header(dispatch=waiting))))

        work = await harness.view.take_due(SHARD, items_max=9, hold_ms=HOLD_MS, lease_ms=LEASE_MS)
        await harness.pass_time(3_001)

        assert work.items == ()
        assert work.next_due_ms is not None
        assert 2_000 < work.next_due_ms <= 3_000
        assert await harness.take_due() == [("delivery", "acme", execution_id(1))]

    async def test_no_more_is_given_than_was_asked_for_and_the_rest_is_due_at_once(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        headers = [make_header(number) for number in range(1, 6)]
        await harness.view.apply(ownership, make_batch(0, 1, *map(change, headers)))

        first = await harness.view.take_due(SHARD, items_max=3, hold_ms=HOLD_MS, lease_ms=LEASE_MS)
        second = await harness.view.take_due(SHARD, items_max=3, hold_ms=HOLD_MS, lease_ms=LEASE_MS)

        assert (len(first.items), first.next_due_ms) == (3, 0)
        assert len(second.items) == 2
        assert second.next_due_ms is not None
        assert HOLD_MS - 2_000 < second.next_due_ms <= HOLD_MS + 1

    async def test_an_empty_shard_waits_for_nothing(self, harness: ViewHarness) -> None:
        await harness.own()

        work = await harness.view.take_due(SHARD, items_max=9, hold_ms=HOLD_MS, lease_ms=LEASE_MS)

        assert (work.items, work.next_due_ms) == ((), None)

    async def test_a_duty_that_ended_is_not_due(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        headers = [make_header(number) for number in (1, 2, 3)]
        await harness.view.apply(ownership, make_batch(0, 1, *map(change, headers)))

        halted = msgspec.structs.replace(headers[1], halted="damaged")
        ended = ended_header(3)
        claimed = make_header(1, dispatch=make_dispatch("in_flight", attempt=1))
        afters = (claimed, halted, ended)
        moves = [change(after, before=before) for before, after in zip(headers, afters, strict=True)]
        await harness.view.apply(ownership, make_batch(1, 2, *moves))

        assert await harness.take_due() == []

    async def test_a_deadline_is_due_at_the_earlier_of_deadline_and_end_of_life(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        past, ahead = 1_000_000, await due_in(harness, 60_000)
        acknowledged = make_dispatch("acknowledged", attempt=1)
        headers = [
            make_header(1, dispatch=acknowledged, deadline_at=past),
            make_header(2, dispatch=acknowledged, life_ends_at=past),
            make_header(3, dispatch=acknowledged, deadline_at=ahead),
        ]

        await harness.view.apply(ownership, make_batch(0, 1, *map(change, headers)))

        assert await harness.take_due() == [
            ("deadline", "acme", execution_id(1)),
            ("deadline", "acme", execution_id(2)),
        ]

    async def test_a_change_that_leaves_a_duty_alone_leaves_its_hold_alone(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        header = make_header()
        await harness.view.apply(ownership, make_batch(0, 1, change(header)))
        await harness.take_due()

        touched = msgspec.structs.replace(header, event_count=5, updated_at=header.updated_at + 1)
        await harness.move(ownership, header, touched)

        assert await harness.take_due() == []

    async def test_a_new_dispatch_at_the_same_time_is_not_covered_by_the_hold_of_the_old(
        self, harness: ViewHarness
    ) -> None:
        ownership = await harness.own()
        header = make_header(dispatch=make_dispatch(number=1, duty_seq=1))
        await harness.view.apply(ownership, make_batch(0, 1, change(header)))
        await harness.take_due()

        other = msgspec.structs.replace(header, dispatch=make_dispatch(number=2, duty_seq=2))
        await harness.move(ownership, header, other)

        assert await harness.take_due() == [("delivery", "acme", execution_id(1))]

    async def test_a_deferred_item_is_due_again_after_the_delay(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(make_header())))
        work = await harness.view.take_due(SHARD, items_max=9, hold_ms=60_000, lease_ms=LEASE_MS)

        await harness.view.defer(SHARD, work.items, delay_ms=2_000)
        at_once = await harness.take_due()
        await harness.pass_time(2_000)
        after_the_delay = await harness.take_due()

        assert at_once == []
        assert after_the_delay == [("delivery", "acme", execution_id(1))]

    async def test_a_duty_armed_anew_since_it_was_taken_is_not_deferred(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        header = make_header()
        await harness.view.apply(ownership, make_batch(0, 1, change(header)))
        work = await harness.view.take_due(SHARD, items_max=9, hold_ms=HOLD_MS, lease_ms=LEASE_MS)
        later = make_dispatch("waiting", due_at=await due_in(harness, 60_000))
        await harness.move(ownership, header, msgspec.structs.replace(header, dispatch=later))

        await harness.view.defer(SHARD, work.items, delay_ms=0)

        assert await harness.take_due() == []

    async def test_a_duty_that_ended_since_it_was_taken_is_not_brought_back(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        header = make_header()
        await harness.view.apply(ownership, make_batch(0, 1, change(header)))
        work = await harness.view.take_due(SHARD, items_max=9, hold_ms=HOLD_MS, lease_ms=LEASE_MS)
        await harness.move(ownership, header, ended_header())

        await harness.view.defer(SHARD, work.items, delay_ms=0)
        await harness.view.defer(SHARD, [], delay_ms=0)

        assert await harness.take_due() == []
