"""K42, K43, K48: what the next attempt is told about the steps of the one before."""

from typing import Any

import pytest

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, details, exact, exact_member
from tests.conformance.harness.calls import REPLAYED
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.side_by_side import side_by_side

RESULTS = (
    "null",
    "false",
    "0",
    '""',
    "[]",
    "{}",
    '{"b":1.0,"a":[1e2,-0,123456789012345678901234567890],"z":"\\u0000é"}',
    '"' + "x" * 20_000 + '"',
)
# An error as it was sent, and as it is answered everywhere.
ERRORS: tuple[tuple[Any, Any], ...] = (
    ({"message": "no", "code": [1, None]}, {"message": "no", "code": [1, None]}),
    ({}, {}),
    ("broken", {"message": "broken"}),
    ("", {"message": ""}),
    (7, {"message": "7"}),
    (False, {"message": "false"}),
    (["b", {"z": 1, "a": "é"}], {"message": '["b",{"a":"é","z":1}]'}),
)


async def _first(kernel: Kernel) -> Lease:
    return await (await kernel.agent()).start()


def _replay(step_id: str, **outcome: Any) -> dict[str, Any]:
    return {"decision": "replay", "step_id": step_id, **outcome, "resources": []}


@side_by_side
async def test_k42_a_recorded_result_is_replayed_to_the_next_attempt(kernel: Kernel) -> None:
    lease = await _first(kernel)
    ids = [await lease.proceed("search", {"n": number}) for number in range(len(RESULTS))]
    for step_id, result in zip(ids, RESULTS, strict=True):
        accepted(await lease.request(f"/steps/{step_id}/complete", f'{{"result":{result}}}'.encode()))

    lease = await lease.expired()
    before = await kernel.trace(lease.execution_id)
    answers = [await lease.submit("search", {"n": number}) for number in range(len(RESULTS))]

    for step_id, result, answer in zip(ids, RESULTS, answers, strict=True):
        decision = accepted(answer)
        assert decision == _replay(step_id, result=decision["result"])
        assert exact_member(answer.content, "result") == exact(result)
    assert await kernel.trace(lease.execution_id) == before


@side_by_side
async def test_k42_a_result_that_was_absent_is_replayed_as_a_null(kernel: Kernel) -> None:
    lease = await _first(kernel)
    step_id = await lease.proceed("search")
    accepted(await lease.complete(step_id))

    lease = await lease.expired()

    assert await lease.decide("search") == _replay(step_id, result=None)


@side_by_side
async def test_k42_occurrences_are_counted_anew_and_replayed_in_their_order(kernel: Kernel) -> None:
    lease = await _first(kernel)
    ids = [await lease.done("search", result=number) for number in range(3)]

    for _ in range(2):
        lease = await lease.expired()
        decisions = [await lease.decide("search") for _ in range(3)]
        assert decisions == [_replay(step_id, result=number) for number, step_id in enumerate(ids)]

    fourth = await lease.proceed("search")
    assert (await kernel.step(lease.execution_id, fourth))["occurrence"] == 3


@side_by_side
async def test_k43_a_recorded_error_is_replayed_to_the_next_attempt(kernel: Kernel) -> None:
    lease = await _first(kernel)
    ids = [await lease.proceed("search", {"n": number}) for number in range(len(ERRORS))]
    for step_id, (sent, _) in zip(ids, ERRORS, strict=True):
        assert accepted(await lease.fail(step_id, sent)) == {"decision": "recorded"}
    shown = [answered for _, answered in ERRORS]

    lease = await lease.expired()
    decisions = [await lease.decide("search", {"n": number}) for number in range(len(ERRORS))]

    assert decisions == [_replay(step_id, error=error) for step_id, error in zip(ids, shown, strict=True)]
    steps = await kernel.steps(lease.execution_id)
    assert [(step["status"], step["error"], step["result"]) for step in steps] == [
        ("failed", error, None) for error in shown
    ]
    failures = [each for each in await kernel.events(lease.execution_id) if each["type"] == "step.failed"]
    assert [each["payload"]["error"] for each in failures] == shown
    assert {each["payload"]["step_id"] for each in failures} == set(ids)
    again = [await lease.complete(step_id, 1) for step_id in ids]
    assert [accepted(answer) for answer in again] == [{"decision": "replay", "error": error} for error in shown]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"error":null}', b'{"result":1}'])
