"""Contract of the view: who owns a shard, what an owner finds, and how a shard is dropped."""

import pytest

from kernel.domain.errors import OwnershipLost
from kernel.ports import CreateKey, ExecutionQuery, Fetch, Parked, StoredAnswer
from schemas.records import HEADER_FIELD
from tests.contract.view_harness import SHARD, TTL_MS, ViewHarness
from tests.support.records import (
    LEASE_MS,
    STREAM_CREATED_AT,
    change,
    entry_id,
    execution_id,
    leased_header,
    make_batch,
    make_header,
    watermark,
)


class OwnershipSuite:
    async def test_a_shard_is_owned_by_one_at_a_time(self, harness: ViewHarness) -> None:
        first = await harness.view.acquire(SHARD, owner="one", ttl_ms=TTL_MS, lease_ms=0)
        second = await harness.view.acquire(SHARD, owner="two", ttl_ms=TTL_MS, lease_ms=0)
        other_shard = await harness.view.acquire(SHARD + 1, owner="two", ttl_ms=TTL_MS, lease_ms=0)

        assert first is not None
        assert second is None
        assert other_shard is not None

    async def test_an_ownership_that_lapsed_is_lost_though_nobody_took_the_shard(self, harness: ViewHarness) -> None:
        ownership = await harness.own()

        await harness.pass_time(TTL_MS)

        with pytest.raises(OwnershipLost):
            await harness.view.keep(ownership, ttl_ms=TTL_MS)

    async def test_keeping_an_ownership_renews_it(self, harness: ViewHarness) -> None:
        ownership = await harness.own()

        await harness.pass_time(TTL_MS - 1_000)
        await harness.view.keep(ownership, ttl_ms=TTL_MS)
        await harness.pass_time(TTL_MS - 1_000)

        assert await harness.watermark(ownership) == watermark(0)
        assert await harness.view.acquire(SHARD, owner="two", ttl_ms=TTL_MS, lease_ms=0) is None

    async def test_a_released_shard_is_free_at_once(self, harness: ViewHarness) -> None:
        ownership = await harness.own()

        await harness.view.release(ownership)

        with pytest.raises(OwnershipLost):
            await harness.view.keep(ownership, ttl_ms=TTL_MS)
        assert await harness.view.acquire(SHARD, owner="two", ttl_ms=TTL_MS, lease_ms=0) is not None

    async def test_a_former_owner_frees_nothing(self, harness: ViewHarness) -> None:
        former = await harness.own()
        await harness.pass_time(TTL_MS)
        present = await harness.take(owner="two")

        await harness.view.release(former)

        assert await harness.watermark(present) == watermark(0)

    async def test_a_token_is_never_made_twice(self, harness: ViewHarness) -> None:
        tokens = set[str]()
        for _ in range(3):
            await harness.lose_everything()
            tokens.add((await harness.take()).token)

        assert len(tokens) == 3

    async def test_after_an_owner_that_died_no_lease_expires_before_another_lease_has_passed(
        self, harness: ViewHarness
    ) -> None:
        ownership = await harness.own(ttl_ms=LEASE_MS)
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header())))
        await harness.live_for(LEASE_MS)

        await harness.take(owner="two", lease_ms=LEASE_MS)
        at_once = await harness.take_due()
        await harness.live_for(LEASE_MS)
        after_a_lease = await harness.take_due()

        assert at_once == []
        assert after_a_lease == [("lease", "acme", execution_id(1))]

    async def test_an_owner_that_released_holds_no_lease_up(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header())))
        await harness.live_for(LEASE_MS)

        await harness.view.release(ownership)
        await harness.take(owner="two", lease_ms=LEASE_MS)

        assert await harness.take_due() == [("lease", "acme", execution_id(1))]

    async def test_projectors_that_announce_themselves_are_counted_while_they_live(self, harness: ViewHarness) -> None:
        assert await harness.view.announce_projector("one", ttl_ms=2_000) == 1
        assert await harness.view.announce_projector("two", ttl_ms=9_000) == 2
        assert await harness.view.announce_projector("one", ttl_ms=2_000) == 2

        await harness.pass_time(3_000)

        assert await harness.view.announce_projector("three", ttl_ms=2_000) == 2


