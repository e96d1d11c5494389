"""Claims, acknowledgement, retries, leases: rule by rule of the contract's sections 4 and 7."""

import pytest
from msgspec.structs import replace

from kernel.domain.duty import duties
from schemas.answers import Decided, Done, Ignored, Refusal
from schemas.entries import Lease
from tests.support.folding import DISPATCH, LIMITS, SECOND, ListLog, started, uuid_number


def test_a_claim_takes_the_attempt_it_expects_and_no_other():
    log = ListLog()
    log.create()
    assert log.claim(attempt=2) == Ignored()
    assert log.claim(dispatch_id=uuid_number(9)) == Ignored()
    assert log.claim(by="me") == Done()
    assert log.claim(attempt=1) == Ignored()
    header = log.live_header
    assert (header.lease, header.claims, header.claimed_by) == (Lease(DISPATCH, 1), 1, "me")
    due = duties(header)
    assert (due.delivery_at, due.lease_ms, due.renewable) == (None, LIMITS.unacknowledged_lease_ms, None)


def test_a_2xx_acknowledges_once():
    log = started()
    assert log.delivered() == Done()
    assert log.delivered() == Ignored()
    assert log.event_types.count("dispatch.acked") == 1
    due = duties(log.live_header)
    assert (due.lease_ms, due.renewable) == (LIMITS.lease_ms, Lease(DISPATCH, 1))


@pytest.mark.parametrize("use", ["submit", "heartbeat"])
def test_the_first_use_acknowledges_and_a_late_failure_changes_nothing(use: str):
    log = started()
    getattr(log, use)()
    assert log.event_types[3] == "dispatch.acked"
    assert log.delivery_failed("http_500") == Ignored()
    assert log.delivered() == Ignored()
    assert "dispatch.failed" not in log.event_types


def test_an_outcome_of_an_earlier_attempts_step_acknowledges_too():
    log = started()
    step = log.submit().step_id
    log.next_attempt()
    before = len(log.events)
    log.complete_step(step)
    assert log.new_events(before) == ["dispatch.acked", "step.succeeded"]


def test_a_refused_use_does_not_acknowledge():
    log = started()
    log.complete_step("0" * 64)
    log.submit(lease=Lease(DISPATCH, 9))
    log.submit(settle=[])
    assert log.event_types[3] == "dispatch.acked"
    log = started()
    log.complete_step("0" * 64)
    assert "dispatch.acked" not in log.event_types


def test_a_use_after_a_failed_delivery_acknowledges_and_cancels_the_redelivery():
    log = started()
    log.delivery_failed("http_500")
    assert duties(log.live_header).delivery_at is not None
    assert isinstance(log.submit(), Decided)
    assert log.event_types[3:5] == ["dispatch.failed", "dispatch.acked"]
    assert duties(log.live_header).delivery_at is None
    assert log.claim() == Ignored()


def test_a_failed_delivery_waits_longer_each_time_and_the_fifth_is_the_last():
    log = started()
    for attempt, wait_seconds in [(1, 1), (2, 2), (3, 4), (4, 8)]:
        assert log.lease.attempt == attempt
        log.delivery_failed("http_500", jitter=250)
        assert log.live_header.dispatch.due_at == log.now + int(wait_seconds * 1.25 * SECOND)
        log.later(11)
        log.claim()
    log.delivery_failed("timeout")
    assert log.event_types.count("dispatch.failed") == 5
    assert log.event_types[-2:] == ["dispatch.failed", "execution.failed"]
    assert log.live_header.failure_reason == "dispatch_exhausted"


def test_retry_after_raises_the_wait_up_to_a_minute():
    log = started()
    log.delivery_failed("http_503", retry_after_ms=3000)
    assert log.live_header.dispatch.due_at == log.now + 3 * SECOND
    log.claim()
    log.delivery_failed("http_503", retry_after_ms=600_000)
    assert log.live_header.dispatch.due_at == log.now + 60 * SECOND


def test_an_outcome_of_another_lease_changes_nothing():
    log = started()
    assert log.delivered(Lease(DISPATCH, 2)) == Ignored()
    assert log.delivery_failed("timeout", Lease(uuid_number(9), 1)) == Ignored()
    assert log.event_types[-1] == "dispatch.queued"


def test_an_unreachable_target_uses_up_nothing_and_says_so_once_a_minute():
    log = started()
    told = 0
    for tries in range(20):
        assert log.lease.attempt == 1
        log.delivery_failed("unreachable")
        told = log.event_types.count("dispatch.failed")
        waits = log.live_header.dispatch.due_at - log.now
        assert waits == min(2**tries, 30) * SECOND
        log.later(13)
        log.claim()
    assert told == 4
    assert log.live_header.claims == 21
    log.delivered()
    assert log.event_types[-1] == "dispatch.acked"
    assert log.live_header.dispatch.unreachable_since == 0


