"""Real processes whose follower of the control stream stalls, while NATS answers all their other questions.

A proxy before NATS holds what is said about that one stream, so nothing but the follower can be the reason.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.conformance.harness.answers import accepted
from tests.conformance.harness.endpoint import accepting, serving
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.stacks import SETTINGS
from tests.support.control_stall import ControlStall, behind, control_stall
from tests.support.scripted_agent import pass_time
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

WITHIN_SECONDS = 2.0
BUDGET_SECONDS = 3
CHOSEN = SETTINGS | {
    "STEPWELL_MASTER_KEY": "a master key that the tests know",
    "STEPWELL_REQUEST_BUDGET": f"{BUDGET_SECONDS}s",
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A door and a projector whose followers never stall. There is no dispatcher but the one that a test starts."""
    with Stack.start(processes="apart", settings=CHOSEN, dispatchers=0) as running:
        yield running


@pytest_asyncio.fixture
async def kernel(stack: Stack) -> AsyncIterator[Kernel]:
    async with connected(stack.url, stack.api_key) as access:
        yield access


@pytest_asyncio.fixture
async def stall(stack: Stack) -> AsyncIterator[ControlStall]:
    async with control_stall(stack) as proxy:
        yield proxy


async def test_a_door_whose_follower_stalls_is_unready_within_two_seconds_and_lets_no_request_pass(
    stack: Stack, kernel: Kernel, stall: ControlStall
) -> None:
    agent = await kernel.agent()
    made = accepted(await kernel.post("/v0/keys", {"name": "lost", "scopes": ["agents:admin"]}), 201)
    async with behind(stall, stack, "door", CHOSEN) as process, connected(process.url, made["key"]) as behind_it:
        ready = f"{process.url}/v0/ready"
        await wait_until_async(lambda: _answers(behind_it, ready, 200), "the door to be ready")
        assert (await behind_it.get(f"/v0/agents/{agent.id}")).status_code == 200

        stall.stall()
        stalled_at = time.monotonic()
        await wait_until_async(
            lambda: _answers(behind_it, ready, 503), "the door to be unready", deadline_seconds=WITHIN_SECONDS
        )
        # Meanwhile its key is revoked where it can be, and the door behind the stall cannot know.
        accepted(await kernel.request("DELETE", f"/v0/keys/{made['id']}"), 204)
        await pass_time(stalled_at + WITHIN_SECONDS - time.monotonic())
        refused = await asyncio.gather(
            behind_it.get(f"/v0/agents/{agent.id}"),
            behind_it.holding(stack.api_key).get("/v0/executions"),
            agent_of(behind_it, agent).request("PUT", f"/v0/agents/{agent.id}/metadata", {"description": "late"}),
        )
        assert [each.status_code for each in refused] == [503, 503, 503]
        # It is unready for that alone: it lives, and so do the door beside it and the stream of entries.
        assert (await behind_it.get("/v0/health")).status_code == 200
        assert (await kernel.get("/v0/ready")).status_code == 200
        assert stall.held > 0

        stall.let_go()
        await wait_until_async(lambda: _answers(behind_it, ready, 200), "the door to be ready again")
        assert (await behind_it.get(f"/v0/agents/{agent.id}")).status_code == 401
        assert (await behind_it.holding(stack.api_key).get("/v0/executions")).status_code == 200
    assert accepted(await kernel.get(f"/v0/agents/{agent.id}"))["description"] is None


async def test_a_dispatcher_whose_follower_stalls_sends_nothing_and_then_by_what_holds_by_then(
    stack: Stack, kernel: Kernel, stall: ControlStall
) -> None:
    agent = await kernel.agent()
    async with behind(stall, stack, "dispatcher", CHOSEN), serving(accepting) as moved:
        await agent.start()

        stall.stall()
        await pass_time(WITHIN_SECONDS)
        body = {"id": agent.id, "webhook_url": moved.url, "secret": agent.secret}
        accepted(await kernel.post("/v0/agents", body))
        execution_id = (await agent.create())["id"]
        await pass_time(WITHIN_SECONDS)
        assert (agent.endpoint.of(execution_id), moved.of(execution_id)) == ([], [])
        # Nothing is claimed either: an attempt that nobody sends would wait for the end of a lease.
        assert (await kernel.event_types(execution_id))[-1] == "dispatch.queued"
        assert stall.held > 0

        stall.let_go()
        delivery = await moved.delivery(execution_id)
        assert delivery.attempt == 1
        assert agent.endpoint.of(execution_id) == []


def agent_of(kernel: Kernel, agent: Any) -> Any:
    """The same agent, whose requests go to another door."""
    return type(agent)(kernel, agent.endpoint, agent_id=agent.id, secret=agent.secret, scheme=agent.scheme)


async def _answers(kernel: Kernel, url: str, status: int) -> bool:
    response: httpx.Response = await kernel.get(url.removeprefix(kernel.url))
    return response.status_code == status
