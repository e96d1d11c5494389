"""The life of a dispatch and its lease: claim, delivery, acknowledgement, retry, expiry."""

from msgspec.structs import replace

from kernel.domain.duty import is_lease_left_to_end
from kernel.domain.fold.draft import Draft
from kernel.domain.fold.endings import fail
from kernel.domain.retry import retry_wait_ms
from schemas.answers import AnyAnswer, Claimed, Done, Ignored, Refusal
from schemas.entries import (
    AgentMissing,
    DispatchClaimed,
    DispatchDelivered,
    DispatchFailed,
    HeartbeatReceived,
    Lease,
    LeaseExpired,
)
from schemas.records import Dispatch

UNREACHABLE = "unreachable"
TELL_UNREACHABLE_EVERY = 60_000_000
"""Microseconds between two dispatch.failed events of an unreachable target."""


def check_lease(draft: Draft, lease: Lease) -> Refusal | None:
    """Return why the lease may not mutate this live execution, None where it is the current one."""
    if not draft.records.has_dispatch(lease.dispatch_id):
        return Refusal(
            code="validation_error",
            message="the execution never had this dispatch id",
            detail_name="path",
            detail="Rebuno-Dispatch-Id",
        )
    if draft.header.lease != lease:
        return Refusal(code="lease_superseded", message="a newer delivery attempt holds the lease")
    return None


def use_lease(draft: Draft, *, renews: bool) -> None:
    """Let an accepted request acknowledge its attempt, and renew the lease where it may.

    The caller has checked that the lease is the current one. A retired dispatch is neither acknowledged nor renewed.
    """
    header = draft.header
    dispatch = header.dispatch
    if dispatch.state in ("retired", "used_up") or header.lease is None:
        return
    if dispatch.dispatch_id != header.lease.dispatch_id:
        return
    if not header.is_lease_acknowledged:
        acknowledge(draft)
    elif renews:
        header.renewed_seq = draft.seq
        if dispatch.state != "acknowledged":
            header.dispatch = replace(dispatch, state="acknowledged")


def acknowledge(draft: Draft) -> None:
    """Record that the agent has the current attempt; a redelivery that was pending is taken back."""
    header = draft.header
    header.is_lease_acknowledged = True
    header.renewed_seq = draft.seq
    header.dispatch = replace(
        header.dispatch, state="acknowledged", tries=0, unreachable_since=0, unreachable_told_at=0
    )
    draft.emit_dispatch("dispatch.acked", "acked")


def on_heartbeat(draft: Draft, entry: HeartbeatReceived) -> AnyAnswer:
    """Renew the lease. After the end of the execution every lease is superseded, so that handlers stop."""
    if draft.header.is_terminal:
        return Refusal(code="lease_superseded", message="the execution has ended")
    refusal = check_lease(draft, entry.lease)
    if refusal is not None:
        return refusal
    use_lease(draft, renews=True)
    return Done()


def on_claimed(draft: Draft, entry: DispatchClaimed) -> AnyAnswer:
    """Hand the next attempt to the dispatcher that asks first; counters and keys of the last one end here."""
    header = draft.header
    dispatch = header.dispatch
    if header.is_terminal or dispatch.state not in ("due", "waiting"):
        return Ignored()
    if entry.lease != Lease(dispatch_id=dispatch.dispatch_id, attempt=dispatch.next_attempt):
        return Ignored()
    header.dispatch = replace(
        dispatch,
        state="in_flight",
        attempt=dispatch.next_attempt,
        next_attempt=dispatch.next_attempt + 1,
        duty_seq=draft.seq,
    )
    header.lease = entry.lease
    header.is_lease_acknowledged = False
    header.is_lease_over = False
    header.claimed_by = entry.claimed_by
    header.claims += 1
    header.renewed_seq = draft.seq
    # Claims of one attempt share their entry id, so the id alone does not tell whose claim this was.
    return Claimed(claimed_by=entry.claimed_by) if entry.is_answered_by_name is True else Done()


def is_outcome_awaited(draft: Draft, lease: Lease) -> bool:
    """Whether the delivery of this lease is still in flight and unacknowledged."""
    header = draft.header
    return not header.is_terminal and header.lease == lease and header.dispatch.state == "in_flight"


def on_delivered(draft: Draft, entry: DispatchDelivered) -> AnyAnswer:
    if not is_outcome_awaited(draft, entry.lease):
        return Ignored()
    acknowledge(draft)
    return Done()


