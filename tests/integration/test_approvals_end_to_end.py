"""An approval from the block to the end of its execution: door, log, projector, view, dispatcher and agent together."""

from collections.abc import AsyncIterator

import pytest_asyncio
from nats.aio.client import Client
from redis.asyncio import Redis

from kernel.domain.addresses import LOOPBACK_NETWORKS
from schemas.entries import ApprovalTerms
from tests.support.approvals import TARGET, approval, ask, dispatching
from tests.support.door import Rig, Run, rig_on_servers
from tests.support.scripted_agent import ScriptedAgent, is_quiet

LEASE_SECONDS = 10.0


@pytest_asyncio.fixture
async def rig(
    nats_url: str, redis_url: str, fresh_nats: Client, fresh_redis: Redis, agent: ScriptedAgent
) -> AsyncIterator[Rig]:
    settings = {"lease_seconds": LEASE_SECONDS, "webhook_allow_networks": LOOPBACK_NETWORKS}
    async with rig_on_servers(nats_url, redis_url, **settings) as rig, dispatching(rig):
        await rig.register(webhook_url=agent.url)
        yield rig


async def next_run(rig: Rig, agent: ScriptedAgent, execution_id: str, count: int) -> Run:
    """The run that the agent's n-th webhook starts."""
    webhook = await agent.hears(count)
    assert webhook.execution_id == execution_id
    return Run(rig, execution_id, webhook.lease)


async def test_a_granted_step_runs_under_a_new_dispatch_and_the_execution_ends(rig: Rig, agent: ScriptedAgent) -> None:
    execution_id = await rig.create()
    first = await next_run(rig, agent, execution_id, 1)
    await first.complete_step(await first.proceed("look", {}), {"found": 3})
    asked = await ask(first)
    assert (await first.heartbeat()).status_code == 204

    granted = await rig.call("POST", f"{asked.path}/grant")

    assert granted.status_code == 204
    second = await next_run(rig, agent, execution_id, 2)
    assert (second.lease.dispatch_id != first.lease.dispatch_id, second.lease.attempt) == (True, 1)
    assert (await first.heartbeat()).json()["code"] == "lease_superseded"
    assert (await second.submit("look", {})).json()["result"] == {"found": 3}
    assert await second.proceed(TARGET) == asked.step_id
    assert (await second.complete_step(asked.step_id, {"sent": True})).json() == {"decision": "recorded"}
    assert (await second.complete("done")).status_code == 204
    execution = (await rig.call("GET", f"/v0/executions/{execution_id}")).json()
    assert (execution["status"], execution["output"]) == ("completed", "done")


async def test_a_step_that_timed_out_is_denied_to_the_dispatch_that_follows(rig: Rig, agent: ScriptedAgent) -> None:
    execution_id = await rig.create()
    first = await next_run(rig, agent, execution_id, 1)
    asked = await ask(first, terms=ApprovalTerms(timeout_ms=300))

    second = await next_run(rig, agent, execution_id, 2)

    decision = (await second.submit(TARGET)).json()
    assert (decision["decision"], decision["reason"]) == ("denied", "approval_timeout")
    late = await rig.call("POST", f"{asked.path}/grant")
    assert (late.status_code, late.json()["details"]["status"]) == (409, "expired")
    shown = await approval(rig, asked)
    assert (shown["rationale"], shown["decided_by"]) == ("timeout", "")
    assert [each["id"] for each in (await rig.call("GET", "/v0/approvals?status=expired")).json()] == [shown["id"]]


async def test_what_must_not_run_twice_holds_the_next_dispatch_back_until_it_has_ended(
    rig: Rig, agent: ScriptedAgent
) -> None:
    execution_id = await rig.create()
    first = await next_run(rig, agent, execution_id, 1)
    step_id = await first.proceed("pay", {}, idempotency="at_most_once")
    asked = await ask(first)
    assert (await rig.call("POST", f"{asked.path}/grant")).status_code == 204
    assert await is_quiet(agent, 1, 1.0)

    recorded = await first.complete_step(step_id, {"paid": True})

    assert recorded.json() == {"decision": "recorded"}
    second = await next_run(rig, agent, execution_id, 2)
    assert (await second.submit("pay", {}, idempotency="at_most_once")).json()["result"] == {"paid": True}
    assert (await first.complete_step(step_id, 1)).json()["code"] == "lease_superseded"
