"""What an execution's header makes due: deliveries, lease expiry, the deadline.

Times that the log fixes are absolute; a lease runs from the moment its renewal is written to the view.
"""

import msgspec

from schemas.entries import Lease
from schemas.records import Header


class Duties(msgspec.Struct, frozen=True, gc=False):
    """Due work of one execution; None where there is none. Times in unix microseconds, periods in milliseconds."""

    delivery_at: int | None
    lease_ms: int | None
    """Period of the running lease: it expires that long after `renewed_seq` was applied or a heartbeat came."""
    renewed_seq: int
    deadline_at: int | None
    approval_at: int | None
    """When the pending approval expires."""
    renewable: Lease | None
    """The lease that a heartbeat may renew in the view alone; None where the log has to decide."""


NO_DUTIES = Duties(delivery_at=None, lease_ms=None, renewed_seq=0, deadline_at=None, approval_at=None, renewable=None)


def duties(header: Header) -> Duties:
    """Return the due work that the header stands for. A terminal or halted execution has none."""
    if header.is_terminal or header.halted:
        return NO_DUTIES
    dispatch = header.dispatch
    is_left = is_lease_left_to_end(header)
    is_leased = is_left or dispatch.state in ("in_flight", "acknowledged")
    is_acknowledged = is_left or dispatch.state == "acknowledged"
    lease_ms = header.limits.lease_ms if is_acknowledged else header.limits.unacknowledged_lease_ms
    ends_at = header.life_ends_at if header.deadline_at is None else min(header.deadline_at, header.life_ends_at)
    return Duties(
        delivery_at=dispatch.due_at if dispatch.state in ("due", "waiting") else None,
        lease_ms=lease_ms if is_leased else None,
        renewed_seq=header.renewed_seq,
        deadline_at=ends_at,
        approval_at=None if header.approval is None else header.approval.timeout_at,
        renewable=header.lease if dispatch.state == "acknowledged" else None,
    )


def is_lease_left_to_end(header: Header) -> bool:
    """Whether the lease of the attempt before a block runs on unrenewed, so that one knows when nothing of it runs."""
    return header.dispatch.state in ("retired", "held") and not header.is_terminal and not header.is_lease_over
