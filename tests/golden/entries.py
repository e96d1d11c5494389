"""Samples of every entry: once with every member, once with only what has to be there."""

from typing import Any

from msgspec import Raw

from schemas.bodies import Spilled, Usage
from schemas.entries import (
    SPILLED_SCHEMA,
    AgentMissing,
    AnyEntry,
    ApprovalDecided,
    ApprovalExpired,
    ApprovalTerms,
    DeadlinePassed,
    DispatchClaimed,
    DispatchDelivered,
    DispatchFailed,
    ExecutionCancelled,
    ExecutionCompleted,
    ExecutionCreated,
    ExecutionFailed,
    ExecutionReleased,
    HeartbeatReceived,
    Lease,
    LeaseExpired,
    Limits,
    Outcome,
    RateTerms,
    RequestKey,
    StepCompleted,
    StepFailed,
    StepSubmitted,
    Verdict,
)

EXECUTION = "0199aaaa-0000-7000-8000-0000000000ff"
DISPATCH = "0199aaaa-0000-7000-8000-000000000001"
ENTRY = "0199aaaa-0000-7000-8000-000000000002"
APPROVAL = "0199aaaa-0000-7000-8000-000000000003"
AGENT = "team:researcher"
STEP = "020d0bbbbf9925567373c02e3d15670386aa7cb8e287b2b311e0fe06a4c4cd17"
ARGS_HASH = "fca03ff443ac59e006e72573c15a72b8eed50b10ba49bd6ed62938a2cf8967a0"
AT = 1_760_000_000_000_007
LEASE = Lease(DISPATCH, 2)
LIMITS = Limits(
    attempts_max=5,
    lease_ms=120_000,
    unacknowledged_lease_ms=45_000,
    base_delay_ms=1000,
    delay_max_ms=30_000,
    unreachable_ms=300_000,
)
KEY = RequestKey(key=bytes(range(16)), request=bytes(range(240, 256)))
ALLOW = Verdict(decision="allow", rule_id="permissive", policy_version=0)
DENY = Verdict(decision="deny", rule_id="no-pay", policy_version=12, reason="too dear")
SPELLED = Raw(b'{"b":1.0,"a":1e2,"n":123456789012345678901234567890,"z":"\\u0000\xc3\xa9"}')
NULL = Raw(b"null")
SETTLE = (
    Outcome(step_id=STEP, result=SPELLED, usage=Usage(3, 4, 7, 1, 2)),
    Outcome(step_id=STEP, error=Raw(b'{"message":"no"}')),
    Outcome(step_id=STEP, result=NULL),
)

_SYSTEM: dict[str, Any] = {"id": ENTRY, "tenant": "default", "execution_id": EXECUTION, "at": AT}
_REQUEST: dict[str, Any] = _SYSTEM | {"expires": AT + 24_000_000}
_LEASED: dict[str, Any] = _REQUEST | {"lease": LEASE}
_DISPATCHED: dict[str, Any] = _SYSTEM | {"lease": LEASE}
_CREATED: dict[str, Any] = {
    "agent_id": AGENT,
    "created_by": "api",
    "dispatch_id": DISPATCH,
    "limits": LIMITS,
    "life_ends_at": AT + 2_592_000_000_000,
}
_CALL: dict[str, Any] = {"kind": "tool_call", "target": "web_search", "args_hash": ARGS_HASH}
REQUIRE_APPROVAL = Verdict(
    decision="require_approval",
    rule_id="ask-first",
    policy_version=3,
    approval=ApprovalTerms(approvers=("boss",), timeout_ms=60_000, message="sure?", separate_requester=True),
    approval_id=APPROVAL,
    token_budget_max=1000,
)
RATE_LIMITED = Verdict(
    decision="allow",
    rule_id="slow",
    policy_version=3,
    rate_limit=RateTerms(max_calls=2, window_ms=1000, per="agent", on_error="deny"),
    limited="rate_limit_exceeded",
)
_DECISION: dict[str, Any] = {
    "approval_id": APPROVAL,
    "decision": "granted",
    "principal": "api",
    "decided_by": "boss",
    "dispatch_id": DISPATCH,
}

