"""Outcomes of steps and Idempotency-Keys: the first one stands."""

import json

import pytest
from msgspec.structs import replace

from kernel.domain.errors import InvariantBroken
from schemas.answers import Created, Decided, Done, Recorded, Refusal
from schemas.bodies import Usage
from schemas.entries import Lease
from schemas.records import KeyRecord
from tests.support.folding import DISPATCH, EXECUTION, ListLog, request_key, result_of, started, uuid_number


def submitted(log: ListLog, *args: object, **more: object) -> str:
    answer = log.submit(*args, **more)  # type: ignore[arg-type]  # the helper passes what each test chose
    assert isinstance(answer, Decided)
    return answer.step_id


def test_an_outcome_is_recorded_once_and_the_first_stays():
    log = started()
    step = submitted(log)
    before = len(log.events)
    assert log.complete_step(step, 1) == Recorded("recorded")
    second = log.complete_step(step, 2)
    third = log.fail_step(step, {"message": "late"})
    assert isinstance(second, Recorded)
    assert isinstance(third, Recorded)
    assert (second.decision, third.decision) == ("replay", "replay")
    assert third.result is not None
    assert json.loads(third.result.json) == 1
    assert third.error is None
    assert log.new_events(before) == ["step.succeeded"]


def test_an_error_is_recorded_with_its_event():
    log = started()
    step = submitted(log)
    log.fail_step(step, {"message": "no"})
    assert log.events[-1].type == "step.failed"
    assert json.loads(log.events[-1].payload.error.json) == {"message": "no"}
    assert log.records.steps[step].completed_at == log.now


def test_usage_is_on_the_step_and_summed():
    log = started()
    one, two = submitted(log, "m", 1), submitted(log, "m", 2)
    usage = Usage(input_tokens=3, output_tokens=4, total_tokens=7, cached_tokens=1, reasoning_tokens=2)
    log.complete_step(one, 1, usage=usage)
    log.submit("m", 3, settle=[result_of(two, 1, usage)])
    assert log.records.steps[one].usage == usage
    assert log.live_header.usage == usage + usage


def test_usage_that_a_record_holds_counts_for_llm_calls_that_were_sent_none():
    log = started()
    read, sent = Usage(input_tokens=3, total_tokens=3), Usage(input_tokens=50, total_tokens=50)
    calls = [submitted(log, "m", number, kind="llm_call") for number in range(3)]
    tool = submitted(log, "t", 1)
    log.complete_step(calls[0], 1, read_usage=read)
    log.complete_step(calls[1], 1, usage=sent, read_usage=read)
    log.complete_step(tool, 1, read_usage=read)
    log.submit("m", 4, settle=[replace(result_of(calls[2], 1), read_usage=read)])
    assert [log.records.steps[each].usage for each in (*calls, tool)] == [read, sent, read, None]
    assert log.live_header.usage == read + sent + read


def test_an_unknown_step_comes_before_everything_else():
    log = started()
    log.cancel()
    answer = log.complete_step("0" * 64, lease=Lease(uuid_number(9), 9))
    assert answer == Refusal("not_found", "step not found")


def test_a_terminal_execution_takes_no_outcome():
    log = started()
    step = submitted(log)
    log.cancel()
    before = len(log.events)
    assert log.complete_step(step, 1) == Recorded("execution_terminal")
    assert log.records.steps[step].status == "cancelled"
    assert log.new_events(before) == []


@pytest.mark.parametrize(
    ("lease", "code"), [(Lease(DISPATCH, 2), "lease_superseded"), (Lease(EXECUTION, 1), "validation_error")]
)
def test_an_outcome_needs_the_current_lease(lease: Lease, code: str):
    log = started()
    step = submitted(log)
    answer = log.complete_step(step, 1, lease=lease)
    assert isinstance(answer, Refusal)
    assert answer.code == code
    assert log.records.steps[step].status == "executing"


@pytest.mark.parametrize("status", ["awaiting_approval", "allowed"])
def test_a_step_that_does_not_run_has_no_outcome(status: str):
    log = started()
    step = submitted(log)
    log.records.steps[step] = replace(log.records.steps[step], status=status)
    answer = log.complete_step(step, 1)
    assert answer == Refusal("conflict", "the step is not executing")


