"""The entries a dispatcher appends.

Each id names the entry that created the duty, so any number of dispatchers may append it and it happens once.
"""

import time

from kernel.ports import DueItem, Outgoing
from schemas.entries import (
    AgentMissing,
    AnyEntry,
    ApprovalExpired,
    DeadlinePassed,
    DispatchClaimed,
    DispatchDelivered,
    DispatchFailed,
    Lease,
    LeaseExpired,
    encode_entry,
)
from schemas.ids import new_uuid7


def claimed(item: DueItem, *, claimed_by: str) -> DispatchClaimed:
    """A dispatcher wants to deliver the next attempt."""
    dispatch = item.header.dispatch
    return DispatchClaimed(
        id=f"claim.{item.execution_id}.{dispatch.duty_seq}",
        tenant=item.tenant,
        execution_id=item.execution_id,
        at=now(),
        lease=Lease(dispatch_id=dispatch.dispatch_id, attempt=dispatch.next_attempt),
        claimed_by=claimed_by,
        is_answered_by_name=True,
    )


def delivered(item: DueItem, *, lease: Lease, claim_seq: int) -> DispatchDelivered:
    """The agent has the attempt that was claimed at `claim_seq`."""
    return DispatchDelivered(
        id=f"delivered.{item.execution_id}.{claim_seq}",
        tenant=item.tenant,
        execution_id=item.execution_id,
        at=now(),
        lease=lease,
    )


def failed(
    item: DueItem, *, lease: Lease, claim_seq: int, reason: str, jitter_permille: int, retry_after_ms: int
) -> DispatchFailed:
    """The attempt that was claimed at `claim_seq` could not be delivered."""
    return DispatchFailed(
        id=f"failed.{item.execution_id}.{claim_seq}",
        tenant=item.tenant,
        execution_id=item.execution_id,
        at=now(),
        lease=lease,
        reason=reason,
        jitter_permille=jitter_permille,
        retry_after_ms=retry_after_ms,
    )


def lease_expired(item: DueItem) -> LeaseExpired | None:
    """Nobody renewed the lease in time; None where the header has no lease to expire."""
    lease, renewed_seq = item.header.lease, item.header.renewed_seq
    if lease is None:
        return None
    return LeaseExpired(
        id=f"expired.{item.execution_id}.{renewed_seq}",
        tenant=item.tenant,
        execution_id=item.execution_id,
        at=now(),
        lease=lease,
        renewed_seq=renewed_seq,
    )


def deadline_passed(item: DueItem) -> DeadlinePassed:
    """The execution has lived as long as it may."""
    header = item.header
    ends_at = header.life_ends_at if header.deadline_at is None else min(header.deadline_at, header.life_ends_at)
    return DeadlinePassed(
        id=f"deadline.{item.execution_id}",
        tenant=item.tenant,
        execution_id=item.execution_id,
        at=now(),
        due_at=ends_at,
    )


def approval_expired(item: DueItem) -> ApprovalExpired | None:
    """Nobody decided in time; None where the header has no approval that is pending.

    Whichever copy is folded first resumes the execution, by the dispatch that it brings.
    """
    pending = item.header.approval
    if pending is None:
        return None
    return ApprovalExpired(
        id=f"approval.{pending.approval_id}",
        tenant=item.tenant,
        execution_id=item.execution_id,
        at=now(),
        approval_id=pending.approval_id,
        dispatch_id=new_uuid7(),
    )


def agent_missing(item: DueItem) -> AgentMissing:
    """The dispatch that is due has no agent any more."""
    dispatch = item.header.dispatch
    return AgentMissing(
        id=f"missing.{item.execution_id}.{dispatch.duty_seq}",
        tenant=item.tenant,
        execution_id=item.execution_id,
        at=now(),
        dispatch_id=dispatch.dispatch_id,
    )


def outgoing(shard: int, entry: AnyEntry, *, reply_to: str = "") -> Outgoing:
    """Return the entry on its way into its shard; `reply_to` names who waits for the answer."""
    return Outgoing(
        shard=shard,
        tenant=entry.tenant,
        execution_id=entry.execution_id,
        entry_id=entry.id,
        payload=encode_entry(entry),
        reply_to=reply_to,
    )


def now() -> int:
    """Unix microseconds: the entry's own time, which the fold may only raise."""
    return time.time_ns() // 1000