ENTRIES: dict[str, AnyEntry] = {
    "execution_created": ExecutionCreated(
        **_REQUEST, **_CREATED, input=SPELLED, deadline_at=AT + 1, idempotency_key="nightly é", key=KEY
    ),
    "execution_created.least": ExecutionCreated(**_REQUEST, **_CREATED, input=NULL, deadline_at=None),
    "step_submitted": StepSubmitted(
        **_LEASED, **_CALL, args=SPELLED, idempotency="at_most_once", verdict=DENY, settle=SETTLE, key=KEY
    ),
    "step_submitted.least": StepSubmitted(**_LEASED, **_CALL, args=NULL, idempotency="safe_to_retry", verdict=ALLOW),
    "step_submitted.spilled": StepSubmitted(
        **_LEASED,
        **_CALL,
        args=NULL,
        idempotency="safe_to_retry",
        verdict=ALLOW,
        settle=(Outcome(step_id=STEP, result=NULL),),
        schema=SPILLED_SCHEMA,
        spilled={
            "args": Spilled(size_bytes=8_195, sha256=bytes(range(32)), pieces=(7, 9), rest='"é"}]'),
            "settle.0": Spilled(size_bytes=400_000, sha256=bytes(range(32, 64)), pieces=(10, 11), rest=""),
        },
    ),
    "step_completed": StepCompleted(**_LEASED, step_id=STEP, result=SPELLED, usage=Usage(3, 4, 7, 1, 2), key=KEY),
    "step_completed.least": StepCompleted(**_LEASED, step_id=STEP, result=NULL),
    "step_completed.read": StepCompleted(**_LEASED, step_id=STEP, result=SPELLED, read_usage=Usage(5, 6, 11, 2, 3)),
    "step_failed": StepFailed(**_LEASED, step_id=STEP, error=Raw(b'{"message":"no"}'), key=KEY),
    "step_failed.least": StepFailed(**_LEASED, step_id=STEP, error=Raw(b"{}")),
    "heartbeat_received": HeartbeatReceived(**_LEASED),
    "execution_completed": ExecutionCompleted(**_LEASED, output=SPELLED, state=SPELLED, settle=SETTLE, key=KEY),
    "execution_completed.least": ExecutionCompleted(**_LEASED, output=NULL),
    "execution_failed": ExecutionFailed(**_LEASED, error="agent_error: é\n", settle=SETTLE, key=KEY),
    "execution_failed.least": ExecutionFailed(**_LEASED, error=""),
    "execution_cancelled": ExecutionCancelled(**_REQUEST, cancelled_by="api"),
    "dispatch_claimed": DispatchClaimed(**_DISPATCHED, claimed_by="dispatcher0001"),
    "dispatch_claimed.named": DispatchClaimed(**_DISPATCHED, claimed_by="dispatcher0001", is_answered_by_name=True),
    "dispatch_delivered": DispatchDelivered(**_DISPATCHED),
    "dispatch_failed": DispatchFailed(**_DISPATCHED, reason="http_503", jitter_permille=250, retry_after_ms=3000),
    "dispatch_failed.least": DispatchFailed(**_DISPATCHED, reason="unreachable", jitter_permille=0),
    "lease_expired": LeaseExpired(**_DISPATCHED, renewed_seq=12),
    "deadline_passed": DeadlinePassed(**_SYSTEM, due_at=AT - 1),
    "agent_missing": AgentMissing(**_SYSTEM, dispatch_id=DISPATCH),
    "step_submitted.asking": StepSubmitted(
        **_LEASED, **_CALL, args=NULL, idempotency="safe_to_retry", verdict=REQUIRE_APPROVAL
    ),
    "step_submitted.limited": StepSubmitted(
        **_LEASED, **_CALL, args=NULL, idempotency="safe_to_retry", verdict=RATE_LIMITED
    ),
    "approval_decided": ApprovalDecided(**_REQUEST, **_DECISION, asserted_by="api", rationale="é", key=KEY),
    "approval_decided.least": ApprovalDecided(**_REQUEST, **_DECISION, asserted_by="", rationale=""),
    "approval_expired": ApprovalExpired(**_SYSTEM, approval_id=APPROVAL, dispatch_id=DISPATCH),
    "execution_released": ExecutionReleased(**_SYSTEM, reason="looked at"),
}