def test_a_key_gives_the_first_answer_again_and_changes_nothing():
    log = started()
    first = log.submit("tool", 1, key="k")
    before = log.live_header
    again = log.submit("tool", 1, key="k")
    assert again == replace(first, is_replayed=True, is_new=False)
    assert (log.live_header.event_count, log.live_header.step_count) == (before.event_count, 1)


def test_a_key_for_another_request_is_a_conflict_even_under_a_stale_lease():
    log = started()
    log.submit("tool", 1, key="k")
    answer = log.submit("tool", 2, key="k", lease=Lease(DISPATCH, 9))
    assert isinstance(answer, Refusal)
    assert answer.code == "conflict"


def test_a_remembered_proceed_is_never_said_again_once_the_step_has_ended():
    log = started()
    step = submitted(log, "tool", 1, key="k")
    failing = submitted(log, "tool", 2, key="f")
    log.complete_step(step, "done")
    log.fail_step(failing, {"message": "no"})
    again = log.submit("tool", 1, key="k")
    failed = log.submit("tool", 2, key="f")
    assert isinstance(again, Decided)
    assert isinstance(failed, Decided)
    assert (again.decision, again.step_id, again.is_replayed) == ("replay", step, True)
    assert again.result is not None
    assert failed.error is not None
    assert json.loads(again.result.json) == "done"
    assert json.loads(failed.error.json) == {"message": "no"}


def test_a_remembered_proceed_of_a_cancelled_step_is_terminal():
    log = started()
    log.submit("tool", 1, key="k")
    log.cancel()
    assert log.submit("tool", 1, key="k") == Decided("execution_terminal", is_replayed=True)


def test_the_next_claim_makes_keys_of_a_lease_fresh():
    log = started()
    step = submitted(log, "tool", 1, key="k")
    log.complete_step(step, 1, key="c")
    log.next_attempt()
    again = log.submit("tool", 1, key="k")
    other = log.submit("tool", 99, key="c")
    assert isinstance(again, Decided)
    assert isinstance(other, Decided)
    assert (again.decision, again.is_replayed) == ("replay", False)
    assert other.decision == "proceed"


def test_outcomes_and_ends_remember_their_keys():
    log = started()
    step = submitted(log)
    log.complete_step(step, 1, key="c")
    assert log.complete_step(step, 1, key="c") == Recorded("recorded", is_replayed=True)
    log.complete("out", key="e")
    assert log.complete("out", key="e") == Done(is_replayed=True)
    conflict = log.complete("other", key="e")
    assert isinstance(conflict, Refusal)
    assert conflict.code == "conflict"
    fresh = log.complete("out", key="new")
    assert isinstance(fresh, Refusal)
    assert fresh.code == "execution_terminal"


def test_terminal_and_blocked_decisions_bind_no_key():
    log = started()
    log.live_header.status = "blocked"
    assert log.submit("tool", 1, key="k") == Decided("execution_blocked")
    log.live_header.status = "running"
    fresh = log.submit("tool", 1, key="k")
    assert isinstance(fresh, Decided)
    assert (fresh.decision, fresh.is_replayed) == ("proceed", False)
    log.cancel()
    log.submit("tool", 2, key="t")
    assert len(log.records.keys) == 1


def test_a_repeated_denial_is_the_same_denial():
    log = started()
    log.submit("pay", 1, idempotency="at_most_once")
    log.next_attempt()
    log.submit("pay", 1, idempotency="at_most_once")
    first = log.submit("pay", 1, idempotency="at_most_once", key="k")
    assert log.submit("pay", 1, idempotency="at_most_once", key="k") == replace(first, is_replayed=True, is_new=False)


def test_a_key_bound_to_an_answer_that_binds_none_is_a_contradiction():
    log = started()
    key = request_key("k", ["tool_call", "tool", 1])
    log.records.keys[key.key] = KeyRecord(request=key.request, claims=1, answer=Created(EXECUTION))
    with pytest.raises(InvariantBroken):
        log.submit("tool", 1, key="k")


def test_a_remembered_proceed_without_its_step_is_a_contradiction():
    log = started()
    log.submit("tool", 1, key="k")
    log.records.steps.clear()
    with pytest.raises(InvariantBroken):
        log.submit("tool", 1, key="k")