class WipeSuite:
    async def test_a_fresh_shard_has_no_watermark(self, harness: ViewHarness) -> None:
        ownership = await harness.take()

        state = await harness.view.keep(ownership, ttl_ms=TTL_MS)

        assert (state.watermark, state.is_dirty, state.is_rebuilding) == (None, False, False)
        assert (await harness.view.locate(SHARD, execution_id(1))).watermark_seq == -1

    async def test_a_wiped_shard_is_empty_and_its_readers_wait(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        created = [make_header(number) for number in range(1, 40)]
        full = make_batch(
            0,
            1,
            *(change(header) for header in created),
            answers=(StoredAnswer(entry_id(1), b"answer"),),
            create_keys=(CreateKey("acme", b"digest", b"record"),),
            parked=(Parked(1, "damaged"),),
        )
        await harness.view.apply(ownership, full)

        empty = await harness.view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0)

        assert empty == watermark(0)
        state = await harness.view.keep(ownership, ttl_ms=TTL_MS)
        assert (state.watermark, state.is_dirty, state.is_rebuilding) == (empty, False, True)
        fetches = [Fetch("acme", header.execution_id, (HEADER_FIELD,)) for header in created]
        for found in await harness.view.load(SHARD, fetches):
            assert (found.values, found.field_count, found.is_listed) == ((None,), 0, False)
        assert await harness.view.load_create_keys(SHARD, [("acme", b"digest")]) == [None]
        assert await harness.view.recent_entry_ids(SHARD) == []
        assert await harness.parked() == {}
        listed = await harness.view.executions(SHARD, "acme", ExecutionQuery())
        assert (listed.watermark_seq, listed.is_rebuilding, listed.value) == (0, True, ())
        assert (await harness.view.live_executions(SHARD, "acme", "researcher")).value == 0
        await harness.view.apply(ownership, make_batch(0, 0))
        assert await harness.take_due() == []

    async def test_a_wipe_names_the_stream_that_the_shard_is_folded_from_now(self, harness: ViewHarness) -> None:
        ownership = await harness.own()

        empty = await harness.view.wipe(ownership, created_at="another stream", lease_ms=0)

        assert empty == watermark(0, created_at="another stream")
        assert await harness.watermark(ownership) == empty

    async def test_a_wipe_leaves_other_shards_alone(self, harness: ViewHarness) -> None:
        ownerships = {shard: await harness.own(shard) for shard in (SHARD, SHARD * 10 + 1)}
        for ownership in ownerships.values():
            await harness.view.apply(ownership, make_batch(0, 1, change(make_header())))

        await harness.view.wipe(ownerships[SHARD], created_at=STREAM_CREATED_AT, lease_ms=0)

        other = await harness.view.locate(SHARD * 10 + 1, execution_id(1))
        assert (other.watermark_seq, other.is_rebuilding) == (1, False)
        assert other.value is not None

    async def test_a_former_owner_wipes_nothing(self, harness: ViewHarness) -> None:
        former = await harness.own()
        await harness.view.apply(former, make_batch(0, 1, change(make_header())))
        await harness.pass_time(TTL_MS)
        present = await harness.take(owner="two")

        with pytest.raises(OwnershipLost):
            await harness.view.wipe(former, created_at=STREAM_CREATED_AT, lease_ms=0)

        assert await harness.watermark(present) == watermark(1)
        found = await harness.view.locate(SHARD, execution_id(1))
        assert found.value is not None
        assert not found.is_rebuilding

    async def test_a_batch_says_whether_readers_still_have_to_wait(self, harness: ViewHarness) -> None:
        ownership = await harness.take()
        await harness.view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0)

        await harness.view.apply(ownership, make_batch(0, 1, change(make_header()), is_rebuilding=True))
        during = await harness.view.locate(SHARD, execution_id(1))
        await harness.view.apply(ownership, make_batch(1, 2))
        after = await harness.view.locate(SHARD, execution_id(1))

        assert (during.watermark_seq, during.is_rebuilding) == (1, True)
        assert (after.watermark_seq, after.is_rebuilding) == (2, False)

    async def test_an_empty_batch_at_the_same_watermark_ends_a_rebuild(self, harness: ViewHarness) -> None:
        ownership = await harness.take()
        await harness.view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0)

        await harness.view.apply(ownership, make_batch(0, 0))

        state = await harness.view.keep(ownership, ttl_ms=TTL_MS)
        assert (state.watermark, state.is_rebuilding) == (watermark(0), False)

    async def test_a_batch_may_make_readers_wait_without_a_wipe(self, harness: ViewHarness) -> None:
        ownership = await harness.own()

        await harness.view.apply(ownership, make_batch(0, 1, is_rebuilding=True))

        assert (await harness.view.locate(SHARD, execution_id(1))).is_rebuilding
        await harness.view.apply(ownership, make_batch(1, 2))
        assert not (await harness.view.locate(SHARD, execution_id(1))).is_rebuilding
