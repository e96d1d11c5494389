"""Contract of the view: approvals are found by id, listed by status, agent and execution, and due when time is over."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import pytest

from kernel.ports import ApprovalQuery, ExecutionChange, ListedApproval
from schemas.events import APPROVAL_STATUSES, ApprovalStatus
from schemas.records import ApprovalRecord, Header
from tests.contract.view_due import due_in
from tests.contract.view_harness import SHARD, ViewHarness
from tests.support.records import (
    STREAM_CREATED_AT,
    approval_id,
    asking_header,
    change,
    ended,
    execution_id,
    make_approval,
    make_batch,
    make_dispatch,
    make_header,
    new,
)

AGENTS = ("researcher", "writer", "writer:status:pending")


def listed(record: ApprovalRecord, header: Header) -> ListedApproval:
    return ListedApproval(execution_id=header.execution_id, agent_id=header.agent_id, record=record)


def decided(record: ApprovalRecord, status: ApprovalStatus = "granted") -> ApprovalRecord:
    return msgspec.structs.replace(record, status=status, decided_by="boss", decided_at=record.created_at + 1)


async def page(harness: ViewHarness, *, tenant: str = "acme", **asked: str) -> list[ListedApproval]:
    return list((await harness.view.approvals(SHARD, tenant, ApprovalQuery(**asked))).value)  # type: ignore[arg-type]  # statuses are texts here


async def population_of(harness: ViewHarness) -> list[ListedApproval]:
    """Three executions with approvals of every status; what is returned is sorted by id."""
    ownership = await harness.own()
    found: list[ListedApproval] = []
    changes = [with_approvals(number, agent_id, found) for number, agent_id in enumerate(AGENTS, start=1)]
    foreign = change(
        asking_header(make_approval(99), 9, tenant="globex", field_count=2), approvals=(new(make_approval(99)),)
    )
    await harness.view.apply(ownership, make_batch(0, 4, *changes, foreign))
    return sorted(found, key=lambda each: each.record.approval_id)


def with_approvals(number: int, agent_id: str, found: list[ListedApproval]) -> ExecutionChange:
    records: Sequence[ApprovalRecord] = [
        make_approval(number + 3 * at, status=APPROVAL_STATUSES[(number + at) % 4]) for at in range(8)
    ]
    header = make_header(number, agent_id=agent_id, field_count=9)
    found += [listed(record, header) for record in records]
    return change(header, approvals=tuple(map(new, records)))


class ApprovalSuite:
    async def test_an_approval_is_found_by_its_id_alone_and_by_its_tenant_alone(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        first, second = make_approval(1), make_approval(2)
        header = asking_header(second, agent_id="team:writer.v2", field_count=3)
        await harness.view.apply(ownership, make_batch(0, 5, change(header, approvals=(new(first), new(second)))))

        found = await harness.view.approvals(SHARD, "acme", ApprovalQuery(approval_id=second.approval_id))

        assert (found.watermark_seq, found.is_rebuilding, found.value) == (5, False, (listed(second, header),))
        assert await page(harness, approval_id=approval_id(3)) == []
        assert await page(harness, approval_id=second.approval_id, tenant="globex") == []
        assert await page(harness, approval_id=second.approval_id, after_id=second.approval_id) == []
        assert (await harness.view.approvals(SHARD + 1, "acme", ApprovalQuery())).value == ()

    async def test_approvals_of_a_shard_without_a_watermark_say_so(self, harness: ViewHarness) -> None:
        found = await harness.view.approvals(SHARD, "acme", ApprovalQuery())

        assert (found.watermark_seq, found.value) == (-1, ())

    @pytest.mark.parametrize("status", ["", *APPROVAL_STATUSES])
    @pytest.mark.parametrize(
        "asked", [{}, {"agent_id": "writer"}, {"execution_id": execution_id(2)}, {"agent_id": "nobody"}]
    )
    @pytest.mark.parametrize("limit", [1, 4, 200])
    async def test_pages_show_every_match_once_and_the_oldest_first(
        self,
        harness: ViewHarness,
        status: ApprovalStatus | Literal[""],
        asked: dict[str, str],
        limit: int,
    ) -> None:
        population = await population_of(harness)
        query = ApprovalQuery(status=status, limit=limit, **asked)
        expected = [
            each
            for each in population
            if status in ("", each.record.status)
            and asked.get("agent_id", each.agent_id) == each.agent_id
            and asked.get("execution_id", each.execution_id) == each.execution_id
        ]

        shown: list[ListedApproval] = []
        while True:
            after_id = shown[-1].record.approval_id if shown else ""
            found = await harness.view.approvals(SHARD, "acme", msgspec.structs.replace(query, after_id=after_id))
            assert len(found.value) <= limit
            shown += found.value
            if len(found.value) < limit:
                break

        assert shown == expected
        assert bool(expected) == (asked != {"agent_id": "nobody"})

    async def test_an_execution_of_another_agent_has_none_of_the_approvals_asked_for(
        self, harness: ViewHarness
    ) -> None:
        await population_of(harness)

        assert await page(harness, agent_id="researcher", execution_id=execution_id(2)) == []

    async def test_a_decided_approval_moves_between_the_lists(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        approval = make_approval()
        before = asking_header(approval, field_count=2)
        await harness.view.apply(ownership, make_batch(0, 1, change(before, approvals=(new(approval),))))

        after, granted = make_header(field_count=2), decided(approval)
        moved = change(after, before=before, approvals=(ended(granted),))
        await harness.view.apply(ownership, make_batch(1, 2, moved))

        for asked in ({}, {"agent_id": "researcher"}, {"execution_id": execution_id(1)}):
            assert await page(harness, status="pending", **asked) == []
            assert await page(harness, status="granted", **asked) == [listed(granted, after)]
            assert await page(harness, **asked) == [listed(granted, after)]

    async def test_an_approval_folded_anew_with_another_status_is_listed_under_that_alone(
        self, harness: ViewHarness
    ) -> None:
        ownership = await harness.own()
        approval = make_approval()
        asking = asking_header(approval, field_count=2)
        await harness.view.apply(ownership, make_batch(0, 1, change(asking, approvals=(new(approval),))))

        denied, header = decided(approval, "denied"), make_header(field_count=2)
        await harness.view.apply(ownership, make_batch(1, 2, change(header, approvals=(new(denied),))))

        assert await page(harness, status="pending") == []
        assert await page(harness, status="denied") == [listed(denied, header)]
        assert await page(harness) == [listed(denied, header)]

    async def test_a_wipe_drops_the_lists_of_approvals_and_a_rebuild_brings_them_back(
        self, harness: ViewHarness
    ) -> None:
        ownership = await harness.own()
        approval = make_approval()
        asked = change(asking_header(approval, field_count=2), approvals=(new(approval),))
        await harness.view.apply(ownership, make_batch(0, 1, asked))

        await harness.view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0)
        during = await harness.view.approvals(SHARD, "acme", ApprovalQuery())
        await harness.view.apply(ownership, make_batch(0, 1, asked))

        assert (during.is_rebuilding, during.value) == (True, ())
        assert await page(harness, status="pending") == [listed(approval, asked.after)]


class ApprovalDutySuite:
    async def test_a_pending_approval_is_due_when_its_time_is_over(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        approval = make_approval(timeout_at=await due_in(harness, 3_000))
        asked = change(asking_header(approval, field_count=2), approvals=(new(approval),))
        await harness.view.apply(ownership, make_batch(0, 1, asked))

        before = await harness.take_due()
        await harness.pass_time(3_001)
        work = await harness.view.take_due(SHARD, items_max=9, hold_ms=5_000, lease_ms=1)

        assert before == []
        assert [(item.kind, item.agent_id, item.header.approval) for item in work.items] == [
            ("approval", "researcher", asked.after.approval)
        ]

    @pytest.mark.parametrize("parts", [{}, {"halted": "damaged"}])
    async def test_an_approval_that_is_decided_or_halted_is_not_due(
        self, harness: ViewHarness, parts: dict[str, str]
    ) -> None:
        ownership = await harness.own()
        approval = make_approval()
        before = asking_header(approval, field_count=2)
        await harness.view.apply(ownership, make_batch(0, 1, change(before, approvals=(new(approval),))))

        acknowledged = make_header(field_count=2, dispatch=make_dispatch("used_up", attempt=1))
        after = msgspec.structs.replace(before, **parts) if parts else acknowledged
        await harness.view.apply(ownership, make_batch(1, 2, change(after, before=before)))

        assert await harness.take_due() == []

    async def test_a_later_approval_due_at_the_same_time_is_not_covered_by_the_hold_of_the_first(
        self, harness: ViewHarness
    ) -> None:
        ownership = await harness.own()
        first, second = make_approval(1), make_approval(2)
        before = asking_header(first, field_count=2)
        await harness.view.apply(ownership, make_batch(0, 1, change(before, approvals=(new(first),))))
        held = await harness.take_due()

        after = asking_header(second, field_count=3)
        both = (ended(decided(first)), new(second))
        await harness.view.apply(ownership, make_batch(1, 2, change(after, before=before, approvals=both)))

        assert held == await harness.take_due() == [("approval", "acme", execution_id(1))]
