"""Properties of the view that hold for every history: it remembers no path, and both adapters read alike."""

from collections.abc import Mapping, Sequence
from itertools import product

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from kernel.ports import ApprovalChange, ApprovalQuery, Batch, ExecutionChange, ExecutionQuery, View
from kernel.view.memory import MemoryView
from schemas.entries import Lease
from schemas.events import APPROVAL_STATUSES, ApprovalStatus
from schemas.records import Approval, ApprovalRecord, Header
from tests.contract.view_harness import SHARD, RedisHarness
from tests.support.records import (
    CREATED_AT_US,
    STREAM_CREATED_AT,
    approval_id,
    change,
    dispatch_id,
    make_approval,
    make_batch,
    make_dispatch,
    make_header,
)
from tests.support.views import open_view

EXECUTIONS = 5
TENANTS = ("acme", "globex")
AGENTS = ("researcher", "writer")
STATUSES = ("running", "blocked", "completed", "failed", "cancelled")
STATES = ("due", "waiting", "in_flight", "acknowledged", "used_up", "retired", "held")
APPROVALS = 3
"""Of one execution."""

fast = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Moment(msgspec.Struct, frozen=True):
    """What one change makes of one execution."""

    number: int
    status: str
    state: str
    due_at: int
    duty_seq: int
    attempt: int
    renewed_seq: int
    deadline_at: int | None
    is_halted: bool
    timeout_at: int
    approvals: dict[int, ApprovalStatus]
    """What becomes of approvals, by their number within the execution."""

    def header(self, records: Mapping[int, ApprovalRecord]) -> Header:
        """The header, given all approvals that the execution has by now."""
        pending = [record for record in records.values() if record.status == "pending"]
        return make_header(
            self.number,
            tenant=TENANTS[self.number % 2],
            agent_id=AGENTS[self.number // 2 % 2],
            status=self.status,
            dispatch=msgspec.structs.replace(
                make_dispatch(attempt=self.attempt, due_at=self.due_at, duty_seq=self.duty_seq), state=self.state
            ),
            lease=Lease(dispatch_id=dispatch_id(1), attempt=self.attempt) if self.attempt else None,
            renewed_seq=self.renewed_seq,
            deadline_at=self.deadline_at,
            halted="damaged" if self.is_halted else "",
            approval=Approval(pending[0].approval_id, pending[0].step_id, self.timeout_at) if pending else None,
            field_count=1 + len(records),
        )


moments = st.builds(
    Moment,
    number=st.integers(0, EXECUTIONS - 1),
    status=st.sampled_from(STATUSES),
    state=st.sampled_from(STATES),
    due_at=st.sampled_from([CREATED_AT_US, CREATED_AT_US + 1_500, 4_000_000_000_000_000]),
    duty_seq=st.integers(1, 3),
    attempt=st.integers(0, 2),
    renewed_seq=st.integers(0, 3),
    deadline_at=st.sampled_from([None, CREATED_AT_US, 3_900_000_000_000_000]),
    is_halted=st.booleans(),
    timeout_at=st.sampled_from([CREATED_AT_US, CREATED_AT_US + 1_500, 3_900_000_000_000_000]),
    approvals=st.dictionaries(st.integers(0, APPROVALS - 1), st.sampled_from(APPROVAL_STATUSES), max_size=2),
)
histories = st.lists(st.lists(moments, max_size=4, unique_by=lambda moment: moment.number), max_size=6)


def batches_of(history: Sequence[Sequence[Moment]]) -> tuple[list[Batch], list[ExecutionChange]]:
    """The batches of a history, and the one change of each execution that leads to the same end at once."""
    last: dict[int, Header] = {}
    records: dict[int, dict[int, ApprovalRecord]] = {}
    batches: list[Batch] = []
    for seq, step in enumerate(history):
        changes: list[ExecutionChange] = []
        for moment in step:
            known = records.setdefault(moment.number, {})
            approvals = approvals_of(moment, known)
            header = moment.header(known)
            changes.append(change(header, before=last.get(moment.number), approvals=approvals))
            last[moment.number] = header
        batches.append(make_batch(seq, seq + 1, *changes))
    wholes = [
        change(header, approvals=tuple(ApprovalChange(before=None, after=each) for each in records[number].values()))
        for number, header in last.items()
    ]
    return batches, wholes


def approvals_of(moment: Moment, known: dict[int, ApprovalRecord]) -> tuple[ApprovalChange, ...]:
    """What a moment does to the approvals of its execution, which are known by number."""
    changes: list[ApprovalChange] = []
    for number, status in moment.approvals.items():
        before = known.get(number)
        known[number] = make_approval(moment.number * APPROVALS + number, status=status)
        changes.append(ApprovalChange(before=None if before is None else before.status, after=known[number]))
    return tuple(changes)


async def everything(view: View) -> list[object]:
    """All that doors can read of the executions there may be."""
    read: list[object] = []
    for number in range(EXECUTIONS):
        read.append(await view.locate(SHARD, make_header(number).execution_id))
    for tenant, agent_id, status in product(TENANTS, ("", *AGENTS), ("", *STATUSES)):
        for limit in (2, 9):
            query = ExecutionQuery(agent_id=agent_id, status=status, limit=limit)
            read.append(await view.executions(SHARD, tenant, query))
    executions = [make_header(number).execution_id for number in range(EXECUTIONS)]
    for tenant, status, limit in product(TENANTS, ("", *APPROVAL_STATUSES), (2, 99)):
        whom: list[dict[str, str]] = [{}, *({"agent_id": each} for each in AGENTS)]
        for asked in (*whom, *({"execution_id": each} for each in executions)):
            query = ApprovalQuery(status=status, limit=limit, after_id=approval_id(2), **asked)
            read.append(await view.approvals(SHARD, tenant, query))
    for tenant, number in product(TENANTS, range(EXECUTIONS * APPROVALS)):
        read.append(await view.approvals(SHARD, tenant, ApprovalQuery(approval_id=approval_id(number))))
    for tenant, agent_id in product(TENANTS, AGENTS):
        read.append(await view.live_executions(SHARD, tenant, agent_id))
    return read


@fast
@given(history=histories)
async def test_both_adapters_read_alike_after_any_history(
    redis_url: str, fresh_redis: Redis, history: list[list[Moment]]
) -> None:
    await fresh_redis.flushall()
    batches, _ = batches_of(history)
    memory = MemoryView()
    async with open_view(redis_url) as redis:
        for view in (memory, redis):
            await apply_all(view, batches)

        assert await everything(redis) == await everything(memory)


@fast
@given(history=histories)
async def test_redis_remembers_no_path(redis_url: str, fresh_redis: Redis, history: list[list[Moment]]) -> None:
    await fresh_redis.flushall()
    batches, last = batches_of(history)
    async with open_view(redis_url) as view:
        await apply_all(view, batches)
        by_the_path = await RedisHarness(view, fresh_redis).contents()
        await fresh_redis.flushall()
        await apply_all(view, [make_batch(0, 1, *last)])

        assert by_the_path == await RedisHarness(view, fresh_redis).contents()


async def apply_all(view: View, batches: Sequence[Batch]) -> None:
    ownership = await view.acquire(SHARD, owner="one", ttl_ms=60_000, lease_ms=0)
    assert ownership is not None
    await view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0)
    await view.apply(ownership, make_batch(0, 0))
    for batch in batches:
        await view.apply(ownership, batch)
