"""The fold: approvals. A block, one decision, and a resumed dispatch that orphans nothing."""

from typing import Any

import pytest

from kernel.domain.duty import duties
from kernel.domain.errors import InvariantBroken
from kernel.domain.fold.approvals import end
from kernel.domain.fold.draft import Draft
from schemas.answers import Decided, DecidedBefore, Done, Ignored, Refusal
from schemas.entries import ApprovalTerms
from tests.support.folding import SECOND, ListLog, result_of, started, uuid_number

RESUMED = ["execution.resumed", "dispatch.queued"]


def blocked(**more: Any) -> ListLog:
    log = started()
    log.delivered()
    assert log.ask(**more).decision == "blocked"
    return log


def test_a_step_that_needs_an_approval_blocks_the_execution() -> None:
    log = started()
    log.delivered()
    since = len(log.events)

    answer = log.ask(terms=ApprovalTerms(approvers=("boss",), timeout_ms=60_000, message="sure?"))

    approval = log.live_header.approval
    assert answer == Decided(
        decision="blocked",
        step_id=approval.step_id,
        approval_id=approval.approval_id,
        rule_id="ask-first",
        is_new=True,
    )
    assert log.new_events(since) == [
        "step.proposed",
        "step.awaiting_approval",
        "approval.requested",
        "execution.blocked",
    ]
    assert log.live_header.status == "blocked"
    assert approval.timeout_at == log.now + 60 * SECOND
    record = log.records.approvals[approval.approval_id]
    assert (record.approvers, record.message, record.status) == (("boss",), "sure?", "pending")
    assert log.live_header.field_count == log.field_count


def test_a_block_releases_the_dispatch_and_its_lease_runs_out_unrenewed() -> None:
    log = blocked()
    due = duties(log.live_header)
    assert (due.delivery_at, due.renewable) == (None, None)
    assert due.lease_ms == log.live_header.limits.lease_ms
    renewed_seq = log.live_header.renewed_seq

    assert log.heartbeat() == Done()
    assert log.live_header.renewed_seq == renewed_seq
    assert log.expire() == Done()

    assert duties(log.live_header).lease_ms is None
    assert log.live_header.dispatch.state == "retired"
    assert log.expire() == Ignored()


def test_while_blocked_no_new_step_begins_and_a_repeat_is_told_what_it_was() -> None:
    log = blocked(key="once")
    approval_id = log.live_header.approval.approval_id
    since, fields = len(log.events), log.live_header.field_count

    assert log.ask(key="once").approval_id == approval_id
    assert log.submit("other", key="new") == Decided(decision="execution_blocked")
    assert log.ask() == Decided(decision="execution_blocked")

    assert log.new_events(since) == []
    assert log.live_header.field_count == fields + 3, "three entries of the log, and nothing else"


def test_a_parallel_step_ends_after_the_block() -> None:
    log = started()
    step = log.submit("parallel").step_id
    log.ask()

    assert log.complete_step(step, 1).decision == "recorded"
    assert log.live_header.status == "blocked"


def test_a_grant_resumes_by_a_new_dispatch_and_the_step_proceeds_once() -> None:
    log = blocked()
    step_id, old = log.live_header.approval.step_id, log.live_header.dispatch.dispatch_id
    since = len(log.events)

    assert log.decide("granted", rationale="looks fine") == Done()

    assert log.new_events(since) == ["approval.granted", "step.allowed", *RESUMED]
    assert log.events[since].payload.decided_by == "boss"
    assert log.events[since + 1].payload.rule_id is None
    assert log.live_header.status == "running"
    assert log.live_header.dispatch.dispatch_id != old
    assert (log.live_header.dispatch.state, log.live_header.dispatch.next_attempt) == ("due", 1)
    log.claim()
    assert log.submit("dangerous") == Decided(decision="proceed", step_id=step_id, rule_id="ask-first")
    assert log.event_types[-1] == "step.executing"
    assert log.live_header.field_count == log.field_count