def test_past_the_limit_an_unreachable_target_counts():
    log = started()
    log.delivery_failed("unreachable")
    log.later(300)
    for attempt in range(1, 6):
        log.claim()
        assert log.lease.attempt == attempt
        log.delivery_failed("unreachable")
    assert log.live_header.failure_reason == "dispatch_exhausted"
    assert log.event_types.count("dispatch.failed") == 6


def test_a_reached_target_starts_the_count_anew():
    log = started()
    log.delivery_failed("unreachable")
    log.later(300)
    log.claim()
    log.delivery_failed("http_500")
    log.claim()
    assert log.lease.attempt == 2
    log.delivery_failed("unreachable")
    log.claim()
    assert log.lease.attempt == 2


def test_an_expired_lease_makes_the_next_attempt_due_without_an_event():
    log = started()
    log.delivered()
    before = len(log.events)
    assert log.expire() == Done()
    assert log.new_events(before) == []
    assert duties(log.live_header).delivery_at == log.now
    log.claim()
    assert log.lease == Lease(DISPATCH, 2)


@pytest.mark.parametrize("use", ["submit", "heartbeat"])
def test_a_renewal_since_makes_an_expiry_void(use: str):
    log = started()
    log.delivered()
    marked = log.live_header.renewed_seq
    getattr(log, use)()
    assert log.expire(renewed_seq=marked) == Ignored()
    assert log.expire(Lease(DISPATCH, 2)) == Ignored()
    assert log.expire() == Done()
    assert log.expire() == Ignored()


@pytest.mark.parametrize("use", ["submit", "heartbeat"])
def test_a_use_after_expiry_and_before_the_next_claim_takes_the_redelivery_back(use: str):
    log = started()
    log.delivered()
    log.expire()
    getattr(log, use)()
    assert log.claim() == Ignored()
    assert duties(log.live_header).renewable == Lease(DISPATCH, 1)
    assert log.event_types.count("dispatch.acked") == 1


def test_an_outcome_alone_does_not_renew():
    log = started()
    step = log.submit().step_id
    renewed = log.live_header.renewed_seq
    log.complete_step(step)
    assert log.live_header.renewed_seq == renewed


def test_five_expired_leases_use_the_dispatch_up():
    log = started()
    for _ in range(4):
        log.delivered()
        log.next_attempt()
    log.delivered()
    log.submit()
    log.expire()
    assert log.event_types[-2:] == ["execution.failed", "step.cancelled"]
    assert log.live_header.failure_reason == "dispatch_exhausted"
    assert log.heartbeat() == Refusal("lease_superseded", "the execution has ended")


def test_a_claim_of_an_ended_execution_is_void():
    log = ListLog()
    log.create()
    log.cancel()
    assert log.claim() == Ignored()
    assert log.agent_missing() == Ignored()


def test_a_deleted_agent_fails_the_execution_at_its_dispatch():
    log = ListLog()
    log.create()
    assert log.agent_missing(uuid_number(9)) == Ignored()
    assert log.agent_missing() == Done()
    assert log.event_types[-2:] == ["execution.failed", "dispatch.discarded"]
    assert log.live_header.failure_reason == "agent_deleted"
    running = started()
    assert running.agent_missing() == Ignored()


def test_heartbeats_of_other_leases_are_refused():
    log = started()
    stale = log.heartbeat(Lease(DISPATCH, 2))
    unknown = log.heartbeat(Lease(uuid_number(9), 1))
    assert isinstance(stale, Refusal)
    assert isinstance(unknown, Refusal)
    assert (stale.code, unknown.code) == ("lease_superseded", "validation_error")


def test_a_retired_dispatch_is_heard_but_not_renewed():
    log = started()
    log.heartbeat()
    log.ask()
    renewed = log.live_header.renewed_seq
    assert log.heartbeat() == Done()
    assert log.live_header.renewed_seq == renewed
    assert duties(log.live_header).renewable is None


def test_a_lease_of_an_older_dispatch_is_heard_but_not_renewed():
    log = started()
    log.heartbeat()
    log.live_header.dispatch = replace(log.live_header.dispatch, dispatch_id=uuid_number(3), state="due", attempt=0)
    renewed = log.live_header.renewed_seq
    assert log.heartbeat() == Done()
    assert log.live_header.renewed_seq == renewed
    assert log.live_header.dispatch.state == "due"
