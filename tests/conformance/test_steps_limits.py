"""K118: an execution has a thousand open steps and no more."""

import asyncio

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, details
from tests.conformance.harness.calls import REPLAYED
from tests.conformance.harness.kernel import Kernel

OPEN_MAX = 1000
AT_ONCE = 20


async def _full(kernel: Kernel) -> tuple[Lease, list[str]]:
    """A lease with as many open steps as an execution may have, each of args of its own."""
    lease = await (await kernel.agent()).acknowledged()
    waiting = asyncio.Semaphore(AT_ONCE)

    async def submit(number: int) -> str:
        async with waiting:
            return await lease.proceed("open", number)

    return lease, await asyncio.gather(*(submit(number) for number in range(OPEN_MAX)))


async def _assert_refused(lease: Lease, target: str = "one-more", **options: str) -> None:
    answer = await lease.submit(target, **options)
    assert details(answer, 429, "rate_limited") == {"reason": "open_steps"}
    assert int(answer.headers["retry-after"]) >= 1


async def test_k118_a_step_beyond_a_thousand_open_ones_is_refused_and_all_else_works(kernel: Kernel) -> None:
    lease, ids = await _full(kernel)
    await _assert_no_trace_of_one_more(lease)
    await _assert_outcomes_make_room(lease, ids)

    lease = await lease.expired()
    # What exists is not new, whatever the number of open steps.
    assert await lease.proceed("open", 3) == ids[3]
    await _assert_refused(lease, "never-before")
    assert accepted(await lease.fail(ids[3], "no")) == {"decision": "recorded"}
    last = len(await kernel.events(lease.execution_id))
    accepted(await lease.complete_execution("output"), 204)

    assert (await kernel.execution(lease.execution_id))["status"] == "completed"
    events = await kernel.events(lease.execution_id, after_seq=last)
    assert [each["type"] for each in events] == ["execution.completed", *["step.cancelled"] * (OPEN_MAX - 1)]
    closed = [each["payload"]["step_id"] for each in events[1:]]
    listed = [step["step_id"] for step in await kernel.steps(lease.execution_id)]
    assert closed == [step_id for step_id in listed if step_id not in {ids[0], ids[3], ids[7]}]


async def _assert_no_trace_of_one_more(lease: Lease) -> None:
    before = await lease.kernel.trace(lease.execution_id)
    for _ in range(2):
        await _assert_refused(lease)
        await _assert_refused(lease, key="k")
    assert await lease.kernel.trace(lease.execution_id) == before


async def _assert_outcomes_make_room(lease: Lease, ids: list[str]) -> None:
    """Assert that each of two outcomes makes room for one step: one sent alone, one that travels with the step."""
    kernel = lease.kernel
    assert accepted(await lease.complete(ids[0], 1)) == {"decision": "recorded"}
    answer = await lease.submit("one-more", key="k")
    assert accepted(answer)["decision"] == "proceed"
    # Neither the key nor a use of the call was remembered when it was refused.
    assert REPLAYED not in answer.headers
    assert (await kernel.step(lease.execution_id, answer.json()["step_id"]))["occurrence"] == 0
    await _assert_refused(lease)
    # The key of an open step is not a new one.
    assert await lease.decide("one-more", key="k") == answer.json()

    await lease.proceed("one-more", settle=[{"step_id": ids[7], "result": 1}])
    await _assert_refused(lease)
    assert (await kernel.step(lease.execution_id, ids[7]))["status"] == "succeeded"
