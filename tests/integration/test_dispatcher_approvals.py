"""The dispatcher and approvals, on NATS and Valkey: expiry in time, once, and the dispatch that follows a decision."""

import time

import pytest
from msgspec.structs import replace

from kernel.domain.identity import shard_of
from schemas.entries import ApprovalDecided, ApprovalTerms, Lease
from schemas.ids import new_uuid7
from schemas.records import ApprovalRecord, approval_field, decode_approval
from tests.support.approvals import Asked, asked_of, asking_entry
from tests.support.dispatching import LIMITS, LONG_LEASE, TENANT, Kernel, Kernels, stamp
from tests.support.scripted_agent import ScriptedAgent, is_quiet
from tests.support.wait import wait_until_async

EXPIRY_SECONDS_MAX = 1.0


async def asked_by(kernel: Kernel, execution_id: str, lease: Lease, *, timeout_ms: int = 60_000) -> Asked:
    entry = asking_entry(execution_id, lease, shards=kernel.settings.shards, terms=ApprovalTerms(timeout_ms=timeout_ms))
    await kernel.append(entry)
    await kernel.tells(execution_id, "execution.blocked")
    return asked_of(entry)


async def decided(kernel: Kernel, asked: Asked) -> None:
    await kernel.append(
        ApprovalDecided(
            **stamp(asked.execution_id),
            approval_id=asked.approval_id,
            decision="granted",
            principal="test",
            decided_by="test",
            asserted_by="",
            rationale="",
            dispatch_id=new_uuid7(),
        )
    )


async def record(kernel: Kernel, asked: Asked) -> ApprovalRecord:
    shard = shard_of(asked.execution_id, kernel.settings.shards)
    field = approval_field(asked.approval_id)
    seen = await kernel.view.fields(shard, TENANT, asked.execution_id, (field,))
    assert seen.value[0] is not None
    return decode_approval(seen.value[0])


@pytest.mark.alone
async def test_an_approval_that_nobody_decides_expires_in_time_and_the_execution_goes_on(
    kernels: Kernels, agent: ScriptedAgent
) -> None:
    async with kernels(agent, dispatchers=2) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        first = await agent.hears(1)
        asked = await asked_by(kernel, execution_id, first.lease, timeout_ms=1_500)
        second = await agent.hears(2)
        expired = await record(kernel, asked)
        story = await kernel.story(execution_id)

    assert (expired.status, expired.rationale, expired.decided_by) == ("expired", "timeout", "")
    assert expired.decided_at is not None
    assert 0 <= expired.decided_at - expired.timeout_at <= EXPIRY_SECONDS_MAX * 1_000_000
    assert (second.dispatch_id != first.dispatch_id, second.dispatch_attempt) == (True, 1)
    resumed = story.index("approval.expired")
    assert story[resumed : resumed + 4] == [
        "approval.expired",
        "step.denied",
        "execution.resumed",
        "dispatch.queued 0",
    ]
    assert story.count("approval.expired") == 1


async def test_a_decision_in_time_leaves_nothing_to_expire(kernels: Kernels, agent: ScriptedAgent) -> None:
    async with kernels(agent) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        asked = await asked_by(kernel, execution_id, (await agent.hears(1)).lease, timeout_ms=1_200)
        await decided(kernel, asked)
        await agent.hears(2)
        assert await is_quiet(agent, 2, 2.0)

        assert (await record(kernel, asked)).status == "granted"
        assert "approval.expired" not in await kernel.story(execution_id)


async def test_an_approval_expires_although_no_dispatcher_lived_at_its_time(
    kernels: Kernels, agent: ScriptedAgent
) -> None:
    async with kernels(agent, dispatchers=0) as kernel:
        dispatcher = kernel.start_dispatcher()
        execution_id = await kernel.create(limits=LONG_LEASE)
        lease = (await agent.hears(1)).lease
        dispatcher.cancel()
        asked = await asked_by(kernel, execution_id, lease, timeout_ms=100)
        pending = await record(kernel, asked)
        await wait_until_async(lambda: time.time_ns() // 1000 > pending.timeout_at, "the time to be over")
        kernel.start_dispatcher()
        await kernel.tells(execution_id, "approval.expired", deadline_seconds=3.0)


async def test_a_block_outlasts_the_lease_without_a_redelivery(kernels: Kernels, agent: ScriptedAgent) -> None:
    async with kernels(agent) as kernel:
        execution_id = await kernel.create(limits=replace(LIMITS, lease_ms=500, unacknowledged_lease_ms=500))
        first = await agent.hears(1)
        asked = await asked_by(kernel, execution_id, first.lease)
        assert await is_quiet(agent, 1, 2.0)

        await decided(kernel, asked)
        second = await agent.hears(2)

    assert (second.dispatch_id != first.dispatch_id, second.dispatch_attempt) == (True, 1)
