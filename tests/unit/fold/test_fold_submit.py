"""Submissions: identity, occurrences, replay, orphans, the order of the checks."""

import json

import pytest
from msgspec.structs import replace

from kernel.domain.errors import InvariantBroken
from kernel.domain.fold.steps import OPEN_STEPS_MAX
from kernel.domain.identity import step_id
from schemas.answers import Decided, Refusal
from schemas.entries import Lease, Verdict
from tests.support.folding import DISPATCH, EXECUTION, ListLog, error_of, hash_of, result_of, started, uuid_number


def decided(answer: object) -> Decided:
    assert isinstance(answer, Decided)
    return answer


def refusal(answer: object) -> Refusal:
    assert isinstance(answer, Refusal)
    return answer


def test_a_first_submission_proceeds_and_is_written_before_it_does():
    log = started()
    before = len(log.events)

    answer = decided(log.submit("web_search", {"q": "hi"}))

    identity = step_id(EXECUTION, "tool_call", "web_search", hash_of({"q": "hi"}), 0)
    assert answer == Decided(decision="proceed", step_id=identity, rule_id="permissive", is_new=True)
    assert log.new_events(before) == ["dispatch.acked", "step.proposed", "step.allowed", "step.executing"]
    step = log.records.steps[identity]
    assert (step.status, step.ordinal, step.occurrence, step.started_at) == ("executing", 1, 0, log.now)
    assert log.live_header.open_steps == (identity,)


def test_verdict_is_on_the_allowed_event_alone():
    log = started()
    log.submit()
    payloads = {event.type: event.payload for event in log.events if event.type.startswith("step.")}
    assert payloads["step.allowed"].rule_id == "permissive"
    assert payloads["step.allowed"].policy_version == 0
    assert payloads["step.proposed"].rule_id is None
    assert payloads["step.executing"].policy_version is None


def test_equal_calls_of_one_attempt_are_different_steps():
    log = started()
    ids = [decided(log.submit("tool", {"n": 1})).step_id for _ in range(3)]
    assert len(set(ids)) == 3
    assert [log.records.steps[step].occurrence for step in ids] == [0, 1, 2]


def test_the_next_attempt_counts_from_zero_and_replays():
    log = started()
    first = decided(log.submit("tool", 1))
    log.complete_step(first.step_id, {"v": None})
    second = decided(log.submit("tool", 1))
    log.fail_step(second.step_id, {"message": "no"})
    log.next_attempt()

    again = decided(log.submit("tool", 1))
    once_more = decided(log.submit("tool", 1))

    assert (again.decision, again.step_id) == ("replay", first.step_id)
    assert again.result is not None
    assert json.loads(again.result.json) == {"v": None}
    assert again.error is None
    assert (once_more.decision, once_more.step_id) == ("replay", second.step_id)
    assert once_more.error is not None
    assert json.loads(once_more.error.json) == {"message": "no"}


def test_an_orphan_that_may_be_repeated_proceeds_without_an_event():
    log = started()
    first = decided(log.submit("tool", 1))
    log.next_attempt()
    log.heartbeat()
    before = len(log.events)

    again = decided(log.submit("tool", 1))

    assert (again.decision, again.step_id) == ("proceed", first.step_id)
    assert log.new_events(before) == []


@pytest.mark.parametrize(
    ("recorded", "resubmitted"),
    [("at_most_once", "at_most_once"), ("at_most_once", "safe_to_retry"), ("safe_to_retry", "at_most_once")],
)
def test_an_orphan_in_the_stricter_mode_is_indeterminate(recorded: str, resubmitted: str):
    log = started()
    first = decided(log.submit("pay", 1, idempotency=recorded))
    log.next_attempt()
    log.heartbeat()
    before = len(log.events)

    again = decided(log.submit("pay", 1, idempotency=resubmitted))

    assert (again.decision, again.step_id) == ("replay", first.step_id)
    assert again.error is not None
    error = json.loads(again.error.json)
    assert error["reason"] == "indeterminate"
    assert error["message"]
    assert log.new_events(before) == ["step.failed"]
    assert log.live_header.open_steps == ()


