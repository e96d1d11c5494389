"""Case D2: an attempt that wakes up after the next one was claimed changes nothing, wherever its requests had slept."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, details
from tests.conformance.harness.calls import Call
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.side_by_side import side_by_side
from tests.support.stack import Stack

REDELIVERY_SECONDS_MAX = 30.0


def _calls(lease: Lease, step_id: str) -> dict[str, Call]:
    """All that an agent may say under its lease."""
    settle = [{"step_id": step_id, "result": "X"}]
    return {
        "heartbeat": lease.call("/heartbeat"),
        "complete": lease.call(f"/steps/{step_id}/complete", {"result": "X"}),
        "fail": lease.call(f"/steps/{step_id}/fail", {"error": "X"}),
        "new step": lease.call("/steps", {"kind": "tool_call", "target": "new"}, key="new"),
        "same step": lease.call("/steps", {"kind": "tool_call", "target": "S"}),
        "step with outcome": lease.call("/steps", {"kind": "local", "target": "new", "settle": settle}),
        "end": lease.call("/complete", {"output": "X", "settle": settle}, key="end"),
        "failure": lease.call("/fail", {"error": "X"}),
    }


async def _assert_superseded(answers: list[httpx.Response]) -> None:
    for answer in answers:
        details(answer, 409, "lease_superseded")
    # One clear answer for all of them.
    assert len({answer.content for answer in answers}) == 1


async def _assert_told_once(lease: Lease, step_id: str) -> None:
    """The second attempt's outcome is the only one of the only step."""
    step = await lease.kernel.step(lease.execution_id, step_id)
    events = await lease.kernel.events(lease.execution_id)
    told = [event["type"] for event in events if event["payload"].get("step_id") == step_id]
    assert (step["status"], step["result"]) == ("succeeded", "Y")
    assert told == ["step.proposed", "step.allowed", "step.executing", "step.succeeded"]
    assert [each["step_id"] for each in await lease.kernel.steps(lease.execution_id)] == [step_id]
    acknowledged = [event["payload"]["attempt"] for event in events if event["type"] == "dispatch.acked"]
    assert acknowledged == [1, 2]


@side_by_side
async def test_d2_a_stalled_attempt_changes_nothing_after_the_next_one_was_claimed(kernel: Kernel) -> None:
    """Case D2. That a heartbeat of the old attempt does not renew the lease of the new one is conformance K63.

    The contract keeps no trace of a refused outcome where clients read; the audit that has it is not built yet.
    """
    stalled = await (await kernel.agent()).start()
    step_id = await stalled.proceed("S")
    # The next attempt goes to the same agent at the same address: only the attempt tells them apart.
    current = await stalled.expired()
    before = await kernel.trace(stalled.execution_id)

    awake = [await kernel.send(call) for call in _calls(stalled, step_id).values()]
    after = await kernel.trace(stalled.execution_id)
    again = await current.proceed("S")
    during = [await kernel.send(call) for call in _calls(stalled, step_id).values()]
    recorded = accepted(await current.complete(step_id, "Y"))
    late = [await kernel.send(call) for call in _calls(stalled, step_id).values()]

    await _assert_superseded([*awake, *during, *late])
    assert after == before
    assert again == step_id
    assert recorded == {"decision": "recorded"}
    await _assert_told_once(current, step_id)
    accepted(await current.complete_execution("Y"), 204)
    details(await kernel.send(stalled.call("/complete", {"output": "X"})), 409, "execution_terminal")
    assert (await kernel.execution(stalled.execution_id))["output"] == "Y"


@pytest.fixture
async def doors(apart: Stack) -> AsyncIterator[tuple[Kernel, Kernel]]:
    one, two = apart.urls
    async with connected(one, apart.api_key) as first, connected(two, apart.api_key) as second:
        yield first, second


async def test_d2_requests_that_slept_in_a_frozen_door_change_nothing_when_it_thaws(
    apart: Stack, doors: tuple[Kernel, Kernel]
) -> None:
    """Case D2, where it is the door that stalls: the requests were made in time and arrive after the next claim."""
    frozen, awake = doors
    agent = await awake.agent()
    stalled = await agent.acknowledged()
    step_id = await stalled.proceed("S")

    apart.process("door").pause()
    try:
        sleeping = [asyncio.create_task(frozen.send(call)) for call in _calls(stalled, step_id).values()]
        current = await agent.lease(stalled.execution_id, number=2, deadline_seconds=REDELIVERY_SECONDS_MAX)
        assert current.attempt == 2
        assert await current.proceed("S") == step_id
        before = await _settled(awake, current)
    finally:
        apart.process("door").resume()
    answers = await asyncio.gather(*sleeping)
    after = await _settled(awake, current)
    recorded = accepted(await current.complete(step_id, "Y"))

    await _assert_superseded(answers)
    assert after == before
    assert recorded == {"decision": "recorded"}
    await _assert_told_once(current, step_id)


async def _settled(kernel: Kernel, lease: Lease) -> tuple[Any, ...]:
    """The trace once nothing comes by itself any more."""
    await kernel.wait_for_event(lease.execution_id, "dispatch.acked", count=2)
    return await kernel.trace(lease.execution_id)
