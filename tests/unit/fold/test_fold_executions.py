"""Creation, ends, the close of what was open, lateness, halts."""

import json

import pytest
from msgspec import Raw

from kernel.domain.duty import NO_DUTIES, duties
from kernel.domain.fold import Folded, Position, fold, park
from schemas.answers import Created, Done, Ignored, Refusal
from schemas.entries import DispatchClaimed, ExecutionCancelled, Lease, StepCompleted
from tests.support.folding import (
    DISPATCH,
    EXECUTION,
    SECOND,
    START,
    DictRecords,
    ListLog,
    raw,
    request_key,
    result_of,
    started,
    uuid_number,
)


def test_a_created_execution_is_running_and_due_at_once():
    log = ListLog()
    assert log.create(input=raw({"a": 1}), idempotency_key="echo") == Created(EXECUTION)
    header = log.live_header
    assert (header.status, header.idempotency_key, header.created_at) == ("running", "echo", START)
    assert log.event_types == ["execution.created", "execution.started", "dispatch.queued"]
    assert [event.payload.status for event in log.events] == ["pending", "running", "pending"]
    assert log.events[2].payload.attempt == 0
    due = duties(header)
    assert (due.delivery_at, due.lease_ms, due.renewable) == (START, None, None)
    assert due.deadline_at == header.life_ends_at


def test_a_configured_deadline_is_on_the_first_event_and_due():
    log = ListLog()
    log.create(deadline_at=START + 5 * SECOND)
    assert log.events[0].payload.deadline_at == START + 5 * SECOND
    assert duties(log.live_header).deadline_at == START + 5 * SECOND


def test_the_same_execution_id_twice_is_a_conflict():
    log = ListLog()
    log.create()
    answer = log.create()
    assert isinstance(answer, Refusal)
    assert answer.code == "conflict"
    assert len(log.events) == 3


def test_a_create_key_makes_one_execution():
    log = ListLog()
    log.create(key=request_key("k", 1))
    other = uuid_number(50)
    entry, position = log.entries[0]
    records = log.records

    def create_again(request: int):
        body = {name: getattr(entry, name) for name in entry.__struct_fields__}
        again = type(entry)(**(body | {"id": uuid_number(60), "execution_id": other, "key": request_key("k", request)}))
        return fold(None, records, again, position)

    same, different = create_again(1), create_again(2)
    assert (same.header, same.answer) == (None, Created(EXECUTION, is_replayed=True))
    assert isinstance(different.answer, Refusal)
    assert different.answer.code == "conflict"


def test_complete_closes_the_rest_in_order():
    log = started()
    ids = [log.submit("tool", n).step_id for n in (1, 2)]
    before = len(log.events)
    assert log.complete({"answer": 42}, state=Raw(b'{"s":1}'), settle=[result_of(ids[1], 1)]) == Done()
    header = log.live_header
    assert log.new_events(before) == ["step.succeeded", "execution.completed", "step.cancelled"]
    assert (header.status, header.failure_reason, header.open_steps) == ("completed", "", ())
    assert (json.loads(header.output.json), json.loads(header.state.json)) == ({"answer": 42}, {"s": 1})
    cancelled = log.records.steps[ids[0]]
    assert json.loads(cancelled.error.json) == {"reason": "execution_completed"}
    assert cancelled.completed_at == log.now
    assert log.events[before + 1].payload.reason is None
    assert duties(header) == NO_DUTIES


def test_a_clean_run_ends_with_execution_completed_even_before_its_acknowledgement():
    log = started()
    log.complete()
    assert log.event_types[-1] == "execution.completed"
    assert log.delivered() == Ignored()
    assert log.event_types[-1] == "execution.completed"


def test_fail_keeps_the_agents_words():
    log = started()
    log.submit()
    log.fail("tool_error: x: y")
    assert (log.live_header.status, log.live_header.failure_reason) == ("failed", "tool_error: x: y")
    assert log.events[-2].payload.reason == "tool_error: x: y"
    assert json.loads(log.events[-1].payload.error.json) == {"reason": "execution_failed"}


def test_cancel_discards_a_pending_dispatch():
    log = ListLog()
    log.create()
    assert log.cancel() == Done()
    assert log.event_types[-2:] == ["execution.cancelled", "dispatch.discarded"]
    payload = log.events[-1].payload
    assert (payload.status, payload.attempt) == ("exhausted", 0)
    assert log.live_header.failure_reason == "client_cancelled"


@pytest.mark.parametrize("end", ["cancel", "complete", "fail"])
@pytest.mark.parametrize("then", ["cancel", "complete", "fail"])
def test_a_terminal_execution_never_changes(end: str, then: str):
    log = started()
    getattr(log, end)()
    before = log.live_header
    answer = getattr(log, then)()
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.detail_name, answer.detail) == ("execution_terminal", "status", before.status)
    assert (log.live_header.status, log.live_header.event_count) == (before.status, before.event_count)


