"""K53 to K56: a step that was executing when its attempt was lost."""

from typing import Any

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.side_by_side import side_by_side

ONCE: dict[str, Any] = {"idempotency": "at_most_once"}


async def _orphan(kernel: Kernel, **recorded: Any) -> tuple[Lease, str]:
    """The lease of the attempt after the one under which a step was left executing, and that step."""
    lease = await (await kernel.agent()).start()
    step_id = await lease.proceed("pay", {"euro": 5}, **recorded)
    return await lease.expired(), step_id


def _denied(step_id: str) -> dict[str, Any]:
    return {
        "decision": "denied",
        "step_id": step_id,
        "reason": "indeterminate_retry",
        "rule_id": "__indeterminate_retry",
        "resources": [],
    }


async def _assert_indeterminate(lease: Lease, step_id: str, decision: dict[str, Any], after_seq: int) -> Any:
    """Assert that this decision and all that reads show one failure of the step as indeterminate."""
    error = decision["error"]
    assert decision == {"decision": "replay", "step_id": step_id, "error": error, "resources": []}
    assert error["reason"] == "indeterminate"
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error.keys() == {"reason", "message"}
    kernel = lease.kernel
    events = await kernel.events(lease.execution_id, after_seq=after_seq)
    assert [(each["type"], each["payload"]["step_id"], each["payload"]["error"]) for each in events] == [
        ("step.failed", step_id, error)
    ]
    step = await kernel.step(lease.execution_id, step_id)
    assert (step["status"], step["error"], step["result"]) == ("failed", error, None)
    assert step["completed_at"] == events[0]["occurred_at"]
    return error


@side_by_side
async def test_k53_an_orphan_that_is_safe_to_retry_proceeds_as_the_same_step(kernel: Kernel) -> None:
    lease, step_id = await _orphan(kernel)
    before = await kernel.trace(lease.execution_id)

    decision = await lease.decide("pay", {"euro": 5})

    assert (decision["decision"], decision["step_id"]) == ("proceed", step_id)
    assert await kernel.trace(lease.execution_id) == before
    assert accepted(await lease.complete(step_id, "paid")) == {"decision": "recorded"}
    assert (await kernel.step(lease.execution_id, step_id))["result"] == "paid"


@side_by_side
async def test_k53_orphans_of_one_call_are_told_apart_by_their_occurrence(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()
    ids = [await lease.proceed("pay") for _ in range(3)]
    accepted(await lease.complete(ids[1], "second"))

    lease = await lease.expired()
    before = await kernel.trace(lease.execution_id)
    decisions = [await lease.decide("pay") for _ in range(3)]

    assert [(each["decision"], each["step_id"]) for each in decisions] == [
        ("proceed", ids[0]),
        ("replay", ids[1]),
        ("proceed", ids[2]),
    ]
    assert await kernel.trace(lease.execution_id) == before


@side_by_side
async def test_k54_an_orphan_that_runs_at_most_once_is_failed_and_replayed(kernel: Kernel) -> None:
    lease, step_id = await _orphan(kernel, **ONCE)
    last = len(await kernel.events(lease.execution_id))
    assert (await kernel.step(lease.execution_id, step_id))["status"] == "executing"

    decision = await lease.decide("pay", {"euro": 5}, **ONCE)

    error = await _assert_indeterminate(lease, step_id, decision, last)
    # A late outcome of the lost attempt's own work finds the step ended.
    assert accepted(await lease.complete(step_id, "paid")) == {"decision": "replay", "error": error}
    assert len(await kernel.events(lease.execution_id)) == last + 1


@side_by_side
async def test_k54_an_outcome_that_the_next_attempt_brings_first_is_recorded(kernel: Kernel) -> None:
    lease, step_id = await _orphan(kernel, **ONCE)

    assert accepted(await lease.complete(step_id, "paid")) == {"decision": "recorded"}

    decision = await lease.decide("pay", {"euro": 5}, **ONCE)
    assert decision == {"decision": "replay", "step_id": step_id, "result": "paid", "resources": []}


@side_by_side
async def test_k55_the_same_call_again_is_denied_and_other_args_proceed(kernel: Kernel) -> None:
    lease, step_id = await _orphan(kernel, **ONCE)
    first = await lease.decide("pay", {"euro": 5}, **ONCE)
    last = len(await kernel.events(lease.execution_id))

    denied = await lease.decide("pay", {"euro": 5}, **ONCE)
    others = [
        await lease.done("pay", {"euro": 6}),
        await lease.proceed("refund", {"euro": 5}, **ONCE),
        await lease.proceed("pay", {"euro": 5}, kind="local", **ONCE),
    ]

    assert denied == _denied(denied["step_id"])
    assert denied["step_id"] not in {step_id, *others}
    events = await kernel.events(lease.execution_id, after_seq=last)
    assert [each["type"] for each in events[:3]] == ["step.proposed", "step.denied", "step.proposed"]
    step = await kernel.step(lease.execution_id, denied["step_id"])
    reason = {"reason": "indeterminate_retry", "rule_id": "__indeterminate_retry"}
    assert (step["status"], step["occurrence"], step["error"]) == ("denied", 1, reason)
    assert events[1]["payload"]["error"] == reason
    for each in others[1:]:
        accepted(await lease.complete(each, "done"))

    last = len(await kernel.events(lease.execution_id))
    lease = await lease.expired()
    repeated = [await lease.decide("pay", {"euro": 5}, **ONCE) for _ in range(2)]
    assert repeated == [first, denied]
    assert (await lease.decide("pay", {"euro": 6}))["decision"] == "replay"
    # The acknowledgement of the attempt is all that came.
    assert await kernel.event_types(lease.execution_id, after_seq=last) == ["dispatch.acked"]


@side_by_side
async def test_k55_an_error_of_the_agents_own_denies_nothing(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()
    step_id = await lease.proceed("pay", {"euro": 5}, **ONCE)
    accepted(await lease.fail(step_id, {"reason": "indeterminate", "message": "says the agent"}))

    assert (await lease.decide("pay", {"euro": 5}, **ONCE))["decision"] == "proceed"


@side_by_side
async def test_k55_what_is_safe_to_retry_is_not_denied(kernel: Kernel) -> None:
    lease, _ = await _orphan(kernel, **ONCE)
    assert (await lease.decide("pay", {"euro": 5}, **ONCE))["decision"] == "replay"

    assert (await lease.decide("pay", {"euro": 5}))["decision"] == "proceed"


@side_by_side
async def test_k56_an_orphan_recorded_as_at_most_once_stays_so(kernel: Kernel) -> None:
    lease, step_id = await _orphan(kernel, **ONCE)
    last = len(await kernel.events(lease.execution_id))

    decision = await lease.decide("pay", {"euro": 5}, idempotency="safe_to_retry")

    await _assert_indeterminate(lease, step_id, decision, last)


@side_by_side
async def test_k56_an_orphan_submitted_again_as_at_most_once_is_so_from_then_on(kernel: Kernel) -> None:
    lease, step_id = await _orphan(kernel, idempotency="safe_to_retry")
    last = len(await kernel.events(lease.execution_id))

    decision = await lease.decide("pay", {"euro": 5}, **ONCE)

    await _assert_indeterminate(lease, step_id, decision, last)
