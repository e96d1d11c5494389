"""Submissions and outcomes of steps: occurrence, identity, replay, orphans, settle, request keys."""

from typing import assert_never

from msgspec import UNSET
from msgspec.structs import replace

from kernel.domain.errors import InvariantBroken
from kernel.domain.fold import approvals, rates
from kernel.domain.fold.dispatches import check_lease, use_lease
from kernel.domain.fold.draft import Draft
from kernel.domain.fold.keys import bind_key, first_answer
from kernel.domain.identity import call_digest, step_id
from schemas.answers import AnyAnswer, Decided, Recorded, Refusal
from schemas.bodies import Body, Usage, reason_body
from schemas.entries import Outcome, StepCompleted, StepFailed, StepSubmitted
from schemas.records import CallCounter, StepRecord

OPEN_STEPS_MAX = 1000
INDETERMINATE_RETRY = "__indeterminate_retry"
BUDGET_EXCEEDED = "execution_token_budget_exceeded"
INDETERMINATE_MESSAGE = "the attempt that ran this step ended before it reported an outcome"
UNBOUND_DECISIONS = frozenset({"rate_limited", "execution_blocked", "execution_terminal"})


def on_submitted(draft: Draft, entry: StepSubmitted) -> AnyAnswer:
    """Decide a submission; the order of the checks is the contract's."""
    header = draft.header
    first = first_answer(draft, entry.key)
    if first is not None:
        is_kept = not isinstance(first, Refusal) and not header.is_terminal and header.lease == entry.lease
        if is_kept:
            use_lease(draft, renews=True)
        return first
    if header.is_terminal:
        return Decided(decision="execution_terminal")
    refusal = check_lease(draft, entry.lease)
    if refusal is not None:
        return refusal
    use_lease(draft, renews=True)
    refusal = settle(draft, entry.settle)
    if refusal is not None:
        return refusal
    answer = decide(draft, entry)
    if isinstance(answer, Decided) and answer.decision not in UNBOUND_DECISIONS:
        bind_key(draft, entry.key, answer)
    return answer


def decide(draft: Draft, entry: StepSubmitted) -> Decided | Refusal:
    """Find or make the step that this call is."""
    header = draft.header
    digest = call_digest(entry.kind, entry.target, entry.args_hash)
    counter = draft.records.counter(digest) or CallCounter(claims=header.claims, uses=0)
    if counter.claims != header.claims:
        counter = replace(counter, claims=header.claims, uses=0)
    counted = replace(counter, uses=counter.uses + 1)
    identity = step_id(header.execution_id, entry.kind, entry.target, entry.args_hash, counter.uses)
    step = draft.step(identity)
    if step is not None:
        draft.put_counter(digest, counted)
        return decide_again(draft, step, entry, digest)
    if header.status == "blocked":
        return Decided(decision="execution_blocked")
    if len(header.open_steps) >= OPEN_STEPS_MAX:
        return Refusal(code="rate_limited", message="too many open steps", detail_name="reason", detail="open_steps")
    step = StepRecord(
        step_id=identity,
        ordinal=header.step_count + 1,
        kind=entry.kind,
        target=entry.target,
        args_hash=entry.args_hash,
        occurrence=counter.uses,
        status="executing",
        idempotency=entry.idempotency,
        args=draft.body(bytes(entry.args), "args"),
        rule_id=entry.verdict.rule_id,
        policy_version=entry.verdict.policy_version,
        started_at=draft.now,
    )
    is_retry = entry.idempotency == "at_most_once" and counter.is_indeterminate
    limited = "" if is_retry else rates.refused(draft, entry.verdict)
    if limited:
        return Decided(decision="rate_limited", reason=limited, rule_id=step.rule_id)
    draft.put_counter(digest, counted)
    if is_retry:
        return deny(draft, replace(step, rule_id=INDETERMINATE_RETRY, policy_version=0), "indeterminate_retry")
    return decide_new(draft, step, entry)


def decide_new(draft: Draft, step: StepRecord, entry: StepSubmitted) -> Decided:
    """Do with a step that policy has not seen before what its verdict says."""
    verdict = entry.verdict
    if verdict.decision == "deny":
        return deny(draft, step, verdict.reason or "policy_denied")
    spent = draft.header.usage.total_tokens
    if entry.kind == "llm_call" and 0 < verdict.token_budget_max <= spent:
        return deny(draft, step, BUDGET_EXCEEDED)
    if verdict.approval is not None:
        return approvals.ask(draft, step, entry, verdict.approval)
    draft.put_new_step(step)
    draft.await_step(step)
    draft.emit_step("step.proposed", step)
    draft.emit_step("step.allowed", step)
    draft.emit_step("step.executing", step)
    return Decided(decision="proceed", step_id=step.step_id, rule_id=step.rule_id, is_new=True)


def deny(draft: Draft, step: StepRecord, reason: str) -> Decided:
    """Record a step that never runs, so that every later attempt is told the same."""
    error = reason_body(draft.seq, reason, rule_id=step.rule_id)
    denied = replace(step, status="denied", reason=reason, error=error, started_at=None, completed_at=draft.now)
    draft.put_new_step(denied)
    draft.emit_step("step.proposed", denied)
    draft.emit_step("step.denied", denied, error=error)
    return Decided(decision="denied", step_id=step.step_id, reason=reason, rule_id=step.rule_id, is_new=True)


