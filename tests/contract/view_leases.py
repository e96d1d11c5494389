"""Contract of the view: when leases expire, what renews them, and which outages of ours hold their expiry up."""

import msgspec

from schemas.entries import Lease
from tests.contract.view_harness import SHARD, SILENCE_MS, ViewHarness
from tests.support.records import (
    LEASE_MS,
    LIMITS,
    STREAM_CREATED_AT,
    UNACKNOWLEDGED_LEASE_MS,
    change,
    dispatch_id,
    ended_header,
    execution_id,
    leased_header,
    make_batch,
    make_dispatch,
    make_header,
)

EXPIRED = [("lease", "acme", execution_id(1))]
LEASE = Lease(dispatch_id=dispatch_id(1), attempt=1)


async def is_renewed(harness: ViewHarness, lease: Lease = LEASE, *, number: int = 1) -> bool:
    return await harness.view.renew_lease(SHARD, execution_id(number), lease, lease_ms=LEASE_MS)


class LeaseSuite:
    async def test_a_lease_expires_its_period_after_the_renewal_was_applied(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header())))

        await harness.live_for(LEASE_MS - 1_000)
        before = await harness.take_due()
        await harness.live_for(1_000)

        assert before == []
        assert await harness.take_due() == EXPIRED

    async def test_a_claim_that_nobody_acknowledged_has_its_own_period(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        claimed = make_header(dispatch=make_dispatch("in_flight", attempt=1), lease=LEASE, renewed_seq=1)
        await harness.view.apply(ownership, make_batch(0, 1, change(claimed)))

        is_heard = await is_renewed(harness)
        await harness.live_for(UNACKNOWLEDGED_LEASE_MS)

        assert not is_heard
        assert await harness.take_due(lease_ms=UNACKNOWLEDGED_LEASE_MS) == EXPIRED

    async def test_a_heartbeat_runs_the_lease_anew(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header())))

        await harness.live_for(LEASE_MS - 1_000)
        is_heard = await is_renewed(harness)
        await harness.live_for(LEASE_MS - 1_000)
        before = await harness.take_due()
        await harness.live_for(1_000)

        assert is_heard
        assert before == []
        assert await harness.take_due() == EXPIRED

    async def test_a_heartbeat_of_any_other_lease_is_for_the_log(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header(attempt=2))))
        await harness.view.apply(ownership, make_batch(1, 2, change(make_header(2))))
        current = Lease(dispatch_id=dispatch_id(1), attempt=2)

        assert not await is_renewed(harness, Lease(dispatch_id=dispatch_id(1), attempt=1))
        assert not await is_renewed(harness, Lease(dispatch_id=dispatch_id(1), attempt=22))
        assert not await is_renewed(harness, Lease(dispatch_id=dispatch_id(2), attempt=2))
        assert not await is_renewed(harness, current, number=2)
        assert not await is_renewed(harness, current, number=3)
        assert await is_renewed(harness, current)

    async def test_a_heartbeat_after_the_end_is_for_the_log(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        leased = leased_header()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased)))

        ended = ended_header(lease=LEASE, claims=1, renewed_seq=leased.renewed_seq)
        await harness.move(ownership, leased, ended)

        assert not await is_renewed(harness)

    async def test_a_lease_that_is_being_expired_is_renewed_by_the_log_alone(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        leased = leased_header(renewed_seq=2)
        await harness.view.apply(ownership, make_batch(0, 1, change(leased)))
        await harness.live_for(LEASE_MS)
        taken = await harness.take_due()

        while_marked = await is_renewed(harness)
        await harness.move(ownership, leased, leased_header(renewed_seq=7))
        after_the_entry = await is_renewed(harness)

        assert taken == EXPIRED
        assert not while_marked
        assert after_the_entry
        assert await harness.take_due() == []

    async def test_a_mark_outlives_a_change_that_renews_nothing(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        leased = leased_header()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased)))
        await harness.live_for(LEASE_MS)
        await harness.take_due()

        await harness.move(ownership, leased, msgspec.structs.replace(leased, event_count=5))

        assert not await is_renewed(harness)

    async def test_the_lease_of_the_next_claim_is_not_marked(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        leased = leased_header(attempt=1)
        await harness.view.apply(ownership, make_batch(0, 1, change(leased)))
        await harness.live_for(LEASE_MS)
        await harness.take_due()

        await harness.move(ownership, leased, leased_header(attempt=2))

        assert not await is_renewed(harness, LEASE)
        assert await is_renewed(harness, Lease(dispatch_id=dispatch_id(1), attempt=2))

    async def test_a_change_that_renews_nothing_does_not_run_the_lease_anew(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        leased = leased_header()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased)))
        await harness.live_for(LEASE_MS)

        await harness.move(ownership, leased, msgspec.structs.replace(leased, event_count=5))

        assert await harness.take_due() == EXPIRED

    async def test_a_renewal_by_an_entry_runs_the_lease_anew(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        leased = leased_header(renewed_seq=2)
        await harness.view.apply(ownership, make_batch(0, 1, change(leased)))
        await harness.live_for(LEASE_MS)

        await harness.move(ownership, leased, leased_header(renewed_seq=3))

        assert await harness.take_due() == []

    async def test_an_acknowledgement_changes_the_period_of_the_lease(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        limits = msgspec.structs.replace(LIMITS, unacknowledged_lease_ms=2 * LEASE_MS)
        in_flight = make_dispatch("in_flight", attempt=1)
        claimed = make_header(limits=limits, dispatch=in_flight, lease=LEASE, renewed_seq=2)
        await harness.view.apply(ownership, make_batch(0, 1, change(claimed)))

        await harness.move(ownership, claimed, leased_header(limits=limits, renewed_seq=2))
        await harness.live_for(LEASE_MS)

        assert await harness.take_due() == EXPIRED


class OutageSuite:
    async def test_a_silence_of_the_doors_gives_agents_another_lease(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header())))
        silent_ms = SILENCE_MS + 2_000
        await harness.live_for(LEASE_MS - silent_ms)

        for _ in range(silent_ms // 1_000):
            await harness.pass_time(1_000)
            assert await harness.take_due() == []
        await harness.show_life()
        await harness.live_for(LEASE_MS - 1_000)
        assert await harness.take_due() == []
        await harness.live_for(2_000)

        assert await harness.take_due() == EXPIRED

    async def test_a_silence_of_the_doors_that_no_dispatcher_saw_gives_agents_another_lease(
        self, harness: ViewHarness
    ) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header())))
        await harness.live_for(LEASE_MS - SILENCE_MS - 1_000)

        await harness.pass_time(SILENCE_MS - 1_000)
        await harness.take_due()
        await harness.pass_time(2_000)
        await harness.view.beat([SHARD])

        assert await harness.take_due() == []

    async def test_a_silence_of_the_dispatchers_gives_agents_another_lease(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header())))

        for _ in range(LEASE_MS // 1_000):
            await harness.pass_time(1_000)
            await harness.view.beat([SHARD])
        at_once = await harness.take_due()
        await harness.live_for(LEASE_MS)

        assert at_once == []
        assert await harness.take_due() == EXPIRED

    async def test_a_short_silence_changes_nothing(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header())))
        await harness.live_for(LEASE_MS - 4_000)

        await harness.pass_time(4_000)

        assert await harness.take_due() == EXPIRED

    async def test_a_shard_whose_doors_never_lived_expires_no_lease(self, harness: ViewHarness) -> None:
        ownership = await harness.take()
        await harness.view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0)
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header())))

        for _ in range(2 * LEASE_MS // 1_000):
            await harness.pass_time(1_000)
            assert await harness.take_due() == []

    async def test_an_outage_holds_up_leases_and_nothing_else(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        headers = (leased_header(1), make_header(2), make_header(3, deadline_at=1_000_000))
        await harness.view.apply(ownership, make_batch(0, 1, *map(change, headers)))

        await harness.pass_time(LEASE_MS)

        assert sorted(await harness.take_due()) == [
            ("deadline", "acme", execution_id(3)),
            ("delivery", "acme", execution_id(2)),
            ("delivery", "acme", execution_id(3)),
        ]

    async def test_a_lease_that_is_held_up_does_not_stand_before_what_is_due_behind_it(
        self, harness: ViewHarness
    ) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header(1))))
        later = make_header(2, dispatch=make_dispatch(due_at=(await harness.now_ms() + LEASE_MS + 1_000) * 1000))
        await harness.view.apply(ownership, make_batch(1, 2, change(later)))
        await harness.pass_time(LEASE_MS + 2_000)

        first = await harness.take_due(items_max=1)
        second = await harness.take_due(items_max=1)

        assert first == []
        assert second == [("delivery", "acme", execution_id(2))]

    async def test_nothing_is_given_or_renewed_while_the_view_is_rebuilt(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0)
        headers = (leased_header(1), make_header(2))

        await harness.view.apply(ownership, make_batch(0, 1, *map(change, headers), is_rebuilding=True))
        await harness.live_for(LEASE_MS)
        work = await harness.view.take_due(SHARD, items_max=9, hold_ms=0, lease_ms=LEASE_MS)

        assert (work.items, work.next_due_ms) == ((), None)
        assert not await is_renewed(harness)

    async def test_after_a_rebuild_no_lease_expires_before_another_lease_has_passed(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=LEASE_MS)
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header()), is_rebuilding=True))
        await harness.live_for(LEASE_MS)

        await harness.view.apply(ownership, make_batch(1, 2))
        at_once = await harness.take_due()
        await harness.live_for(LEASE_MS)

        assert at_once == []
        assert await harness.take_due() == EXPIRED

    async def test_a_server_that_lost_everything_expires_no_lease_at_once(self, harness: ViewHarness) -> None:
        await harness.own()
        await harness.lose_everything()
        ownership = await harness.take()
        await harness.view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0)
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header())))

        await harness.pass_time(LEASE_MS)
        await harness.view.beat([SHARD])

        assert await harness.take_due() == []