def test_an_indeterminate_call_is_not_retried_under_another_occurrence():
    log = started()
    orphan = decided(log.submit("pay", 1, idempotency="at_most_once"))
    log.next_attempt()
    log.submit("pay", 1, idempotency="at_most_once")

    denied = decided(log.submit("pay", 1, idempotency="at_most_once"))
    other = decided(log.submit("pay", 2, idempotency="at_most_once"))
    safe = decided(log.submit("pay", 1, idempotency="safe_to_retry"))

    assert (denied.decision, denied.reason, denied.rule_id) == (
        "denied",
        "indeterminate_retry",
        "__indeterminate_retry",
    )
    step = log.records.steps[denied.step_id]
    assert step.error is not None
    assert json.loads(step.error.json) == {"reason": "indeterminate_retry", "rule_id": "__indeterminate_retry"}
    assert (step.status, step.started_at, step.completed_at) == ("denied", None, log.now)
    assert other.decision == "proceed"
    assert safe.decision == "proceed"

    log.complete_step(other.step_id)
    log.complete_step(safe.step_id)
    log.next_attempt()
    assert decided(log.submit("pay", 1)).step_id == orphan.step_id
    repeated = decided(log.submit("pay", 1))
    assert (repeated.decision, repeated.step_id, repeated.reason) == (
        "denied",
        denied.step_id,
        "indeterminate_retry",
    )


def test_an_agents_own_error_never_counts_as_indeterminate():
    log = started()
    first = decided(log.submit("pay", 1, idempotency="at_most_once"))
    log.fail_step(first.step_id, {"reason": "indeterminate"})
    assert decided(log.submit("pay", 1, idempotency="at_most_once")).decision == "proceed"


def test_a_denied_verdict_is_recorded():
    log = started()
    log.heartbeat()
    before = len(log.events)
    named = decided(log.submit("rm", verdict=Verdict("deny", "no-rm", 7, reason="too_dangerous")))
    unnamed = decided(log.submit("rm", 2, verdict=Verdict("deny", "no-rm", 7)))
    assert (named.decision, named.reason, named.rule_id) == ("denied", "too_dangerous", "no-rm")
    assert unnamed.reason == "policy_denied"
    assert log.new_events(before) == ["step.proposed", "step.denied"] * 2
    payload = log.events[before + 1].payload
    assert (payload.rule_id, payload.policy_version) == ("no-rm", 7)
    assert log.live_header.open_steps == ()


def test_a_terminal_execution_answers_so_without_a_step():
    log = started()
    log.complete()
    before = len(log.events)
    assert log.submit() == Decided(decision="execution_terminal")
    assert log.new_events(before) == []


def test_a_dispatch_the_execution_never_had_is_malformed():
    log = started()
    answer = refusal(log.submit(lease=Lease(uuid_number(77), 1)))
    assert (answer.code, answer.detail_name, answer.detail) == ("validation_error", "path", "Rebuno-Dispatch-Id")


@pytest.mark.parametrize("attempt", [0, 2, 99])
def test_another_attempt_than_the_current_one_is_superseded_and_leaves_no_trace(attempt: int):
    log = started()
    before = log.live_header
    answer = refusal(log.submit(lease=Lease(DISPATCH, attempt), settle=[]))
    assert answer.code == "lease_superseded"
    after = log.live_header
    assert (after.event_count, after.step_count, after.updated_at) == (before.event_count, 0, before.updated_at)
    assert log.records.counters == {}
    assert decided(log.submit()).step_id == step_id(EXECUTION, "tool_call", "tool", hash_of(None), 0)


def test_a_blocked_execution_takes_no_new_step_and_counts_nothing():
    log = started()
    known = decided(log.submit("tool", 1))
    log.next_attempt()
    log.live_header.status = "blocked"
    before = len(log.events)

    fresh = decided(log.submit("tool", 2))
    existing = decided(log.submit("tool", 1))

    assert fresh == Decided(decision="execution_blocked")
    assert (existing.decision, existing.step_id) == ("proceed", known.step_id)
    assert log.new_events(before) == ["dispatch.acked"]


