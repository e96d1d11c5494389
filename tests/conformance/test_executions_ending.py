"""K33, K35, K37, K38, K39: how an execution ends, once."""

import asyncio
import json
import time
from datetime import datetime
from typing import Any

import pytest

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, details, envelope, path_of
from tests.conformance.harness.calls import REPLAYED
from tests.conformance.harness.endpoint import Answer, Delivery
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.routes import BY_NAME, Scene
from tests.conformance.harness.stacks import Stacks


async def _closed(kernel: Kernel, lease: Lease, after_seq: int) -> list[tuple[str, Any]]:
    """The events after one, as their types and what of the payload matters at the end."""
    events = await kernel.events(lease.execution_id, after_seq=after_seq)
    shown = ("output", "reason", "error", "status")
    return [(event["type"], {k: v for k, v in event["payload"].items() if k in shown}) for event in events]


async def _with_open_steps(kernel: Kernel) -> tuple[Lease, list[str], int]:
    """A lease with a step that has ended and two that execute, and the last event so far."""
    lease = await (await kernel.agent()).start()
    await lease.done("done")
    open_steps = [await lease.proceed("first"), await lease.proceed("second", idempotency="at_most_once")]
    return lease, open_steps, len(await kernel.events(lease.execution_id))


async def _assert_cancelled(kernel: Kernel, lease: Lease, open_steps: list[str], reason: str) -> None:
    steps = await kernel.steps(lease.execution_id)
    assert [step["status"] for step in steps] == ["succeeded", "cancelled", "cancelled"]
    for step in steps[1:]:
        assert step["step_id"] in open_steps
        assert step["error"]["reason"] == reason
        assert step["completed_at"]
        assert step["result"] is None


async def test_k33_a_cancel_ends_the_execution_and_then_its_open_steps(kernel: Kernel) -> None:
    lease, open_steps, last = await _with_open_steps(kernel)

    accepted(await kernel.cancel(lease.execution_id), 204)

    cancelled_step = ("step.cancelled", {"error": {"reason": "execution_cancelled"}})
    assert await _closed(kernel, lease, last) == [
        ("execution.cancelled", {"status": "cancelled", "reason": "client_cancelled"}),
        cancelled_step,
        cancelled_step,
    ]
    closed = await kernel.events(lease.execution_id, after_seq=last + 1)
    assert [event["payload"]["step_id"] for event in closed] == open_steps
    await _assert_cancelled(kernel, lease, open_steps, "execution_cancelled")
    execution = await kernel.execution(lease.execution_id)
    assert (execution["status"], execution["failure_reason"]) == ("cancelled", "client_cancelled")
    assert execution["completed_at"]
    assert execution["output"] is None


@pytest.mark.parametrize("body", [b"", b"{}", b'{"reason":"mine"}'])
async def test_k33_the_body_of_a_cancel_is_optional_and_changes_nothing(kernel: Kernel, body: bytes) -> None:
    execution_id = (await (await kernel.agent()).create())["id"]

    accepted(await kernel.post(f"/v0/executions/{execution_id}/cancel", body), 204)

    assert (await kernel.execution(execution_id))["failure_reason"] == "client_cancelled"


ENDS = {
    "completed": lambda lease: lease.complete_execution({"answer": 1}),
    "failed": lambda lease: lease.fail_execution("gave up"),
    "cancelled": lambda lease: lease.kernel.cancel(lease.execution_id),
}


@pytest.mark.parametrize("status", ENDS)
async def test_k35_what_comes_after_the_end_is_409_and_appends_nothing(kernel: Kernel, status: str) -> None:
    lease = await (await kernel.agent()).start()
    accepted(await ENDS[status](lease), 204)
    before = await kernel.trace(lease.execution_id)

    for late in (
        await kernel.cancel(lease.execution_id),
        await lease.complete_execution({"other": 2}),
        await lease.complete_execution({"answer": 1}),
        await lease.fail_execution("too late"),
        # The end is told before the lease is looked at.
        await lease.but(attempt=7).complete_execution(),
        await lease.but(dispatch_id="0199aaaa-0000-7000-8000-0000000000ff").fail_execution("e"),
    ):
        assert details(late, 409, "execution_terminal")["status"] == status

    assert await kernel.trace(lease.execution_id) == before
    assert before[0]["status"] == status