@pytest.mark.parametrize(
    ("lease", "code"), [(Lease(DISPATCH, 2), "lease_superseded"), (Lease(EXECUTION, 1), "validation_error")]
)
def test_only_the_current_lease_ends_an_execution(lease: Lease, code: str):
    log = started()
    answer = log.complete(lease=lease)
    assert isinstance(answer, Refusal)
    assert answer.code == code


def test_a_refused_settle_refuses_the_end():
    log = started()
    answer = log.complete(settle=[result_of("0" * 64, 1)])
    assert isinstance(answer, Refusal)
    assert answer.code == "not_found"
    assert log.live_header.status == "running"


def test_deadline_and_end_of_life_cancel():
    for due in ("deadline_at", "life_ends_at"):
        log = started(deadline_at=START + SECOND)
        assert log.deadline(START + 2) == Ignored()
        assert log.deadline(getattr(log.live_header, due)) == Done()
        assert log.live_header.failure_reason == "deadline_exceeded"
        assert log.deadline(START + SECOND) == Ignored()


def test_fold_time_never_steps_back():
    log = started()
    log.later(10)
    log.submit("a")
    log.later(-3600)
    log.submit("b")
    times = [event.at for event in log.events]
    assert times == sorted(times)


def test_what_a_clock_that_runs_ahead_makes_due_is_due_when_the_log_has_it():
    ahead = ListLog()
    ahead.create()
    ahead.claim()
    ahead.delivery_failed("timeout")
    log = ListLog()
    stored_at = START - 3600 * SECOND

    for entry, _ in ahead.entries:
        log.append(entry, stored_at=stored_at)

    assert log.live_header.created_at == log.live_header.updated_at == stored_at
    assert log.live_header.dispatch.due_at == stored_at + SECOND
    assert {event.at for event in log.events} == {stored_at}


def test_a_late_or_repeated_entry_folds_to_nothing_and_is_answered_to_nobody():
    log = started()
    late_by = 24 * SECOND + 1
    entry = {**log.stamp(), "cancelled_by": "api"}
    cancelled = ExecutionCancelled(**entry)
    assert log.append(cancelled, stored_at=log.now + late_by) is None
    assert log.append(cancelled, is_repeated=True) is None
    assert log.live_header.status == "running"
    assert log.live_header.entry_count == 4
    assert log.append(cancelled, stored_at=cancelled.expires) == Done()


def test_a_creation_that_came_late_makes_nothing():
    log = ListLog()
    log.create()
    entry, position = log.entries[0]
    assert entry.expires is not None
    late = Position(seq=1, stored_at=entry.expires + 1, payload=position.payload)
    assert fold(None, DictRecords(), entry, late) == Folded(header=None, answer=None)


def test_entries_of_an_execution_that_does_not_exist():
    log = ListLog()
    answer = log.cancel()
    assert answer == Refusal("not_found", "execution not found")
    assert log.agent_missing() == Ignored()
    assert log.header is None


def test_an_entry_of_another_tenant_learns_and_leaves_nothing():
    log = started()
    step = log.submit("tool", 1).step_id
    before = log.live_header
    foreign = [
        StepCompleted(**log.stamp(tenant="other"), lease=log.lease, step_id=step, result=raw(1)),
        ExecutionCancelled(**log.stamp(tenant="other"), cancelled_by="other"),
    ]
    for entry in foreign:
        assert log.append(entry) == Refusal("not_found", "execution not found")
    due = DispatchClaimed(**log.stamp(tenant="other", is_system=True), lease=log.lease, claimed_by="x")
    assert log.append(due) == Ignored()
    assert log.live_header is before


def test_a_parked_entry_halts_its_execution_until_it_is_released():
    log = started()
    position = Position(seq=9, stored_at=log.now, payload=b"damaged")
    folded = park(log.live_header, position, "the checksum does not match")
    log.header = folded.header
    assert isinstance(folded.answer, Refusal)
    assert (folded.answer.code, folded.answer.detail) == ("unavailable", "halted")
    assert duties(log.live_header) == NO_DUTIES

    refused = log.submit()
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.detail) == ("unavailable", "halted")
    assert log.expire() == Ignored()

    assert log.release() == Ignored()
    assert log.live_header.halted == ""
    assert log.submit().decision == "proceed"


def test_the_chain_covers_every_entry_in_order():
    one, two = started(), started()
    assert one.live_header.chain == two.live_header.chain
    one.submit("a")
    two.submit("b")
    assert one.live_header.chain != two.live_header.chain
    refused_before = one.live_header.chain
    one.submit(lease=Lease(DISPATCH, 9))
    assert one.live_header.chain != refused_before


def test_the_fold_leaves_its_input_alone():
    log = started()
    header = log.live_header
    entry, _ = log.entries[1]
    frozen = str(header)
    fold(header, DictRecords(), entry, Position(seq=3, stored_at=log.now, payload=b""))
    log.submit()
    assert str(header) == frozen
