"""Approvals: the block of an execution, the one decision that ends it, and what holds the resumed work back.

Of a decision, an expiry, a cancel and a completion that race, the first in the log wins.
"""

from typing import Literal

from msgspec.structs import replace

from kernel.domain.errors import InvariantBroken
from kernel.domain.fold.draft import Draft
from kernel.domain.fold.keys import bind_key, first_answer
from schemas.answers import AnyAnswer, Decided, DecidedBefore, Done, Ignored, Refusal
from schemas.bodies import reason_body
from schemas.entries import ApprovalDecided, ApprovalExpired, ApprovalTerms, StepSubmitted
from schemas.events import ApprovalPayload, EventType, ExecutionPayload
from schemas.records import Approval, ApprovalRecord, Dispatch, StepRecord

Ended = Literal["granted", "denied", "expired"]
_EVENT: dict[Ended, EventType] = {
    "granted": "approval.granted",
    "denied": "approval.denied",
    "expired": "approval.expired",
}
APPROVAL_NOT_FOUND = Refusal(code="not_found", message="approval not found")
DENIED = "approval_denied"
TIMED_OUT = "approval_timeout"


def ask(draft: Draft, step: StepRecord, entry: StepSubmitted, terms: ApprovalTerms) -> Decided:
    """Block the execution until a person decides about a new step. Its dispatch retires without an event."""
    header = draft.header
    waiting = replace(step, status="awaiting_approval", approval_id=entry.verdict.approval_id, started_at=None)
    approval = ApprovalRecord(
        approval_id=waiting.approval_id,
        step_id=step.step_id,
        target=step.target,
        rule_id=step.rule_id,
        status="pending",
        approvers=terms.approvers,
        message=terms.message,
        separate_requester=terms.separate_requester,
        created_at=draft.now,
        timeout_at=draft.now + terms.timeout_ms * 1000,
    )
    draft.put_new_step(waiting)
    draft.put_approval(approval)
    header.status = "blocked"
    header.approval = Approval(approval.approval_id, step.step_id, approval.timeout_at)
    header.dispatch = replace(header.dispatch, state="retired")
    header.awaited = ()
    draft.emit_step("step.proposed", waiting)
    draft.emit_step("step.awaiting_approval", waiting)
    emit(draft, "approval.requested", approval)
    draft.emit("execution.blocked", ExecutionPayload(status="blocked"))
    return Decided(
        decision="blocked",
        step_id=step.step_id,
        approval_id=approval.approval_id,
        rule_id=step.rule_id,
        is_new=True,
    )


def on_decided(draft: Draft, entry: ApprovalDecided) -> AnyAnswer:
    """Judge the decision of a principal; the order of the checks is the contract's."""
    approval = draft.approval(entry.approval_id)
    if approval is None:
        return APPROVAL_NOT_FOUND
    first = first_answer(draft, entry.key)
    if first is not None:
        return first
    if approval.status != "pending":
        return DecidedBefore(approval.status, approval.decided_by, approval.decided_at or 0)
    if approval.approvers and entry.decided_by not in approval.approvers:
        return Refusal(code="forbidden", message="the decider is not among the approvers of the rule")
    if approval.separate_requester and entry.principal == draft.header.created_by:
        return Refusal(code="forbidden", message="who created the execution may not decide")
    ended = replace(
        approval,
        status=entry.decision,
        decided_by=entry.decided_by,
        asserted_by=entry.asserted_by,
        rationale=entry.rationale,
        decided_at=draft.now,
    )
    end(draft, ended)
    if entry.decision == "granted":
        allow(draft, ended)
    else:
        deny(draft, ended, entry.rationale or DENIED)
    resume(draft, entry.dispatch_id)
    bind_key(draft, entry.key, Done(), is_lasting=True)
    return Done()


def on_expired(draft: Draft, entry: ApprovalExpired) -> AnyAnswer:
    """Deny what nobody decided in time, unless somebody did meanwhile."""
    header = draft.header
    if header.is_terminal or header.approval is None or header.approval.approval_id != entry.approval_id:
        return Ignored()
    expired = expire(draft, "timeout")
    deny(draft, expired, TIMED_OUT)
    resume(draft, entry.dispatch_id)
    return Done()


def close_pending(draft: Draft, reason: str) -> None:
    """Expire the pending approval of an execution that ends, and deny its step."""
    if draft.header.approval is not None:
        deny(draft, expire(draft, reason), reason)


def expire(draft: Draft, rationale: str) -> ApprovalRecord:
    pending = draft.header.approval
    approval = None if pending is None else draft.approval(pending.approval_id)
    if approval is None:
        raise InvariantBroken("the header names an approval that has no record")
    expired = replace(approval, status="expired", rationale=rationale, decided_at=draft.now)
    end(draft, expired)
    return expired


def end(draft: Draft, approval: ApprovalRecord) -> None:
    """Give the pending approval its one end."""
    if approval.status == "pending":
        raise InvariantBroken("an approval was to end as pending")
    draft.put_approval(approval)
    draft.header.approval = None
    emit(draft, _EVENT[approval.status], approval)


def allow(draft: Draft, approval: ApprovalRecord) -> None:
    """Let the step run at its next submission. It was a person who allowed it, so no rule is named."""
    allowed = replace(draft.known_step(approval.step_id), status="allowed")
    draft.put_step(allowed)
    draft.emit_step("step.allowed", allowed, is_verdict=False)


def deny(draft: Draft, approval: ApprovalRecord, reason: str) -> None:
    error = reason_body(draft.seq, reason)
    step = draft.known_step(approval.step_id)
    denied = replace(step, status="denied", reason=reason, error=error, completed_at=draft.now)
    draft.put_step(denied)
    draft.emit_step("step.denied", denied, error=error, is_verdict=False)


def resume(draft: Draft, dispatch_id: str) -> None:
    """Let the execution run on by a new dispatch, once nothing of the attempt before can be orphaned by it."""
    header = draft.header
    header.status = "running"
    header.awaited = () if header.is_lease_over else tuple(stragglers(draft))
    header.dispatch = Dispatch(
        dispatch_id=dispatch_id,
        state="held" if header.awaited else "due",
        attempt=0,
        next_attempt=1,
        due_at=draft.now,
        duty_seq=draft.seq,
    )
    draft.put_dispatch(dispatch_id)
    draft.emit("execution.resumed", ExecutionPayload(status="running"))
    draft.emit_dispatch("dispatch.queued", "pending")


def stragglers(draft: Draft) -> list[str]:
    """Return the open steps that must not run twice and that the attempt before may still be running."""
    steps = (draft.known_step(step_id) for step_id in draft.header.open_steps)
    return [step.step_id for step in steps if step.status == "executing" and step.idempotency == "at_most_once"]


def emit(draft: Draft, type: EventType, approval: ApprovalRecord) -> None:
    is_decided = approval.status in ("granted", "denied")
    draft.emit(
        type,
        ApprovalPayload(
            approval_id=approval.approval_id,
            step_id=approval.step_id,
            status=approval.status,
            decided_by=approval.decided_by if is_decided else None,
            asserted_by=approval.asserted_by or None,
            rationale=approval.rationale or None,
        ),
    )
