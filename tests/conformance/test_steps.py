"""K40, K44, K45, K47, K51, K57, K58, K60: what a submission and an outcome are answered, and what they record."""

import asyncio
from typing import Any

import pytest
from msgspec import UNSET

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, envelope, path_of
from tests.conformance.harness.calls import REPLAYED, members
from tests.conformance.harness.identity import args_hash_of, step_id_of
from tests.conformance.harness.kernel import Kernel

RECORDED = {"decision": "recorded"}


async def _started(kernel: Kernel) -> tuple[Lease, int]:
    """A lease after whose webhook nothing happens by itself, and the last event so far."""
    lease = await (await kernel.agent()).acknowledged()
    return lease, len(await kernel.events(lease.execution_id))


@pytest.mark.parametrize(
    ("kind", "rule_id"), [("tool_call", "permissive"), ("llm_call", "permissive"), ("local", "local")]
)
async def test_k40_a_first_submission_proceeds_and_its_events_say_why(kernel: Kernel, kind: str, rule_id: str) -> None:
    lease, last = await _started(kernel)

    decision = await lease.decide("search", {"q": "hi"}, kind=kind)

    step_id = step_id_of(lease.execution_id, kind, "search", args_hash_of('{"q":"hi"}'), 0)
    assert decision == {"decision": "proceed", "step_id": step_id, "rule_id": rule_id, "resources": []}
    events = await kernel.events(lease.execution_id, after_seq=last)
    plain = {"step_id": step_id, "step_type": kind, "target": "search"}
    assert [(event["event_seq"] - last, event["type"], event["payload"]) for event in events] == [
        (1, "step.proposed", plain),
        (2, "step.allowed", plain | {"rule_id": rule_id, "policy_version": 0}),
        (3, "step.executing", plain),
    ]


async def test_k40_the_step_reads_back_as_it_was_submitted(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)

    step_id = await lease.proceed("search", {"q": "hi"}, idempotency="at_most_once")

    step = await kernel.step(lease.execution_id, step_id)
    started_at = step.pop("started_at")
    assert started_at == (await kernel.events(lease.execution_id))[-1]["occurred_at"]
    assert step == {
        "step_id": step_id,
        "execution_id": lease.execution_id,
        "kind": "tool_call",
        "target": "search",
        "args_hash": args_hash_of('{"q":"hi"}'),
        "occurrence": 0,
        "status": "executing",
        "idempotency": "at_most_once",
        "args": {"q": "hi"},
        "result": None,
        "error": None,
        "usage": None,
        "rule_id": "permissive",
        "policy_version": 0,
    }
    assert await kernel.steps(lease.execution_id) == [step | {"started_at": started_at}]


async def test_k44_the_same_call_twice_is_two_steps(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)

    ids = [await lease.proceed("search", {"q": "hi"}) for _ in range(2)]
    other_target = await lease.proceed("other", {"q": "hi"})
    other_kind = await lease.proceed("search", {"q": "hi"}, kind="local")

    steps = await kernel.steps(lease.execution_id)
    assert [(step["step_id"], step["occurrence"]) for step in steps] == [
        (ids[0], 0),
        (ids[1], 1),
        (other_target, 0),
        (other_kind, 0),
    ]
    assert len({step["step_id"] for step in steps}) == 4


async def test_k44_the_next_occurrence_does_not_wait_for_an_outcome(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)

    done = await lease.done("search", result=1)
    again = await lease.proceed("search")

    assert again != done
    assert (await kernel.step(lease.execution_id, again))["occurrence"] == 1


async def test_k45_identical_submissions_at_once_are_steps_of_their_own(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)

    ids = await asyncio.gather(*(lease.proceed("search", {"q": "hi"}) for _ in range(20)))

    hashed = args_hash_of('{"q":"hi"}')
    assert sorted(ids) == sorted(step_id_of(lease.execution_id, "tool_call", "search", hashed, n) for n in range(20))
    steps = await kernel.steps(lease.execution_id)
    assert [step["occurrence"] for step in steps] == list(range(20))
    assert {step["status"] for step in steps} == {"executing"}


