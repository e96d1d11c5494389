"""What changes of executions mean for directory, lists, due work and renewable leases: pure, without keys.

Only what changed is written, so that a hold of a dispatcher or a renewal in the view outlives a batch that left the
duty alone. A new execution (`before` None) may be one that is folded anew, so for it absence is written too.
"""

from collections.abc import Iterable

import msgspec

from kernel.domain.duty import NO_DUTIES, Duties, duties
from kernel.ports import ExecutionChange
from kernel.view.keys import due_member, place
from schemas.entries import Lease
from schemas.events import ApprovalStatus
from schemas.records import ApprovalRecord, Header


class ApprovalMove(msgspec.Struct, frozen=True):
    """An approval to be put into the lists of its status, and out of those of the status before (None: new)."""

    header: Header
    record: ApprovalRecord
    before: ApprovalStatus | None


class Writes(msgspec.Struct):
    """All that the changes of one batch write beside the fields of the executions. Grows while it is collected."""

    listed: list[Header] = []
    """New: to be put into the directory and the lists."""
    moved: list[tuple[Header, str]] = []
    """Of another status than before, with that."""
    live: list[Header] = []
    ended: list[Header] = []
    approvals: list[ApprovalMove] = []
    due_at: list[tuple[str, int]] = []
    """Due items and their times in unix ms."""
    due_in: list[tuple[str, int]] = []
    """Leases to run anew and their periods in ms."""
    not_due: list[str] = []
    renewable: list[tuple[str, str]] = []
    """Execution ids and the leases that heartbeats may renew in the view."""
    not_renewable: list[str] = []
    unmarked: list[str] = []
    """Places of leases that are not being expired any more."""


def translate(changes: Iterable[ExecutionChange]) -> Writes:
    """Return what the changes write."""
    writes = Writes()
    for change in changes:
        before, after = change.before, change.after
        _index(writes, before, after)
        for approval in change.approvals:
            if approval.before != approval.after.status:
                writes.approvals.append(ApprovalMove(after, approval.after, approval.before))
        _arm(writes, before, after)
    return writes


def lease_prefix(lease: Lease) -> str:
    """Return what the value of a renewable lease begins with."""
    return f"{lease.dispatch_id}/{lease.attempt}/"


def _index(writes: Writes, before: Header | None, after: Header) -> None:
    if before is None:
        writes.listed.append(after)
    elif before.status != after.status:
        writes.moved.append((after, before.status))
    if before is None or before.is_terminal != after.is_terminal:
        (writes.ended if after.is_terminal else writes.live).append(after)


def _arm(writes: Writes, before: Header | None, after: Header) -> None:
    old, new = NO_DUTIES if before is None else duties(before), duties(after)
    where = place(after.tenant, after.execution_id, after.agent_id)
    is_new = before is None
    # A dispatch that follows another at the same time is a new duty: the hold of the old one must not cover it.
    is_same_dispatch = before is not None and before.dispatch.duty_seq == after.dispatch.duty_seq
    if is_new or old.delivery_at != new.delivery_at or not (is_same_dispatch or new.delivery_at is None):
        _arm_at(writes, due_member("delivery", where), new.delivery_at)
    if is_new or old.deadline_at != new.deadline_at:
        _arm_at(writes, due_member("deadline", where), new.deadline_at)
    # Likewise: an approval that follows another is a new duty, even at the same time.
    is_same_approval = before is not None and before.approval == after.approval
    if is_new or old.approval_at != new.approval_at or not (is_same_approval or new.approval_at is None):
        _arm_at(writes, due_member("approval", where), new.approval_at)
    _arm_lease(writes, where, old, new, is_new=is_new)
    if is_new or old.renewable != new.renewable:
        if new.renewable is None:
            writes.not_renewable.append(after.execution_id)
        else:
            writes.renewable.append((after.execution_id, lease_prefix(new.renewable) + where))
    if before is None or before.renewed_seq != after.renewed_seq or before.lease != after.lease:
        writes.unmarked.append(where)


def _arm_at(writes: Writes, member: str, unix_us: int | None) -> None:
    if unix_us is None:
        writes.not_due.append(member)
    else:
        # Rounded up: nothing is due before its time.
        writes.due_at.append((member, -(-unix_us // 1000)))


def _arm_lease(writes: Writes, where: str, old: Duties, new: Duties, *, is_new: bool) -> None:
    if new.lease_ms is None:
        if is_new or old.lease_ms is not None:
            writes.not_due.append(due_member("lease", where))
            writes.unmarked.append(where)
    elif is_new or old.lease_ms != new.lease_ms or old.renewed_seq != new.renewed_seq:
        writes.due_in.append((due_member("lease", where), new.lease_ms))
