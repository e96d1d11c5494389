"""K49, K50: outcomes that travel with the next submission or with the end."""

from typing import Any

import pytest

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, details, envelope
from tests.conformance.harness.calls import REPLAYED
from tests.conformance.harness.endpoint import Answer, in_turn
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.side_by_side import side_by_side

SETTLED = ["step.succeeded", "step.failed"]


async def _with_two(kernel: Kernel) -> tuple[Lease, str, str]:
    """A lease under which two steps execute."""
    lease = await (await kernel.agent()).acknowledged()
    return lease, await lease.proceed("first"), await lease.proceed("second")


def _outcomes(first: str, second: str) -> list[dict[str, Any]]:
    return [{"step_id": first, "result": {"n": 1.0}}, {"step_id": second, "error": "no"}]


async def _assert_outcomes(kernel: Kernel, execution_id: str, first: str, second: str) -> None:
    one, two = await kernel.step(execution_id, first), await kernel.step(execution_id, second)
    assert (one["status"], one["result"], one["error"]) == ("succeeded", {"n": 1.0}, None)
    assert (two["status"], two["result"], two["error"]) == ("failed", None, {"message": "no"})
    assert one["completed_at"]
    assert two["completed_at"]


async def _denied_here(lease: Lease) -> Lease:
    """The next attempt, under which the call `pay` with at_most_once is denied from now on."""
    await lease.proceed("pay", idempotency="at_most_once")
    lease = await lease.expired()
    assert (await lease.decide("pay", idempotency="at_most_once"))["decision"] == "replay"
    return lease


async def test_k49_settled_outcomes_come_before_the_step_they_travel_with(kernel: Kernel) -> None:
    lease, first, second = await _with_two(kernel)
    last = len(await kernel.events(lease.execution_id))

    new = await lease.proceed("third", settle=_outcomes(first, second))

    events = await kernel.events(lease.execution_id, after_seq=last)
    assert [(each["type"], each["payload"]["step_id"]) for each in events] == [
        ("step.succeeded", first),
        ("step.failed", second),
        ("step.proposed", new),
        ("step.allowed", new),
        ("step.executing", new),
    ]
    assert events[1]["payload"]["error"] == {"message": "no"}
    await _assert_outcomes(kernel, lease.execution_id, first, second)


async def test_k49_outcomes_are_applied_in_the_order_of_the_list(kernel: Kernel) -> None:
    lease, first, second = await _with_two(kernel)
    last = len(await kernel.events(lease.execution_id))

    await lease.proceed("third", settle=[*reversed(_outcomes(first, second)), {"step_id": first, "error": "late"}])

    assert await kernel.event_types(lease.execution_id, after_seq=last) == [
        "step.failed",
        "step.succeeded",
        "step.proposed",
        "step.allowed",
        "step.executing",
    ]
    await _assert_outcomes(kernel, lease.execution_id, first, second)


@side_by_side
async def test_k49_settled_outcomes_are_replayed_after_a_crash(kernel: Kernel) -> None:
    lease, first, second = await _with_two(kernel)
    await lease.proceed("third", settle=_outcomes(first, second))

    lease = await lease.expired()

    replayed = {"decision": "replay", "resources": []}
    assert await lease.decide("first") == replayed | {"step_id": first, "result": {"n": 1.0}}
    assert await lease.decide("second") == replayed | {"step_id": second, "error": {"message": "no"}}


@side_by_side
async def test_k49_a_denied_submission_keeps_the_outcomes_it_carries(kernel: Kernel) -> None:
    lease, _, _ = await _with_two(kernel)
    lease = await _denied_here(lease)
    first, second = await lease.proceed("first"), await lease.proceed("second")
    last = len(await kernel.events(lease.execution_id))

    decision = await lease.decide("pay", idempotency="at_most_once", settle=_outcomes(first, second))

    assert (decision["decision"], decision["reason"]) == ("denied", "indeterminate_retry")
    types = await kernel.event_types(lease.execution_id, after_seq=last)
    assert types == [*SETTLED, "step.proposed", "step.denied"]
    await _assert_outcomes(kernel, lease.execution_id, first, second)
    lease = await lease.expired()
    decisions = [await lease.decide(target) for target in ("first", "second")]
    assert [(each["decision"], each["step_id"]) for each in decisions] == [("replay", first), ("replay", second)]


async def test_k49_a_repeat_with_the_key_settles_once(kernel: Kernel) -> None:
    lease, first, second = await _with_two(kernel)
    answer = await lease.submit("third", key="k", settle=_outcomes(first, second))
    before = await kernel.trace(lease.execution_id)

    repeat = await lease.submit("third", key="k", settle=_outcomes(first, second))
    another = await lease.submit("third", key="k", settle=_outcomes(second, first))

    assert (accepted(repeat), repeat.headers[REPLAYED]) == (accepted(answer), "true")
    envelope(another, 409, "conflict")
    assert await kernel.trace(lease.execution_id) == before


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("route", ["submit", "complete", "fail"])
async def test_k50_a_foreign_step_in_settle_is_404_and_nothing_is_applied(
    kernel: Kernel, route: str, place: str
) -> None:
    lease, first, second = await _with_two(kernel)
    other = await lease.agent.acknowledged()
    foreign = {"step_id": await other.proceed("first"), "result": 2}
    outcomes = _outcomes(first, second)
    settle = [foreign, *outcomes] if place == "first" else [*outcomes, foreign]
    before = [await kernel.trace(each.execution_id) for each in (lease, other)]

    answer = await _send(lease, route, settle)

    assert envelope(answer, 404, "not_found")["message"] == "step not found"
    assert [await kernel.trace(each.execution_id) for each in (lease, other)] == before
    # Nothing of it was counted either: the call is still the first of its kind.
    step_id = await lease.proceed("third")
    assert (await kernel.step(lease.execution_id, step_id))["occurrence"] == 0