def test_steps_that_wait_for_or_have_an_approval_answer_as_they_stand():
    log = started()
    waiting, allowed = (decided(log.submit("tool", n)).step_id for n in (1, 2))
    log.next_attempt()
    put = log.records.steps
    put[waiting] = replace(put[waiting], status="awaiting_approval", approval_id="a")
    put[allowed] = replace(put[allowed], status="allowed", idempotency="at_most_once")
    log.heartbeat()
    before = len(log.events)

    assert decided(log.submit("tool", 1)) == Decided("blocked", waiting, approval_id="a", rule_id="permissive")
    assert decided(log.submit("tool", 2)).decision == "proceed"
    assert log.new_events(before) == ["step.executing"]


def test_a_cancelled_step_in_a_live_execution_is_a_contradiction():
    log = started()
    step = decided(log.submit()).step_id
    log.next_attempt()
    log.records.steps[step] = replace(log.records.steps[step], status="cancelled")
    with pytest.raises(InvariantBroken):
        log.submit()


def test_open_steps_are_bounded_and_a_full_execution_still_ends_what_it_has():
    log = started()
    ids = [decided(log.submit("tool", n)).step_id for n in range(OPEN_STEPS_MAX)]
    before = log.live_header.event_count

    full = refusal(log.submit("tool", "one more"))
    settled = refusal(log.submit("tool", "one more", settle=[result_of(uuid_number(5).replace("-", "") * 2, 1)]))
    existing = decided(log.submit("tool", "another", settle=[result_of(ids[0], 1)]))

    assert (full.code, full.detail_name, full.detail) == ("rate_limited", "reason", "open_steps")
    assert settled.code == "not_found"
    assert existing.decision == "proceed"
    assert log.live_header.event_count == before + 4
    assert len(log.live_header.open_steps) == OPEN_STEPS_MAX


def test_settle_is_applied_first_in_order_and_kept_under_a_denial():
    log = started()
    one, two = (decided(log.submit("tool", n)).step_id for n in (1, 2))
    before = len(log.events)

    answer = decided(
        log.submit("rm", verdict=Verdict("deny", "r", 1), settle=[result_of(one, 1), error_of(two, {"message": "x"})])
    )

    assert answer.decision == "denied"
    assert log.new_events(before) == ["step.succeeded", "step.failed", "step.proposed", "step.denied"]
    assert log.records.steps[one].result.place == "settle.0"
    assert log.records.steps[two].error.place == "settle.1"


def test_settle_of_an_ended_step_changes_nothing():
    log = started()
    one = decided(log.submit()).step_id
    log.complete_step(one, "first")
    log.submit("next", settle=[result_of(one, "second"), result_of(one, "third")])
    assert json.loads(log.records.steps[one].result.json) == "first"


@pytest.mark.parametrize("case", ["unknown", "not executing"])
def test_one_bad_item_of_settle_applies_nothing_at_all(case: str):
    log = started()
    one, two = (decided(log.submit("tool", n)).step_id for n in (1, 2))
    bad = "0" * 64
    if case == "not executing":
        log.records.steps[two] = replace(log.records.steps[two], status="allowed")
        bad = two
    before = log.live_header

    answer = refusal(log.submit("tool", 3, settle=[result_of(one, 1), result_of(bad, 1)]))

    assert answer.code == ("not_found" if case == "unknown" else "conflict")
    assert log.records.steps[one].status == "executing"
    assert log.live_header.event_count == before.event_count
    assert log.live_header.open_steps == before.open_steps


def test_a_large_result_stays_in_the_log():
    log = started()
    step = decided(log.submit()).step_id
    log.complete_step(step, "x" * 9000)
    body = log.records.steps[step].result
    assert (body.json, body.place, body.seq, body.size_bytes) == (b"", "result", len(log.entries), 9002)


def test_the_field_count_is_what_was_written():
    log = ListLog()
    log.create()
    log.claim()
    step = decided(log.submit("tool", 1, key="k1")).step_id
    log.complete_step(step, 1, key="k2")
    log.submit("tool", 1, idempotency="at_most_once")
    log.next_attempt()
    for _ in range(4):
        log.submit("tool", 1, idempotency="at_most_once", key="k1")
    log.submit("tool", 1, lease=Lease(DISPATCH, 1))
    log.cancel()
    assert log.live_header.field_count == log.field_count