async def test_k47_a_submission_repeated_with_its_key_is_the_same_step(kernel: Kernel) -> None:
    lease, last = await _started(kernel)

    first = await lease.submit("search", {"a": 1, "b": 2}, key="k")
    spelled_otherwise = b'{ "args": {"b": 2, "\\u0061": 1}, "target": "search", "kind": "tool_call" }'
    repeats = [
        await lease.submit("search", {"a": 1, "b": 2}, key="k"),
        await lease.request("/steps", spelled_otherwise, key="k"),
    ]

    assert REPLAYED not in first.headers
    assert accepted(first)["decision"] == "proceed"
    for repeat in repeats:
        assert accepted(repeat) == first.json()
        assert repeat.headers[REPLAYED] == "true"
    assert await kernel.event_types(lease.execution_id, after_seq=last) == [
        "step.proposed",
        "step.allowed",
        "step.executing",
    ]


async def test_k47_concurrent_repeats_with_one_key_are_one_step(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)

    ids = await asyncio.gather(*(lease.proceed("search", key="k") for _ in range(10)))

    assert len(set(ids)) == 1
    assert [step["occurrence"] for step in await kernel.steps(lease.execution_id)] == [0]


async def test_k47_another_request_with_that_key_is_a_conflict(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)
    step_id = await lease.proceed("search", {"q": 1}, key="k")
    before = await kernel.trace(lease.execution_id)

    for answer in (
        await lease.submit("search", {"q": 2}, key="k"),
        await lease.submit("search", {"q": 1}, key="k", idempotency="at_most_once"),
        await lease.complete(step_id, 1, key="k"),
    ):
        envelope(answer, 409, "conflict")

    assert await kernel.trace(lease.execution_id) == before
    # Nor did a refused one count as a use of its call.
    for args in ({"q": 1}, {"q": 2}):
        await lease.proceed("search", args)
    assert [step["occurrence"] for step in await kernel.steps(lease.execution_id)] == [0, 1, 0]


async def test_k47_without_its_key_a_repeat_is_the_next_occurrence(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)

    ids = [
        await lease.proceed("search", key="k"),
        await lease.proceed("search"),
        await lease.proceed("search", key="l"),
    ]

    assert [(step["step_id"], step["occurrence"]) for step in await kernel.steps(lease.execution_id)] == [
        (ids[0], 0),
        (ids[1], 1),
        (ids[2], 2),
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "toolcall", "target": "t"},
        {"kind": "", "target": "t"},
        {"kind": None, "target": "t"},
        {"kind": 1, "target": "t"},
        {"target": "t"},
        {"kind": "tool_call"},
        {"kind": "tool_call", "target": None},
        {"kind": "tool_call", "target": 7},
        {"kind": "tool_call", "target": ["t"]},
        {"kind": "tool_call", "target": "x" * 1025},
        {"kind": "tool_call", "target": "é" * 512 + "x"},
        {"kind": "tool_call", "target": "t", "idempotency": "once"},
        {"kind": "tool_call", "target": "t", "idempotency": "AT_MOST_ONCE"},
        {"kind": "tool_call", "target": "t", "idempotency": 1},
    ],
)
async def test_k51_a_submission_with_a_wrong_field_is_400(kernel: Kernel, body: Any) -> None:
    lease, _ = await _started(kernel)
    before = await kernel.trace(lease.execution_id)

    wrong = path_of(await lease.request("/steps", body))

    assert wrong in {"kind", "target", "idempotency"}
    assert await kernel.trace(lease.execution_id) == before


@pytest.mark.parametrize("target", ["", "x" * 1024, "é" * 512])
async def test_k51_a_target_of_up_to_1024_bytes_is_taken_verbatim(kernel: Kernel, target: str) -> None:
    lease, _ = await _started(kernel)

    step_id = await lease.proceed(target)

    assert (await kernel.step(lease.execution_id, step_id))["target"] == target


