"""K118: an execution has a thousand open steps and no more."""

import asyncio

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, details
from tests.conformance.harness.calls import REPLAYED
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.side_by_side import side_by_side

OPEN_MAX = 1000
AT_ONCE = 50


async def _full(kernel: Kernel) -> tuple[Lease, list[str]]:
    """A lease with as many open steps as an execution may have, each of args of its own."""
    lease = await (await kernel.agent()).acknowledged()
    waiting = asyncio.Semaphore(AT_ONCE)

    async def submit(number: int) -> str:
        async with waiting:
            return await lease.proceed("open", number)

    return lease, await asyncio.gather(*(submit(number) for number in range(OPEN_MAX)))


async def _assert_refused(lease: Lease, **options: str) -> None:
    answer = await lease.submit("one-more", **options)
    assert details(answer, 429, "rate_limited") == {"reason": "open_steps"}
    assert int(answer.headers["retry-after"]) >= 1


@side_by_side
async def test_k118_a_step_beyond_a_thousand_open_ones_is_429_and_leaves_no_trace(kernel: Kernel) -> None:
    lease, ids = await _full(kernel)
    before = await kernel.trace(lease.execution_id)

    for _ in range(2):
        await _assert_refused(lease)
        await _assert_refused(lease, key="k")

    assert await kernel.trace(lease.execution_id) == before
    # An outcome makes room for one, which is the first of its call, and the key was not bound.
    assert accepted(await lease.complete(ids[0], 1)) == {"decision": "recorded"}
    answer = await lease.submit("one-more", key="k")
    assert accepted(answer)["decision"] == "proceed"
    assert REPLAYED not in answer.headers
    assert (await kernel.step(lease.execution_id, answer.json()["step_id"]))["occurrence"] == 0
    await _assert_refused(lease)
    # The key of an open step is not a new one.
    assert await lease.decide("one-more", key="k") == answer.json()

    # Outcomes that travel with a submission make room for it.
    await lease.proceed("one-more", settle=[{"step_id": ids[7], "result": 1}])
    await _assert_refused(lease)
    assert (await kernel.step(lease.execution_id, ids[7]))["status"] == "succeeded"


@side_by_side
async def test_k118_at_the_limit_existing_steps_and_the_end_still_work(kernel: Kernel) -> None:
    lease, ids = await _full(kernel)

    lease = await lease.expired()
    assert await lease.proceed("open", 3) == ids[3]
    await _assert_refused(lease)
    assert accepted(await lease.fail(ids[3], "no")) == {"decision": "recorded"}
    last = len(await kernel.events(lease.execution_id))
    accepted(await lease.complete_execution("output"), 204)

    assert (await kernel.execution(lease.execution_id))["status"] == "completed"
    events = await kernel.events(lease.execution_id, after_seq=last)
    assert events[0]["type"] == "execution.completed"
    closed = [each["payload"]["step_id"] for each in events[1:] if each["type"] == "step.cancelled"]
    listed = [step["step_id"] for step in await kernel.steps(lease.execution_id)]
    assert closed == [step_id for step_id in listed if step_id != ids[3]]
    assert len(events) == OPEN_MAX
