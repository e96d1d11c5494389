"""Contract of the view: a batch is applied whole, once, by the owner, to the view it was folded from."""

import msgspec
import pytest

from kernel.domain.errors import InvariantBroken, OwnershipLost, ViewUnavailable
from kernel.ports import Batch, CreateKey, ExecutionChange, ExecutionQuery, Fetch, Ownership, Parked, StoredAnswer
from kernel.view.limits import ANSWER_MS, SLICE_MS
from schemas.records import HEADER_FIELD, encode_record, order_field
from tests.contract.view_harness import SHARD, TTL_MS, ViewHarness
from tests.support.records import (
    CREATED_AT_MS,
    LEASE_MS,
    change,
    ended_header,
    entry_id,
    execution_id,
    leased_header,
    make_batch,
    make_header,
    step_fields,
    watermark,
)


class BatchSuite:
    async def test_a_batch_is_seen_whole_at_its_watermark(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        header, steps = make_header(field_count=3), step_fields(1, 2)

        await harness.view.apply(ownership, make_batch(0, 7, change(header, fields=steps)))

        names = (HEADER_FIELD, b"unknown", *steps)
        seen = await harness.view.fields(SHARD, "acme", header.execution_id, names)
        assert (seen.watermark_seq, seen.is_rebuilding) == (7, False)
        assert seen.value == (encode_record(header), None, *steps.values())
        assert await harness.watermark(ownership) == watermark(7)

    async def test_a_load_tells_values_length_and_listing(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        steps = step_fields(1, 2)
        await harness.view.apply(ownership, make_batch(0, 1, change(make_header(), fields=steps)))
        unknown = Fetch("acme", execution_id(2), (HEADER_FIELD,))
        without_fields = Fetch("acme", execution_id(1), ())
        known = Fetch("acme", execution_id(1), (*reversed(steps), b"unknown", HEADER_FIELD))

        found = await harness.view.load(SHARD, [unknown, without_fields, known])

        assert [(one.values, one.field_count, one.is_listed) for one in found[:2]] == [
            ((None,), 0, False),
            ((), 3, True),
        ]
        assert found[2].values == (*reversed(steps.values()), None, encode_record(make_header()))
        assert (found[2].field_count, found[2].is_listed) == (3, True)
        assert await harness.view.load(SHARD, []) == []

    async def test_a_zombie_changes_nothing(self, harness: ViewHarness) -> None:
        zombie = await harness.own()
        await harness.pass_time(TTL_MS)
        present = await harness.take(owner="two")

        with pytest.raises(OwnershipLost):
            await harness.view.apply(zombie, make_batch(0, 1, change(make_header())))

        state = await harness.view.keep(present, ttl_ms=TTL_MS)
        assert (state.watermark, state.is_dirty) == (watermark(0), False)
        assert (await harness.view.locate(SHARD, execution_id(1))).value is None

    async def test_a_batch_folded_from_another_watermark_changes_nothing(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 5))

        with pytest.raises(OwnershipLost):
            await harness.view.apply(ownership, make_batch(4, 6, change(make_header())))

        found = await harness.view.locate(SHARD, execution_id(1))
        assert (found.watermark_seq, found.is_rebuilding, found.value) == (5, False, None)

    async def test_a_batch_sent_again_after_it_was_applied_changes_nothing(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        header = leased_header()
        batch = make_batch(0, 1, change(header))
        await harness.view.apply(ownership, batch)
        await harness.live_for(LEASE_MS)
        taken = await harness.take_due()

        await harness.view.apply(ownership, batch)

        assert taken == [("lease", "acme", header.execution_id)]
        assert header.lease is not None
        assert not await harness.view.renew_lease(SHARD, header.execution_id, header.lease, lease_ms=LEASE_MS)

    async def test_a_view_that_went_backwards_loses_its_owner_and_gets_a_lease_floor(
        self, harness: ViewHarness
    ) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header())))
        await harness.live_for(LEASE_MS)
        await harness.remember()
        await harness.view.apply(ownership, make_batch(1, 2))
        await harness.go_back()

        with pytest.raises(OwnershipLost):
            await harness.view.apply(ownership, make_batch(2, 3))
        await harness.view.release(ownership)
        next_owner = await harness.take(owner="two", lease_ms=LEASE_MS)

        assert await harness.watermark(next_owner) == watermark(1)
        assert await harness.take_due() == []
        await harness.live_for(LEASE_MS)
        assert await harness.take_due() == [("lease", "acme", execution_id(1))]

    async def test_a_server_that_lost_everything_has_no_owner_and_no_watermark(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.lose_everything()

        with pytest.raises(OwnershipLost):
            await harness.view.apply(ownership, make_batch(0, 1))

        assert await harness.watermark(await harness.take(owner="two")) is None

    async def test_an_execution_folded_anew_has_its_new_fields_alone(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(make_header(), fields=step_fields(1, 2))))

        await harness.view.apply(ownership, make_batch(1, 2, change(make_header(), fields=step_fields(3))))

        found = await harness.view.load(SHARD, [Fetch("acme", execution_id(1), tuple(step_fields(1, 2, 3)))])
        assert found[0].values == (None, None, *step_fields(3).values())
        assert found[0].field_count == 2

    async def test_an_execution_folded_anew_has_its_new_due_work_alone(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        leased, ended = leased_header(), ended_header()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased)))

        await harness.view.apply(ownership, make_batch(1, 2, change(ended)))

        work = await harness.view.take_due(SHARD, items_max=9, hold_ms=0, lease_ms=0)
        assert work.next_due_ms is None
        assert leased.lease is not None
        assert not await harness.view.renew_lease(SHARD, ended.execution_id, leased.lease, lease_ms=LEASE_MS)
        assert (await harness.view.live_executions(SHARD, "acme", "researcher")).value == 0

    async def test_tenants_with_equal_ids_are_apart(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        ours, theirs = make_header(tenant="acme"), make_header(tenant="globex", agent_id="writer")
        changes = (change(ours, fields=step_fields(1)), change(theirs, fields=step_fields(2)))
        keys = (CreateKey("acme", b"digest", b"ours"), CreateKey("globex", b"digest", b"theirs"))

        await harness.view.apply(ownership, make_batch(0, 1, *changes, create_keys=keys))

        fields = tuple(step_fields(1, 2))
        mine, yours, nobodys = await harness.view.load(
            SHARD, [Fetch(tenant, execution_id(1), fields) for tenant in ("acme", "globex", "initech")]
        )
        assert mine.values == (step_fields(1)[fields[0]], None)
        assert yours.values == (None, step_fields(2)[fields[1]])
        assert (nobodys.values, nobodys.field_count) == ((None, None), 0)
        wanted = [("globex", b"digest"), ("initech", b"digest"), ("acme", b"digest"), ("acme", b"other")]
        assert await harness.view.load_create_keys(SHARD, wanted) == [b"theirs", None, b"ours", None]
        for tenant, header in (("acme", ours), ("globex", theirs)):
            assert (await harness.view.executions(SHARD, tenant, ExecutionQuery())).value == (header,)
        assert (await harness.view.live_executions(SHARD, "globex", "researcher")).value == 0
        assert sorted(await harness.take_due()) == [
            ("delivery", "acme", execution_id(1)),
            ("delivery", "globex", execution_id(1)),
        ]

    async def test_parked_entries_are_kept_with_their_reasons(self, harness: ViewHarness) -> None:
        ownership = await harness.own()

        await harness.view.apply(ownership, make_batch(0, 4, parked=(Parked(3, "damaged"), Parked(4, "unknown"))))

        assert await harness.parked() == {3: "damaged", 4: "unknown"}

    async def test_create_keys_of_no_batch_are_none(self, harness: ViewHarness) -> None:
        await harness.own()

        assert await harness.view.load_create_keys(SHARD, []) == []


class LargeBatchSuite:
    async def test_a_batch_of_four_thousand_commands_and_six_mebibytes_is_applied(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        value = bytes(3 * 1024)
        headers = [make_header(number) for number in range(1, 2_001)]
        changes = [change(header, fields={b"e1": value}) for header in headers]
        answers = tuple(StoredAnswer(entry_id(number), b"answer") for number in range(2_000))

        await harness.view.apply(ownership, make_batch(0, 1, *changes, answers=answers))

        fetches = [Fetch("acme", header.execution_id, (b"e1",)) for header in headers]
        found = await harness.view.load(SHARD, fetches)
        assert all((one.values, one.field_count, one.is_listed) == ((value,), 2, True) for one in found)
        assert len(await harness.view.recent_entry_ids(SHARD)) == 2_000
        assert (await harness.view.live_executions(SHARD, "acme", "researcher")).value == 2_000

    async def test_one_execution_with_more_fields_than_a_script_can_unpack_is_written_and_read(
        self, harness: ViewHarness
    ) -> None:
        ownership = await harness.own()
        fields = {order_field(ordinal): b"%d" % ordinal for ordinal in range(9_999)}

        await harness.view.apply(ownership, make_batch(0, 1, change(make_header(), fields=fields)))

        names = tuple(fields)
        loaded = await harness.view.load(SHARD, [Fetch("acme", execution_id(1), names)] * 2)
        seen = await harness.view.fields(SHARD, "acme", execution_id(1), names)
        assert [(one.values, one.field_count) for one in loaded] == [(tuple(fields.values()), 10_000)] * 2
        assert seen.value == tuple(fields.values())


class HalfBatchSuite:
    async def test_a_view_torn_by_a_half_applied_batch_says_so(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header(1))))
        await harness.live_for(LEASE_MS)

        await self._tear(harness, ownership)

        state = await harness.view.keep(ownership, ttl_ms=TTL_MS)
        assert (state.watermark, state.is_dirty) == (watermark(1), True)
        located = await harness.view.locate(SHARD, execution_id(1))
        listed = await harness.view.executions(SHARD, "acme", ExecutionQuery())
        assert located.is_rebuilding
        assert listed.is_rebuilding
        assert await harness.take_due() == []
        lease = leased_header(1).lease
        assert lease is not None
        assert not await harness.view.renew_lease(SHARD, execution_id(1), lease, lease_ms=LEASE_MS)

    async def test_the_same_batch_mends_a_torn_view(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header(1))))
        batch = await self._tear(harness, ownership)

        await harness.view.apply(ownership, batch)

        state = await harness.view.keep(ownership, ttl_ms=TTL_MS)
        assert (state.watermark, state.is_dirty) == (watermark(2), False)
        found = await harness.view.load(
            SHARD, [Fetch("acme", execution_id(number), (HEADER_FIELD,)) for number in (1, 2, 3)]
        )
        headers = [leased_header(1, renewed_seq=9), make_header(2), make_header(3)]
        assert [one.values for one in found] == [(encode_record(header),) for header in headers]
        assert [item[2] for item in await harness.take_due()] == [execution_id(2), execution_id(3)]

    async def test_no_other_batch_is_applied_to_a_torn_view(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header(1))))
        await self._tear(harness, ownership)

        with pytest.raises(OwnershipLost):
            await harness.view.apply(ownership, make_batch(1, 3, change(make_header(7))))

        state = await harness.view.keep(await harness.take(owner="two"), ttl_ms=TTL_MS)
        assert (state.watermark, state.is_dirty) == (watermark(1), True)
        assert (await harness.view.locate(SHARD, execution_id(7))).value is None

    async def test_a_wipe_mends_a_torn_view(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(leased_header(1))))
        await self._tear(harness, ownership)

        empty = await harness.view.wipe(ownership, created_at="new", lease_ms=0)

        state = await harness.view.keep(ownership, ttl_ms=TTL_MS)
        assert (state.watermark, state.is_dirty) == (empty, False)
        found = await harness.view.load(SHARD, [Fetch("acme", execution_id(n), ()) for n in (1, 2, 3)])
        assert [one.field_count for one in found] == [0, 0, 0]

    async def _tear(self, harness: ViewHarness, ownership: Ownership) -> Batch:
        """Let a batch fail half-way and return it."""
        before = leased_header(1)
        after = leased_header(1, renewed_seq=9)
        changes = (change(after, before=before), change(make_header(2)), change(make_header(3)))
        batch = make_batch(1, 2, *changes, parked=(Parked(2, "damaged"),))
        await harness.break_next_apply()
        with pytest.raises(ViewUnavailable):
            await harness.view.apply(ownership, batch)
        await harness.repair()
        return batch


