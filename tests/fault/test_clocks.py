"""Wall clocks that are an hour off: nothing is put off by them, and a door that has one says that it is not ready."""

import time

import pytest

from tests.conformance.harness.answers import envelope
from tests.conformance.harness.endpoint import Answer, in_turn
from tests.conformance.harness.kernel import Kernel
from tests.fault.faulty_stack import FaultyStack
from tests.support.wait import wait_until_async

HOUR_SECONDS = 3600.0
DELIVERED_SECONDS_MAX = 5.0
REFUSED_SECONDS_MAX = 2.0


async def _is_ready(kernel: Kernel) -> bool:
    return (await kernel.get("/v0/ready")).status_code == 200


@pytest.mark.parametrize("off_seconds", [HOUR_SECONDS, -HOUR_SECONDS])
async def test_a_door_whose_clock_is_off_refuses_at_once_and_nothing_of_it_happens(
    stack: FaultyStack, kernel: Kernel, off_seconds: float
) -> None:
    agent = await kernel.agent(scheme="sha256")
    lease = await agent.acknowledged()
    stack.set_clock("door", off_seconds)
    try:

        async def is_off() -> bool:
            return not await _is_ready(kernel)

        await wait_until_async(is_off, "the door to say that its clock is off")
        asked_at = time.monotonic()
        created = await kernel.create(agent.id)
        submitted = await lease.submit("tool", 1, key="k")
        refused_seconds = time.monotonic() - asked_at
    finally:
        stack.set_clock("door", 0.0)
    await wait_until_async(lambda: _is_ready(kernel), "the door to be ready again")

    assert envelope(created, 503)["code"] == envelope(submitted, 503)["code"] == "unavailable"
    assert refused_seconds < REFUSED_SECONDS_MAX
    assert await kernel.steps(lease.execution_id) == []
    assert await lease.done("tool", 1, result="done")


async def test_a_retry_that_a_dispatcher_with_a_clock_ahead_arranges_comes_in_its_time(
    stack: FaultyStack, kernel: Kernel
) -> None:
    agent = await kernel.agent(in_turn(Answer(status=500), Answer()), scheme="sha256")
    stack.set_clock("dispatcher", HOUR_SECONDS)
    try:
        execution = await agent.create()
        second = await agent.delivery(execution["id"], number=2, deadline_seconds=DELIVERED_SECONDS_MAX)
    finally:
        stack.set_clock("dispatcher", 0.0)

    assert second.attempt == 2
