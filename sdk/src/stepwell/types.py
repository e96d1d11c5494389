"""What the kernel answers, as objects. Members that a newer kernel adds are left out; absent ones have a default."""

from typing import Any

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a step, or of all steps of an execution."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an agent, whatever happens to its processes."""

    id: str
    agent_id: str = ""
    created_by: str = ""
    input: Any = None
    status: str = "pending"
    """`pending running blocked completed failed cancelled`."""
    output: Any = None
    failure_reason: str = ""
    usage: Usage = Usage()
    created_at: str = ""
    updated_at: str = ""
    deadline_at: str | None = None
    completed_at: str | None = None
    idempotency_key: str = ""

    @property
    def is_terminal(self) -> bool:
        return self.status in ("completed", "failed", "cancelled")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to an execution. `event_seq` counts from 1 without a gap."""

    execution_id: str = ""
    event_seq: int = 0
    type: str = ""
    payload: Any = None
    occurred_at: str = ""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One effect, with its outcome once there is one."""

    step_id: str
    execution_id: str = ""
    kind: str = ""
    target: str = ""
    args_hash: str = ""
    occurrence: int = 0
    status: str = ""
    idempotency: str = ""
    args: Any = None
    result: Any = None
    error: Any = None
    usage: Usage | None = None
    rule_id: str = ""
    policy_version: int = 0
    started_at: str | None = None
    completed_at: str | None = None


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A step that waits, or waited, for a person."""

    id: str
    step_id: str = ""
    execution_id: str = ""
    agent_id: str = ""
    target: str = ""
    rule_id: str = ""
    status: str = ""
    approvers: list[str] = []
    message: str = ""
    timeout_at: str = ""
    decided_by: str = ""
    asserted_by: str = ""
    rationale: str = ""
    created_at: str = ""
    decided_at: str | None = None


class StepDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel says to a step before it happens."""

    decision: str
    """`proceed replay denied rate_limited blocked execution_blocked execution_terminal`."""
    step_id: str = ""
    result: Any = None
    error: Any = None
    approval_id: str = ""
    reason: str = ""
    rule_id: str = ""
    is_repeat: bool = False
    """Whether it was made before: the key of the submission is that of an earlier one."""


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """The work that the kernel gives out."""

    execution_id: str
    dispatch_id: str
    dispatch_attempt: int
    lease_timeout_seconds: float
    sent_at: int | None = None


class Result(msgspec.Struct, frozen=True):
    """Returned by a handler that has a state to leave behind besides its output."""

    output: Any = None
    state: Any = None