class AnswerSuite:
    async def test_answers_are_kept_for_two_minutes_and_not_for_ever(self, harness: ViewHarness) -> None:
        ownership = await harness.own(ttl_ms=10 * TTL_MS)
        stored = StoredAnswer(entry_id(1), b"answer")
        await harness.view.apply(ownership, make_batch(0, 1, answers=(stored,)))

        await harness.pass_time(120_000)
        kept = await harness.view.stored_answer(SHARD, stored.entry_id)
        kept_ids = await harness.view.recent_entry_ids(SHARD)
        await harness.pass_time(ANSWER_MS - 120_000)
        gone = await harness.view.stored_answer(SHARD, stored.entry_id)

        assert (kept.watermark_seq, kept.value) == (1, b"answer")
        assert kept_ids == [stored.entry_id]
        assert gone.value is None
        assert await harness.view.recent_entry_ids(SHARD) == []

    async def test_answers_expire_by_the_slice_of_their_entrys_time(self, harness: ViewHarness) -> None:
        ownership = await harness.own(ttl_ms=10 * TTL_MS)
        earlier = StoredAnswer(entry_id(1), b"earlier")
        later = StoredAnswer(entry_id(2, unix_ms=CREATED_AT_MS + SLICE_MS), b"later")
        await harness.view.apply(ownership, make_batch(0, 1, answers=(earlier,)))
        await harness.pass_time(SLICE_MS)
        await harness.view.apply(ownership, make_batch(1, 2, answers=(later,)))

        await harness.pass_time(ANSWER_MS - SLICE_MS)

        assert await harness.view.recent_entry_ids(SHARD) == [later.entry_id]
        assert (await harness.view.stored_answer(SHARD, earlier.entry_id)).value is None
        assert (await harness.view.stored_answer(SHARD, later.entry_id)).value == b"later"

    async def test_the_first_of_two_equal_batches_has_the_word(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        batch = make_batch(0, 1, answers=(StoredAnswer(entry_id(1), b"first"),))
        await harness.view.apply(ownership, batch)

        other = msgspec.structs.replace(batch, answers=(StoredAnswer(entry_id(1), b"second"),))
        await harness.view.apply(ownership, other)

        assert (await harness.view.stored_answer(SHARD, entry_id(1))).value == b"first"

    async def test_an_unknown_answer_is_none(self, harness: ViewHarness) -> None:
        await harness.own()

        assert (await harness.view.stored_answer(SHARD, entry_id(1))).value is None

    @pytest.mark.parametrize("fields", [0, 1, 3])
    async def test_a_batch_that_was_folded_from_other_fields_changes_nothing(
        self, harness: ViewHarness, fields: int
    ) -> None:
        ownership = await harness.own()
        whole, bystander = make_header(field_count=2), make_header(2)
        await harness.view.apply(ownership, make_batch(0, 1, change(whole, fields={b"own": b"1"}), change(bystander)))
        believed = make_header(field_count=fields)

        batch = make_batch(
            1, 2, change(bystander, before=bystander, fields={b"new": b""}), change(whole, before=believed)
        )
        with pytest.raises(InvariantBroken):
            await harness.view.apply(ownership, batch)

        assert (await harness.view.keep(ownership, ttl_ms=TTL_MS)).watermark == watermark(1)
        found = await harness.view.load(SHARD, [Fetch("acme", bystander.execution_id, (HEADER_FIELD, b"new"))])
        assert (found[0].values[1], found[0].field_count) == (None, 1)

    async def test_a_change_without_fields_is_no_change_of_the_hash(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        header = make_header()
        await harness.view.apply(ownership, make_batch(0, 1, change(header)))

        untouched = ExecutionChange(before=header, after=header, fields={})
        await harness.view.apply(ownership, make_batch(1, 2, untouched))

        found = await harness.view.load(SHARD, [Fetch("acme", header.execution_id, (HEADER_FIELD,))])
        assert (found[0].values, found[0].field_count) == ((encode_record(header),), 1)