@pytest.mark.parametrize(("rationale", "reason"), [("", "approval_denied"), ("not on a Friday", "not on a Friday")])
def test_a_denial_is_what_the_agent_sees_and_never_asks_again(rationale: str, reason: str) -> None:
    log = blocked()
    step_id = log.live_header.approval.step_id
    since = len(log.events)

    assert log.decide("denied", rationale=rationale) == Done()

    assert log.new_events(since) == ["approval.denied", "step.denied", *RESUMED]
    log.claim()
    assert log.ask() == Decided(decision="denied", step_id=step_id, reason=reason, rule_id="ask-first")
    assert log.live_header.status == "running"


def test_an_expiry_denies_and_resumes() -> None:
    log = blocked()
    approval_id = log.live_header.approval.approval_id
    assert duties(log.live_header).approval_at == log.live_header.approval.timeout_at
    since = len(log.events)

    assert log.expire_approval() == Done()

    assert log.new_events(since) == ["approval.expired", "step.denied", *RESUMED]
    assert log.events[since].payload.rationale == "timeout"
    assert log.records.steps[log.records.approvals[approval_id].step_id].reason == "approval_timeout"
    assert duties(log.live_header).approval_at is None
    assert log.expire_approval(approval_id) == Ignored()


@pytest.mark.parametrize("winner", ["granted", "denied", "expired"])
def test_the_first_decision_in_the_log_wins_and_the_loser_learns_which(winner: Any) -> None:
    log = blocked()
    approval_id = log.live_header.approval.approval_id
    if winner == "expired":
        log.expire_approval()
    else:
        log.decide(winner)
    decided_at, since = log.now, len(log.events)
    log.later(3)

    answer = log.decide("denied", by="other", approval_id=approval_id)

    assert answer == DecidedBefore(winner, "" if winner == "expired" else "boss", decided_at)
    assert log.expire_approval(approval_id) == Ignored()
    assert log.new_events(since) == []


def test_the_winner_may_repeat_its_decision_with_its_key_for_as_long_as_the_execution_lives() -> None:
    log = blocked()
    approval_id = log.live_header.approval.approval_id
    log.decide("granted", key="k", approval_id=approval_id)
    log.claim()

    assert log.decide("granted", key="k", approval_id=approval_id) == Done(is_replayed=True)
    assert isinstance(log.decide("denied", key="k", approval_id=approval_id), Refusal)


def test_only_an_approver_decides_by_the_exact_name() -> None:
    log = blocked(terms=ApprovalTerms(approvers=("boss", "deputy")))
    since = len(log.events)
    for name in ("clerk", "Boss", ""):
        assert log.decide("granted", by=name).code == "forbidden"
    assert log.new_events(since) == []
    assert log.live_header.approval is not None

    assert log.decide("granted", by="deputy") == Done()
    assert log.decide("denied", by="clerk", approval_id=next(iter(log.records.approvals))) == DecidedBefore(
        "granted", "deputy", log.now
    ), "what is decided is told before who may decide"


def test_who_created_the_execution_may_not_decide_where_the_rule_separates_the_two() -> None:
    log = blocked(terms=ApprovalTerms(separate_requester=True))

    assert log.decide("granted", by="api", decided_by="boss").code == "forbidden"
    assert log.decide("granted", by="boss", decided_by="api") == Done()


def test_an_unknown_approval_is_not_found() -> None:
    assert blocked().decide("granted", approval_id=uuid_number(7)).code == "not_found"


@pytest.mark.parametrize(
    ("end", "reason"),
    [("cancel", "execution_cancelled"), ("complete", "execution_completed"), ("fail", "execution_failed")],
)
def test_an_end_expires_the_approval_before_it_cancels_the_rest(end: str, reason: str) -> None:
    log = started()
    log.submit("parallel")
    log.ask()
    approval_id = log.live_header.approval.approval_id
    since = len(log.events)

    assert getattr(log, end)() == Done()

    assert log.new_events(since)[1:] == ["approval.expired", "step.denied", "step.cancelled"]
    assert log.events[since + 1].payload.rationale == reason
    assert log.live_header.approval is None
    assert log.live_header.open_steps == ()
    assert duties(log.live_header).approval_at is None
    answer = log.decide("granted", approval_id=approval_id)
    assert (answer.status, answer.decided_by) == ("expired", "")
    assert log.live_header.field_count == log.field_count