@pytest.mark.parametrize("idempotency", [UNSET, "", "safe_to_retry"])
async def test_k51_no_idempotency_word_is_safe_to_retry(kernel: Kernel, idempotency: Any) -> None:
    lease, _ = await _started(kernel)

    body = members(kind="tool_call", target="t", idempotency=idempotency)
    step_id = accepted(await lease.request("/steps", body))["step_id"]

    assert (await kernel.step(lease.execution_id, step_id))["idempotency"] == "safe_to_retry"


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
async def test_k57_a_submission_after_the_end_is_told_so(kernel: Kernel, end: str) -> None:
    lease, _ = await _started(kernel)
    await lease.done("search", result=1)
    await _end(lease, end)
    before = await kernel.trace(lease.execution_id)

    decisions = [await lease.decide("search"), await lease.decide("new", {"q": 1}, key="k")]

    assert decisions == [{"decision": "execution_terminal", "resources": []}] * 2
    assert await kernel.trace(lease.execution_id) == before


async def test_k58_the_first_outcome_stays(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)
    step_id = await lease.proceed("search")

    assert accepted(await lease.complete(step_id, {"n": 1})) == RECORDED
    before = await kernel.trace(lease.execution_id)
    later = [
        await lease.complete(step_id, {"n": 1}),
        await lease.complete(step_id, {"n": 2}),
        await lease.complete(step_id),
        await lease.fail(step_id, {"message": "late"}),
    ]

    assert [accepted(answer) for answer in later] == [{"decision": "replay", "result": {"n": 1}}] * 4
    assert await kernel.trace(lease.execution_id) == before
    assert [step["result"] for step in before[1]] == [{"n": 1}]
    assert (await kernel.event_types(lease.execution_id)).count("step.succeeded") == 1


async def test_k58_a_failure_stays_too_and_a_null_result_is_a_result(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)
    failed, empty = await lease.proceed("failed"), await lease.proceed("empty")

    assert accepted(await lease.fail(failed, {"message": "no", "n": 1})) == RECORDED
    assert accepted(await lease.complete(empty)) == RECORDED

    replayed = {"decision": "replay", "error": {"message": "no", "n": 1}}
    assert accepted(await lease.complete(failed, 1)) == replayed
    assert accepted(await lease.fail(failed, "other")) == replayed
    for answer in (await lease.complete(empty, 2), await lease.fail(empty, "late")):
        assert accepted(answer) == {"decision": "replay", "result": None}


async def test_k58_of_outcomes_sent_at_once_one_is_recorded(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)
    step_id = await lease.proceed("search")

    answers = await asyncio.gather(*(lease.complete(step_id, number) for number in range(10)))

    decisions = [accepted(answer) for answer in answers]
    kept = (await kernel.step(lease.execution_id, step_id))["result"]
    assert decisions.count(RECORDED) == 1
    assert decisions.index(RECORDED) == kept
    assert decisions.count({"decision": "replay", "result": kept}) == 9


async def test_k60_an_outcome_after_a_cancel_changes_nothing(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)
    done = await lease.done("done", result=1)
    step_id = await lease.proceed("search")
    accepted(await kernel.cancel(lease.execution_id), 204)
    before = await kernel.trace(lease.execution_id)

    answers = [
        await lease.complete(step_id, 1),
        await lease.fail(step_id, "late"),
        await lease.complete(done, 2),
        await lease.complete(step_id, 1, key="k"),
    ]

    assert [accepted(answer) for answer in answers] == [{"decision": "execution_terminal"}] * 4
    assert await kernel.trace(lease.execution_id) == before
    step = await kernel.step(lease.execution_id, step_id)
    assert (step["status"], step["result"]) == ("cancelled", None)
    assert step["error"] == {"reason": "execution_cancelled"}
    assert (await kernel.event_types(lease.execution_id)).count("step.succeeded") == 1


async def _end(lease: Lease, end: str) -> None:
    match end:
        case "complete":
            accepted(await lease.complete_execution(), 204)
        case "fail":
            accepted(await lease.fail_execution("no"), 204)
        case _:
            accepted(await lease.kernel.cancel(lease.execution_id), 204)
