"""Wall clocks that are an hour off: nothing is put off by them, and a door that has one says that it is not ready."""

import time

from tests.conformance.harness.answers import accepted
from tests.conformance.harness.endpoint import Answer, in_turn
from tests.conformance.harness.kernel import Kernel
from tests.fault.faulty_stack import FaultyStack
from tests.support.wait import wait_until_async

HOUR_SECONDS = 3600.0
DELIVERED_SECONDS_MAX = 5.0


async def _is_ready(kernel: Kernel) -> bool:
    return (await kernel.get("/v0/ready")).status_code == 200


async def test_what_a_door_creates_whose_clock_runs_ahead_is_delivered_at_once(
    stack: FaultyStack, kernel: Kernel
) -> None:
    agent = await kernel.agent(scheme="sha256")
    stack.set_clock("door", HOUR_SECONDS)
    try:

        async def is_off() -> bool:
            return not await _is_ready(kernel)

        await wait_until_async(is_off, "the door to say that its clock is off")
        created_at = time.monotonic()
        execution = accepted(await kernel.create(agent.id), 201)
        delivery = await agent.delivery(execution["id"], deadline_seconds=DELIVERED_SECONDS_MAX)
        lease = agent.lease_of(delivery)
        step_id = await lease.done("tool", result="done")
    finally:
        stack.set_clock("door", 0.0)
    await wait_until_async(lambda: _is_ready(kernel), "the door to be ready again")

    assert delivery.at - created_at < DELIVERED_SECONDS_MAX
    assert (await kernel.step(lease.execution_id, step_id))["result"] == "done"
    assert execution["created_at"] < time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + HOUR_SECONDS / 2))


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
