"""Events: the numbered public history of an execution, derived by the fold.

A record keeps an event's bodies apart from its payload, because a large body stays in the log.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from schemas.bodies import Body

ExecutionStatus = Literal["pending", "running", "blocked", "completed", "failed", "cancelled"]
StepStatus = Literal["awaiting_approval", "allowed", "executing", "succeeded", "failed", "denied", "cancelled"]
ApprovalStatus = Literal["pending", "granted", "denied", "expired"]
DispatchStatus = Literal["pending", "acked", "failed", "exhausted"]

EXECUTION_STATUSES: tuple[ExecutionStatus, ...] = ("pending", "running", "blocked", "completed", "failed", "cancelled")
TERMINAL_EXECUTION = frozenset({"completed", "failed", "cancelled"})
STEP_STATUSES: tuple[StepStatus, ...] = (
    "awaiting_approval",
    "allowed",
    "executing",
    "succeeded",
    "failed",
    "denied",
    "cancelled",
)
APPROVAL_STATUSES: tuple[ApprovalStatus, ...] = ("pending", "granted", "denied", "expired")
TERMINAL_STEP = frozenset({"succeeded", "failed", "denied", "cancelled"})

EventType = Literal[
    "execution.created",
    "execution.started",
    "execution.blocked",
    "execution.resumed",
    "execution.completed",
    "execution.failed",
    "execution.cancelled",
    "step.proposed",
    "step.allowed",
    "step.awaiting_approval",
    "step.denied",
    "step.executing",
    "step.succeeded",
    "step.failed",
    "step.cancelled",
    "approval.requested",
    "approval.granted",
    "approval.denied",
    "approval.expired",
    "dispatch.queued",
    "dispatch.acked",
    "dispatch.failed",
    "dispatch.discarded",
]


class ExecutionPayload(msgspec.Struct, frozen=True, tag="execution", array_like=True):
    status: ExecutionStatus
    reason: str | None = None
    deadline_at: int | None = None
    output: Body | None = None


class StepPayload(msgspec.Struct, frozen=True, tag="step", array_like=True):
    step_id: str
    step_type: str
    target: str
    rule_id: str | None = None
    policy_version: int | None = None
    error: Body | None = None


class ApprovalPayload(msgspec.Struct, frozen=True, tag="approval", array_like=True):
    approval_id: str
    step_id: str
    status: ApprovalStatus
    decided_by: str | None = None
    asserted_by: str | None = None
    rationale: str | None = None


class DispatchPayload(msgspec.Struct, frozen=True, tag="dispatch", array_like=True):
    dispatch_id: str
    status: DispatchStatus
    attempt: int
    reason: str | None = None


class EventRecord(msgspec.Struct, frozen=True, array_like=True):
    """One event as the view keeps it; its number is its place, `at` unix microseconds."""

    type: EventType
    at: int
    payload: ExecutionPayload | StepPayload | ApprovalPayload | DispatchPayload


class Event(msgspec.Struct, frozen=True):
    """One event as the wire shows it."""

    execution_id: str
    event_seq: int
    type: str
    payload: Raw
    occurred_at: str


class WirePayload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The union of all payload members; absent ones are left out."""

    execution_id: str | UnsetType = UNSET
    step_id: str | UnsetType = UNSET
    step_type: str | UnsetType = UNSET
    target: str | UnsetType = UNSET
    approval_id: str | UnsetType = UNSET
    dispatch_id: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    rule_id: str | UnsetType = UNSET
    policy_version: int | UnsetType = UNSET
    output: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    deadline_at: str | UnsetType = UNSET
    decided_by: str | UnsetType = UNSET
    asserted_by: str | UnsetType = UNSET
    rationale: str | UnsetType = UNSET


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(EventRecord)


def encode_event(event: EventRecord) -> bytes:
    """Return the bytes of the event as the view keeps them."""
    return _encoder.encode(event)


def decode_event(raw: bytes) -> EventRecord:
    """Return the event that the view kept."""
    return _decoder.decode(raw)