def test_a_crash_after_the_grant_follows_the_orphan_rule() -> None:
    log = blocked(idempotency="at_most_once")
    log.decide("granted")
    log.claim()
    assert log.submit("dangerous", idempotency="at_most_once").decision == "proceed"

    log.next_attempt()

    assert log.submit("dangerous", idempotency="at_most_once").decision == "replay"


class TestStragglers:
    """What runs at most once under the attempt before holds the new dispatch back."""

    def held(self) -> tuple[ListLog, str]:
        log = started()
        step_id = log.submit("charge", idempotency="at_most_once").step_id
        log.ask()
        assert log.decide("granted") == Done()
        assert log.live_header.dispatch.state == "held"
        assert duties(log.live_header).delivery_at is None
        assert log.claim() == Ignored()
        return log, step_id

    def test_it_is_due_when_the_step_has_ended(self) -> None:
        log, step_id = self.held()
        log.later(1)

        log.complete_step(step_id, "done")

        assert log.live_header.dispatch.state == "due"
        assert duties(log.live_header).delivery_at == log.now
        assert log.live_header.awaited == ()

    def test_it_is_due_when_an_outcome_that_travels_has_ended_the_step(self) -> None:
        log, step_id = self.held()
        log.submit("next", settle=[result_of(step_id, 1)])
        assert log.live_header.dispatch.state == "due"

    def test_it_is_due_when_the_lease_has_ended(self) -> None:
        log, _ = self.held()
        assert duties(log.live_header).lease_ms is not None

        assert log.expire() == Done()

        assert log.live_header.dispatch.state == "due"
        assert duties(log.live_header).lease_ms is None
        assert log.claim() == Done()

    def test_a_lease_that_ended_during_the_block_holds_nothing_back(self) -> None:
        log = started()
        log.submit("charge", idempotency="at_most_once")
        log.ask()
        log.expire()

        log.decide("granted")

        assert log.live_header.dispatch.state == "due"

    def test_a_step_that_may_run_again_holds_nothing_back(self) -> None:
        log = started()
        log.submit("read")
        log.ask()
        log.decide("granted")
        assert log.live_header.dispatch.state == "due"

    def test_a_step_that_starts_meanwhile_holds_it_back_too(self) -> None:
        log, step_id = self.held()
        other = log.submit("refund", idempotency="at_most_once").step_id

        log.complete_step(step_id)
        assert log.live_header.dispatch.state == "held"
        log.complete_step(other)
        assert log.live_header.dispatch.state == "due"

    def test_a_second_block_retires_the_dispatch_that_was_held(self) -> None:
        log, step_id = self.held()
        log.ask("another")
        assert (log.live_header.dispatch.state, log.live_header.awaited) == ("retired", ())

        log.complete_step(step_id)
        assert log.live_header.dispatch.state == "retired"
        log.decide("granted")
        assert log.live_header.dispatch.state == "due"

    def test_an_end_discards_it_aloud(self) -> None:
        log, _ = self.held()
        log.cancel()
        assert log.event_types[-1] == "dispatch.discarded"
        assert log.live_header.awaited == ()

    def test_after_the_claim_the_old_lease_is_superseded(self) -> None:
        log, step_id = self.held()
        old = log.lease
        log.expire()
        log.claim()
        assert log.complete_step(step_id, lease=old).code == "lease_superseded"
        assert log.live_header.is_lease_over is False


def test_an_approval_that_the_header_names_and_nobody_recorded_is_damage() -> None:
    log = blocked()
    log.records.approvals.clear()
    with pytest.raises(InvariantBroken):
        log.expire_approval()


def test_a_pending_approval_does_not_end_as_pending() -> None:
    log = blocked()
    draft = Draft(log.live_header, log.records, seq=99, now=log.now)
    with pytest.raises(InvariantBroken):
        end(draft, next(iter(log.records.approvals.values())))
