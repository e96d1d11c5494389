"""What a projector reads before it folds: the fields that entries name outright."""

from kernel.domain.fold.plan import first_fields
from schemas.records import dispatch_field, key_field, step_field
from tests.support.folding import DISPATCH, ListLog, error_of, request_key, result_of, started

STEP, OTHER = "ab" * 32, "cd" * 32
KEY = request_key("end", "out").key


def last_fields(log: ListLog) -> set[bytes]:
    return first_fields([log.entries[-1][0]])


def test_an_end_names_its_lease_its_key_and_the_steps_whose_outcomes_it_brings():
    named = {dispatch_field(DISPATCH), key_field(KEY), step_field(STEP), step_field(OTHER)}
    settle = (result_of(STEP, 1), error_of(OTHER, {"message": "no"}))
    completed, failed = started(), started()
    completed.complete("out", settle=settle, key="end")
    failed.fail("out", settle=settle, key="end")
    assert last_fields(completed) == last_fields(failed) == named


def test_an_outcome_names_its_step_and_a_heartbeat_its_lease_alone():
    log = started()
    log.complete_step(STEP)
    assert last_fields(log) == {dispatch_field(DISPATCH), step_field(STEP)}
    log.fail_step(OTHER, {"message": "no"}, key="k")
    assert last_fields(log) >= {dispatch_field(DISPATCH), step_field(OTHER)}
    log.heartbeat()
    assert last_fields(log) == {dispatch_field(DISPATCH)}


def test_what_needs_nothing_but_the_header_names_nothing():
    log = started()
    log.cancel()
    assert last_fields(log) == set()