def decide_again(draft: Draft, step: StepRecord, entry: StepSubmitted, digest: bytes) -> Decided:
    """Answer for a step that an earlier attempt made. Policy is not asked again."""
    match step.status:
        case "succeeded" | "failed":
            return replayed(step)
        case "denied":
            return Decided(decision="denied", step_id=step.step_id, reason=step.reason, rule_id=step.rule_id)
        case "awaiting_approval":
            return Decided(decision="blocked", step_id=step.step_id, approval_id=step.approval_id, rule_id=step.rule_id)
        case "allowed":
            started = replace(step, status="executing", started_at=draft.now)
            draft.put_step(started)
            draft.emit_step("step.executing", started)
            return Decided(decision="proceed", step_id=step.step_id, rule_id=step.rule_id)
        case "executing":
            if step.idempotency == "safe_to_retry" and entry.idempotency == "safe_to_retry":
                return Decided(decision="proceed", step_id=step.step_id, rule_id=step.rule_id)
            return give_up_orphan(draft, step, digest)
        case "cancelled":
            raise InvariantBroken("a live execution has a cancelled step")
        case _:
            assert_never(step.status)


def give_up_orphan(draft: Draft, step: StepRecord, digest: bytes) -> Decided:
    """Fail an at_most_once step whose outcome nobody can know, and remember that its call is not to be retried."""
    error = reason_body(draft.seq, "indeterminate", message=INDETERMINATE_MESSAGE)
    failed = end_step(draft, step, result=None, error=error, usage=None)
    draft.put_counter(digest, replace(draft.counters[digest], is_indeterminate=True))
    return replayed(failed)


def replayed(step: StepRecord) -> Decided:
    return Decided(decision="replay", step_id=step.step_id, result=step.result, error=step.error)


def end_step(
    draft: Draft, step: StepRecord, *, result: Body | None, error: Body | None, usage: Usage | None
) -> StepRecord:
    """Give an executing step its one outcome."""
    is_success = error is None
    ended = replace(
        step,
        status="succeeded" if is_success else "failed",
        result=result,
        error=error,
        usage=usage,
        completed_at=draft.now,
    )
    draft.put_step(ended)
    draft.emit_step("step.succeeded" if is_success else "step.failed", ended, error=error)
    return ended


def settle(draft: Draft, outcomes: tuple[Outcome, ...]) -> Refusal | None:
    """Apply outcomes that travel with another request, in order; the first bad one refuses the whole request."""
    for index, outcome in enumerate(outcomes):
        step = draft.step(outcome.step_id)
        if step is None:
            return STEP_NOT_FOUND
        if step.is_terminal:
            continue
        if step.status != "executing":
            return STEP_NOT_EXECUTING
        place = f"settle.{index}"
        result = None if outcome.result is UNSET else draft.body(bytes(outcome.result), place)
        error = None if outcome.error is UNSET else draft.body(bytes(outcome.error), place)
        end_step(draft, step, result=result, error=error, usage=usage_of(step, outcome))
    return None


def usage_of(step: StepRecord, outcome: Outcome | StepCompleted) -> Usage | None:
    """Return what a step took: as it was sent, else as the record of an LLM call says it."""
    if outcome.usage is not None or step.kind != "llm_call" or outcome.read_usage is UNSET:
        return outcome.usage
    return outcome.read_usage


STEP_NOT_FOUND = Refusal(code="not_found", message="step not found")
STEP_NOT_EXECUTING = Refusal(code="conflict", message="the step is not executing")


def on_step_completed(draft: Draft, entry: StepCompleted) -> AnyAnswer:
    return record_outcome(draft, entry, result=draft.body(bytes(entry.result), "result"), error=None)


def on_step_failed(draft: Draft, entry: StepFailed) -> AnyAnswer:
    return record_outcome(draft, entry, result=None, error=draft.body(bytes(entry.error), "error"))


def record_outcome(
    draft: Draft, entry: StepCompleted | StepFailed, *, result: Body | None, error: Body | None
) -> AnyAnswer:
    """Record the first outcome of a step; whatever comes later is told what was recorded."""
    step = draft.step(entry.step_id)
    if step is None:
        return STEP_NOT_FOUND
    first = first_answer(draft, entry.key)
    if first is not None:
        return first
    if draft.header.is_terminal:
        return Recorded(decision="execution_terminal")
    refusal = check_lease(draft, entry.lease)
    if refusal is not None:
        return refusal
    answer = Recorded(decision="replay", result=step.result, error=step.error)
    if not step.is_terminal and step.status != "executing":
        return STEP_NOT_EXECUTING
    use_lease(draft, renews=False)
    if not step.is_terminal:
        usage = usage_of(step, entry) if isinstance(entry, StepCompleted) else None
        end_step(draft, step, result=result, error=error, usage=usage)
        answer = Recorded(decision="recorded")
    bind_key(draft, entry.key, answer)
    return answer
