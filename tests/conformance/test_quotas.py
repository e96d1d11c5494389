"""K109: a tenant over its quota waits inside the budget of its requests, is then refused, and slows nobody else."""

import asyncio
import secrets
import time
from typing import Any

import httpx
import pytest_asyncio

from tests.conformance.harness.answers import accepted, envelope
from tests.conformance.harness.kernel import Kernel
from tests.support.stack import Stack

SCOPES = ("executions:read", "executions:write", "agents:admin")
BUDGET_SECONDS = 25.0
RATE = 10


@pytest_asyncio.fixture
async def operator(kernel: Kernel, stack: Stack) -> Kernel:
    """The shared kernel with the operator's key."""
    return kernel.holding(stack.operator_key)


async def _tenant(operator: Kernel, **quotas: int) -> Kernel:
    """A new tenant with these quotas, reached with a key of its own."""
    tenant = f"tenant-{secrets.token_hex(6)}"
    accepted(await operator.post("/v0/tenants", {"id": tenant, "quotas": quotas}), 201)
    key = accepted(await operator.post("/v0/keys", {"name": "test", "scopes": SCOPES, "tenant": tenant}), 201)
    return operator.holding(key["key"])


async def _refused(sending: Any, quota: str) -> None:
    """Assert that a request waits for room, for as long as its budget lets it, and is refused then."""
    started_at = time.monotonic()
    response: httpx.Response = await sending
    waited_seconds = time.monotonic() - started_at
    found = envelope(response, 429, "rate_limited")
    assert found["details"] == {"reason": quota}
    assert int(response.headers["retry-after"]) >= 1
    assert BUDGET_SECONDS / 2 <= waited_seconds <= BUDGET_SECONDS + 5.0


async def test_k109_requests_over_quota_are_delayed_and_another_tenant_is_not(operator: Kernel) -> None:
    noisy, quiet = await _tenant(operator, requests_per_second=RATE), await _tenant(operator)
    started_at = time.monotonic()
    flood = [asyncio.create_task(noisy.get("/v0/agents")) for _ in range(5 * RATE)]

    answers = [accepted(await quiet.get("/v0/agents")) for _ in range(5 * RATE)]
    quiet_seconds = time.monotonic() - started_at

    assert answers == [[]] * 5 * RATE
    assert not all(task.done() for task in flood)
    assert {response.status_code for response in await asyncio.gather(*flood)} == {200}
    flood_seconds = time.monotonic() - started_at
    # A bucket's worth at once, and the rest at the rate; the other tenant sent as many one after the other meanwhile.
    assert 3.5 <= flood_seconds <= 10.0
    assert quiet_seconds < flood_seconds


async def test_k109_where_no_room_comes_inside_the_budget_the_answer_is_429(operator: Kernel) -> None:
    crowded, sated = await _tenant(operator, live_executions=1), await _tenant(operator, bytes_per_day=2000)
    agent, other = await crowded.agent(), await sated.agent()
    body = {"agent_id": agent.id}
    first = accepted(await crowded.post("/v0/executions", body), 201)

    await asyncio.gather(
        _refused(crowded.post("/v0/executions", body), "live_executions"),
        _refused(sated.post("/v0/executions", {"agent_id": other.id, "input": "x" * 2000}), "bytes_per_day"),
    )

    # What was refused did not happen, and with room there is one again.
    assert [each["id"] for each in accepted(await crowded.get("/v0/executions"))["executions"]] == [first["id"]]
    assert accepted(await sated.get("/v0/executions"))["executions"] == []
    accepted(await crowded.cancel(first["id"]), 204)
    accepted(await crowded.post("/v0/executions", body), 201)