@pytest.mark.parametrize(
    ("name", "body", "other"),
    [
        ("complete", {"output": {"a": 1, "b": 2}}, {"output": {"a": 1, "b": 3}}),
        ("fail", {"error": "first"}, {"error": "second"}),
    ],
)
async def test_k35_an_end_repeated_with_its_key_is_204_and_with_another_body_a_conflict(
    kernel: Kernel, name: str, body: Any, other: Any
) -> None:
    lease = await (await kernel.agent()).start()
    first = await lease.request(f"/{name}", body, key="end")
    before = await kernel.trace(lease.execution_id)

    repeated = await lease.request(f"/{name}", body, key="end")
    reordered = await lease.request(f"/{name}", _reversed(body), key="end")
    differing = await lease.request(f"/{name}", other, key="end")
    another_way = await lease.request("/fail" if name == "complete" else "/complete", body | {"error": "x"}, key="end")

    accepted(first, 204)
    assert REPLAYED not in first.headers
    for response in (repeated, reordered):
        accepted(response, 204)
        assert response.headers[REPLAYED] == "true"
    envelope(differing, 409, "conflict")
    envelope(another_way, 409, "conflict")
    assert await kernel.trace(lease.execution_id) == before


async def test_k35_of_ends_at_the_same_moment_one_wins_and_the_others_learn_which(kernel: Kernel) -> None:
    agent = await kernel.agent()
    leases = [await agent.start() for _ in range(12)]

    async def race(lease: Lease) -> None:
        answers = await asyncio.gather(*(end(lease) for end in ENDS.values()))
        winners = [status for status, answer in zip(ENDS, answers, strict=True) if answer.status_code == 204]
        assert len(winners) == 1
        execution = await kernel.execution(lease.execution_id)
        assert execution["status"] == winners[0]
        for answer in answers:
            if answer.status_code != 204:
                assert details(answer, 409, "execution_terminal")["status"] == winners[0]
        types = await kernel.event_types(lease.execution_id)
        assert sum(each in {f"execution.{status}" for status in ENDS} for each in types) == 1

    await asyncio.gather(*(race(lease) for lease in leases))


@pytest.mark.parametrize("error", ["gave up: the tool is gone", "", "é 🙂 \x00\n", "x" * 100_000, " spaced "])
async def test_k37_a_failure_keeps_its_text_and_closes_the_rest(kernel: Kernel, error: str) -> None:
    lease, open_steps, last = await _with_open_steps(kernel)

    accepted(await lease.fail_execution(error), 204)

    cancelled_step = ("step.cancelled", {"error": {"reason": "execution_failed"}})
    events = await _closed(kernel, lease, last)
    assert events[0][0] == "execution.failed"
    assert events[0][1]["status"] == "failed"
    assert events[0][1].get("reason", "") == error
    assert events[1:] == [cancelled_step, cancelled_step]
    await _assert_cancelled(kernel, lease, open_steps, "execution_failed")
    execution = await kernel.execution(lease.execution_id)
    assert (execution["status"], execution["failure_reason"]) == ("failed", error)


@pytest.mark.parametrize("body", [{}, {"error": None}, {"error": 1}, {"error": {"message": "m"}}, {"error": ["e"]}])
async def test_k37_an_error_that_is_no_string_is_400(kernel: Kernel, body: Any) -> None:
    lease = await (await kernel.agent()).acknowledged()
    before = await kernel.trace(lease.execution_id)

    assert path_of(await lease.request("/fail", body)) == "error"

    assert await kernel.trace(lease.execution_id) == before


async def test_k38_a_clean_run_ends_with_its_completion(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).acknowledged()
    await lease.done()

    accepted(await lease.complete_execution({"answer": 42}), 204)

    assert await kernel.event_types(lease.execution_id) == [
        "execution.created",
        "execution.started",
        "dispatch.queued",
        "dispatch.acked",
        "step.proposed",
        "step.allowed",
        "step.executing",
        "step.succeeded",
        "execution.completed",
    ]
    last = (await kernel.events(lease.execution_id))[-1]["payload"]
    assert last == {"execution_id": lease.execution_id, "status": "completed", "output": {"answer": 42}}
    execution = await kernel.execution(lease.execution_id)
    assert (execution["output"], execution["failure_reason"]) == ({"answer": 42}, "")