@pytest.mark.parametrize("route", ["submit", "complete", "fail"])
async def test_k50_settle_under_a_stale_lease_is_409_and_nothing_is_applied(kernel: Kernel, route: str) -> None:
    agent = await kernel.agent(in_turn(Answer(500), Answer(200)))
    execution = await agent.create()
    lease = await agent.lease(execution["id"], number=2)
    first, second = await lease.proceed("first"), await lease.proceed("second")
    before = await kernel.trace(lease.execution_id)

    for attempt in (1, 3):
        answer = await _send(lease.but(attempt=attempt), route, _outcomes(first, second))
        envelope(answer, 409, "lease_superseded")

    assert await kernel.trace(lease.execution_id) == before


async def test_k50_settle_after_the_end_applies_nothing(kernel: Kernel) -> None:
    lease, first, second = await _with_two(kernel)
    accepted(await kernel.cancel(lease.execution_id), 204)
    before = await kernel.trace(lease.execution_id)

    decision = accepted(await _send(lease, "submit", _outcomes(first, second)))
    ends = [await _send(lease, route, _outcomes(first, second)) for route in ("complete", "fail")]

    assert decision == {"decision": "execution_terminal", "resources": []}
    assert [details(end, 409, "execution_terminal")["status"] for end in ends] == ["cancelled"] * 2
    assert await kernel.trace(lease.execution_id) == before


async def test_k50_an_ended_step_in_settle_is_ignored(kernel: Kernel) -> None:
    lease, first, second = await _with_two(kernel)
    accepted(await lease.complete(first, {"n": 1.0}))
    last = len(await kernel.events(lease.execution_id))
    outcomes = [{"step_id": first, "error": "late"}, {"step_id": second, "error": "no"}]

    await lease.proceed("third", settle=[*outcomes, {"step_id": second, "result": "later"}])

    assert (await kernel.event_types(lease.execution_id, after_seq=last))[:2] == ["step.failed", "step.proposed"]
    await _assert_outcomes(kernel, lease.execution_id, first, second)


@pytest.mark.parametrize(("route", "end"), [("complete", "execution.completed"), ("fail", "execution.failed")])
async def test_k50_settled_outcomes_come_before_the_end(kernel: Kernel, route: str, end: str) -> None:
    lease, first, second = await _with_two(kernel)
    last = len(await kernel.events(lease.execution_id))

    accepted(await _send(lease, route, _outcomes(first, second)), 204)

    assert await kernel.event_types(lease.execution_id, after_seq=last) == [*SETTLED, end]
    await _assert_outcomes(kernel, lease.execution_id, first, second)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"result": 1},
        {"step_id": "{step_id}"},
        {"step_id": "{step_id}", "result": 1, "error": "e"},
        {"step_id": "{step_id}", "error": None},
        {"step_id": 7, "result": 1},
    ],
)
async def test_k50_a_malformed_outcome_is_400_and_nothing_is_applied(kernel: Kernel, wrong: dict[str, Any]) -> None:
    lease, first, second = await _with_two(kernel)
    if wrong.get("step_id") == "{step_id}":
        wrong = wrong | {"step_id": second}
    before = await kernel.trace(lease.execution_id)

    answers = [
        await _send(lease, route, [{"step_id": first, "result": 1}, wrong]) for route in ("submit", "complete", "fail")
    ]

    for answer in answers:
        details(answer, 400, "validation_error")
    assert await kernel.trace(lease.execution_id) == before


async def test_k50_settle_takes_256_outcomes_and_no_more(kernel: Kernel) -> None:
    lease, first, _ = await _with_two(kernel)
    last = len(await kernel.events(lease.execution_id))
    outcome = {"step_id": first, "result": 1}

    details(await _send(lease, "submit", [outcome] * 257), 400, "validation_error")
    assert len(await kernel.events(lease.execution_id)) == last
    assert accepted(await _send(lease, "submit", [outcome] * 256))["decision"] == "proceed"

    assert (await kernel.event_types(lease.execution_id, after_seq=last))[:2] == ["step.succeeded", "step.proposed"]


async def _send(lease: Lease, route: str, settle: list[dict[str, Any]]) -> Any:
    match route:
        case "submit":
            return await lease.submit("third", settle=settle)
        case "complete":
            return await lease.complete_execution("output", settle=settle)
        case _:
            return await lease.fail_execution("reason", settle=settle)