def on_delivery_failed(draft: Draft, entry: DispatchFailed) -> AnyAnswer:
    if not is_outcome_awaited(draft, entry.lease):
        return Ignored()
    dispatch = draft.header.dispatch
    if entry.reason == UNREACHABLE:
        since = dispatch.unreachable_since or draft.now
        draft.header.dispatch = dispatch = replace(dispatch, unreachable_since=since)
        if draft.now - since < draft.header.limits.unreachable_ms * 1000:
            try_again(draft, entry)
            return Done()
    draft.emit_dispatch("dispatch.failed", "failed", reason=entry.reason)
    if dispatch.attempt >= draft.header.limits.attempts_max:
        use_up(draft)
        return Done()
    is_reached = entry.reason != UNREACHABLE
    draft.header.dispatch = replace(
        dispatch,
        tries=0,
        unreachable_since=0 if is_reached else dispatch.unreachable_since,
        unreachable_told_at=0 if is_reached else draft.now,
    )
    wait(draft, entry, tries=dispatch.attempt, next_attempt=dispatch.attempt + 1)
    return Done()


def try_again(draft: Draft, entry: DispatchFailed) -> None:
    """Try the same attempt of an unreachable target again; it uses up nothing and says so once a minute."""
    dispatch = draft.header.dispatch
    told_at = dispatch.unreachable_told_at
    if told_at == 0 or draft.now - told_at >= TELL_UNREACHABLE_EVERY:
        draft.emit_dispatch("dispatch.failed", "failed", reason=UNREACHABLE)
        told_at = draft.now
    draft.header.dispatch = replace(dispatch, tries=dispatch.tries + 1, unreachable_told_at=told_at)
    wait(draft, entry, tries=dispatch.tries + 1, next_attempt=dispatch.attempt)


def wait(draft: Draft, entry: DispatchFailed, *, tries: int, next_attempt: int) -> None:
    limits = draft.header.limits
    wait_ms = retry_wait_ms(
        tries=tries,
        base_ms=limits.base_delay_ms,
        max_ms=limits.delay_max_ms,
        jitter_permille=entry.jitter_permille,
        retry_after_ms=entry.retry_after_ms,
    )
    draft.header.dispatch = replace(
        draft.header.dispatch,
        state="waiting",
        next_attempt=next_attempt,
        due_at=draft.now + wait_ms * 1000,
        duty_seq=draft.seq,
    )


def on_lease_expired(draft: Draft, entry: LeaseExpired) -> AnyAnswer:
    """Return the dispatch to due, unless something renewed the lease since or no attempt is left."""
    header = draft.header
    dispatch = header.dispatch
    if header.is_terminal or header.lease != entry.lease or header.renewed_seq != entry.renewed_seq:
        return Ignored()
    if is_lease_left_to_end(header):
        end_left_lease(draft)
        return Done()
    if dispatch.state not in ("in_flight", "acknowledged"):
        return Ignored()
    if dispatch.attempt >= header.limits.attempts_max:
        use_up(draft)
    else:
        header.dispatch = returned(dispatch, now=draft.now, seq=draft.seq)
    return Done()


def end_left_lease(draft: Draft) -> None:
    """Note that nothing of the attempt before a block runs any more; a dispatch that waited for it becomes due."""
    header = draft.header
    header.is_lease_over = True
    header.awaited = ()
    if header.dispatch.state == "held":
        header.dispatch = replace(header.dispatch, state="due", due_at=draft.now, duty_seq=draft.seq)


def returned(dispatch: Dispatch, *, now: int, seq: int) -> Dispatch:
    """Return the dispatch as due at once, for the attempt after the one whose lease ended."""
    return replace(dispatch, state="due", next_attempt=dispatch.attempt + 1, due_at=now, duty_seq=seq)


def use_up(draft: Draft) -> None:
    """End the execution: no attempt is left. The used-up dispatch then retires without an event."""
    draft.header.dispatch = replace(draft.header.dispatch, state="used_up")
    fail(draft, "dispatch_exhausted")


def on_agent_missing(draft: Draft, entry: AgentMissing) -> AnyAnswer:
    dispatch = draft.header.dispatch
    if draft.header.is_terminal or dispatch.dispatch_id != entry.dispatch_id:
        return Ignored()
    if dispatch.state not in ("due", "waiting"):
        return Ignored()
    fail(draft, "agent_deleted")
    return Done()