@pytest.mark.parametrize("status", [200, 500])
async def test_k38_an_answer_of_the_webhook_after_the_end_changes_nothing(kernel: Kernel, status: int) -> None:
    released = asyncio.Event()
    answered = asyncio.Event()

    async def hold(_: Delivery) -> Answer:
        await released.wait()
        answered.set()
        return Answer(status=status)

    agent = await kernel.agent(hold)
    lease = await agent.start()
    await lease.done()
    accepted(await lease.complete_execution(), 204)
    before = await kernel.trace(lease.execution_id)

    released.set()
    await answered.wait()
    # A whole further run passes through the same kernel after the answer.
    agent.endpoint.script = lambda _: Answer()
    further = await agent.start()
    await kernel.wait_for_event(further.execution_id, "dispatch.acked")
    await further.done()

    assert await kernel.trace(lease.execution_id) == before
    assert before[2][-1]["type"] == "execution.completed"
    assert "dispatch.failed" not in [event["type"] for event in before[2]]
    assert len(agent.endpoint.of(lease.execution_id)) == 1


async def test_k38_an_execution_may_be_completed_before_its_webhook_was_answered(kernel: Kernel) -> None:
    released = asyncio.Event()

    async def hold(_: Delivery) -> Answer:
        await released.wait()
        return Answer()

    lease = await (await kernel.agent(hold)).start()
    accepted(await lease.complete_execution(), 204)
    released.set()

    types = await kernel.event_types(lease.execution_id)
    assert types[-1] == "execution.completed"
    assert types.count("dispatch.acked") <= 1


DEADLINE_SECONDS = 3


def _seconds(time_text: str) -> float:
    return datetime.fromisoformat(time_text).timestamp()


@pytest.mark.alone
async def test_k39_a_configured_deadline_cancels_at_most_a_second_late(stacks: Stacks) -> None:
    stack = stacks.get(STEPWELL_DEADLINE_TIMEOUT=f"{DEADLINE_SECONDS}s")
    async with connected(stack.url, stack.api_key) as kernel:
        agent = await kernel.agent()
        lease = await agent.start()
        ended_before = await agent.start()
        accepted(await ended_before.complete_execution(), 204)
        await lease.done("done")
        open_steps = [await lease.proceed("first"), await lease.proceed("second")]
        last = len(await kernel.events(lease.execution_id))
        created = await kernel.execution(lease.execution_id)

        await kernel.wait_for_event(lease.execution_id, "execution.cancelled", deadline_seconds=DEADLINE_SECONDS + 5)
        noticed_at = time.time()

        due_at = _seconds(created["deadline_at"])
        assert due_at - _seconds(created["created_at"]) == pytest.approx(DEADLINE_SECONDS, abs=0.05)
        execution = await kernel.execution(lease.execution_id)
        assert 0 <= _seconds(execution["completed_at"]) - due_at <= 1.0
        # What the record says has happened by then; the rest is the way of the news to this test.
        assert 0 <= noticed_at - due_at <= 2.0
        assert (execution["status"], execution["failure_reason"]) == ("cancelled", "deadline_exceeded")
        assert execution["deadline_at"] == created["deadline_at"]
        cancelled_step = ("step.cancelled", {"error": {"reason": "execution_cancelled"}})
        assert await _closed(kernel, lease, last) == [
            ("execution.cancelled", {"status": "cancelled", "reason": "deadline_exceeded"}),
            cancelled_step,
            cancelled_step,
        ]
        await _assert_cancelled(kernel, lease, open_steps, "execution_cancelled")
        assert details(await lease.complete_execution(), 409, "execution_terminal")["status"] == "cancelled"
        assert (await kernel.execution(ended_before.execution_id))["status"] == "completed"


async def test_k39_without_a_configured_deadline_there_is_none(kernel: Kernel) -> None:
    scene = await Scene.of(kernel)

    for route in (BY_NAME["get_execution"], BY_NAME["list_executions"], BY_NAME["list_events"]):
        assert "deadline_at" not in (await kernel.get(scene.target(route))).text


def _reversed(body: Any) -> bytes:
    """The same body in another spelling: members the other way round, with white space."""

    def turned(value: Any) -> Any:
        return {name: turned(value[name]) for name in reversed(value)} if isinstance(value, dict) else value

    return json.dumps(turned(body), indent=2).encode()