async def test_k43_a_failure_without_an_error_is_400(kernel: Kernel, body: bytes) -> None:
    lease = await (await kernel.agent()).acknowledged()
    step_id = await lease.proceed("search")
    before = await kernel.trace(lease.execution_id)

    answer = await lease.request(f"/steps/{step_id}/fail", body)

    details(answer, 400, "validation_error")
    assert await kernel.trace(lease.execution_id) == before


async def test_k48_the_key_of_a_completed_step_brings_its_result(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).acknowledged()
    done, failed = await lease.proceed("done", key="done"), await lease.proceed("failed", key="failed")
    accepted(await lease.complete(done, {"n": 1}))
    accepted(await lease.fail(failed, "no"))
    before = await kernel.trace(lease.execution_id)

    answers = [await lease.submit("done", key="done"), await lease.submit("failed", key="failed")]

    assert [accepted(answer) for answer in answers] == [
        _replay(done, result={"n": 1}),
        _replay(failed, error={"message": "no"}),
    ]
    assert [answer.headers[REPLAYED] for answer in answers] == ["true", "true"]
    assert await kernel.trace(lease.execution_id) == before


async def test_k48_after_a_cancel_the_key_brings_the_end(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).acknowledged()
    await lease.proceed("open", key="open")
    done = await lease.proceed("done", key="done")
    accepted(await lease.complete(done, 1))
    accepted(await kernel.cancel(lease.execution_id), 204)
    before = await kernel.trace(lease.execution_id)

    assert await lease.decide("open", key="open") == {"decision": "execution_terminal", "resources": []}
    # A key is judged before the end: what it remembers of a step that had its outcome stays true.
    assert await lease.decide("done", key="done") == _replay(done, result=1)
    assert await kernel.trace(lease.execution_id) == before


@side_by_side
async def test_k48_under_the_next_attempt_the_key_is_fresh(kernel: Kernel) -> None:
    lease = await _first(kernel)
    done, open_step = await lease.proceed("done", key="done"), await lease.proceed("open", key="open")
    accepted(await lease.complete(done, 1, key="outcome"))

    lease = await lease.expired()
    answers = [
        await lease.submit("done", key="done"),
        await lease.submit("open", key="open"),
        await lease.submit("new", key="outcome"),
    ]
    another_body = await lease.submit("done", {"other": True}, key="open-2")

    assert accepted(answers[0]) == _replay(done, result=1)
    assert (accepted(answers[1])["decision"], answers[1].json()["step_id"]) == ("proceed", open_step)
    assert accepted(answers[2])["decision"] == "proceed"
    assert [REPLAYED in answer.headers for answer in (*answers, another_body)] == [False] * 4
    # Each was a use of its call: under this attempt the key of the first is bound anew.
    again = await lease.submit("done", key="done")
    assert (accepted(again), again.headers[REPLAYED]) == (_replay(done, result=1), "true")


@side_by_side
async def test_k48_under_the_next_attempt_the_key_may_carry_another_body(kernel: Kernel) -> None:
    lease = await _first(kernel)
    await lease.proceed("search", {"q": 1}, key="k")

    lease = await lease.expired()
    step_id = await lease.proceed("search", {"q": 2}, key="k")

    assert await lease.proceed("search", {"q": 2}, key="k") == step_id
    steps = await kernel.steps(lease.execution_id)
    assert [(step["args"], step["occurrence"]) for step in steps] == [({"q": 1}, 0), ({"q": 2}, 0)]
