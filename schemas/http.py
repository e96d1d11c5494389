"""Bodies of HTTP answers, as the wire spells them. Times are RFC 3339 in UTC with microseconds and `Z`."""

from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from schemas.bodies import Usage

NULL = Raw(b"null")


class Execution(msgspec.Struct, frozen=True, omit_defaults=False):
    id: str
    agent_id: str
    created_by: str
    input: Raw
    status: str
    output: Raw
    failure_reason: str
    usage: Usage
    created_at: str
    updated_at: str
    deadline_at: str | UnsetType = UNSET
    completed_at: str | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET
    session: str = ""
    parent_execution_id: None = None
    forked_from: None = None
    fork_seq: int = 0
    spawned_by: None = None
    restoration: None = None
    on_behalf_of: str = ""
    subject_groups: tuple[str, ...] = ()


class ExecutionPage(msgspec.Struct, frozen=True):
    executions: tuple[Raw, ...]
    next_cursor: str | UnsetType = UNSET


class Step(msgspec.Struct, frozen=True):
    step_id: str
    execution_id: str
    kind: str
    target: str
    args_hash: str
    occurrence: int
    status: str
    idempotency: str
    args: Raw
    result: Raw
    error: Raw
    usage: Usage | None
    rule_id: str
    policy_version: int
    started_at: str | UnsetType = UNSET
    completed_at: str | UnsetType = UNSET


class Approval(msgspec.Struct, frozen=True):
    id: str
    step_id: str
    execution_id: str
    agent_id: str
    target: str
    rule_id: str
    status: str
    approvers: tuple[str, ...]
    message: str
    timeout_at: str
    decided_by: str
    asserted_by: str
    rationale: str
    created_at: str
    decided_at: str | UnsetType = UNSET


class StepDecision(msgspec.Struct, frozen=True):
    decision: str
    step_id: str | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    approval_id: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    rule_id: str | UnsetType = UNSET
    resources: tuple[()] = ()


class OutcomeDecision(msgspec.Struct, frozen=True):
    decision: str
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class Agent(msgspec.Struct, frozen=True):
    id: str
    webhook_url: str
    require_v1: bool
    max_concurrency: int
    policy_version: int
    description: str | None
    input_schema: Raw
    output_schema: Raw
    registered_at: str
    updated_at: str


class Policy(msgspec.Struct, frozen=True):
    agent_id: str
    bundle: str
    policy_version: int


class Key(msgspec.Struct, frozen=True):
    """`key` is there in the answer that made it, and never again."""

    id: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    created_at: str
    expires_at: str | UnsetType = UNSET
    key: str | UnsetType = UNSET


class Quotas(msgspec.Struct, frozen=True):
    """What a tenant may use; an absent one is no bound. Days are of UTC."""

    requests_per_second: int | UnsetType = UNSET
    creates_per_second: int | UnsetType = UNSET
    live_executions: int | UnsetType = UNSET
    bytes_per_day: int | UnsetType = UNSET
    log_bytes: int | UnsetType = UNSET


class TenantSettings(msgspec.Struct, frozen=True):
    """What a tenant has otherwise than the server is set up."""

    no_policy: Literal["allow", "deny"] | UnsetType = UNSET
    retention_seconds: int | UnsetType = UNSET


class Tenant(msgspec.Struct, frozen=True):
    id: str
    quotas: Quotas
    settings: TenantSettings


class ErrorEnvelope(msgspec.Struct, frozen=True):
    code: str
    message: str
    details: dict[str, str | int] | UnsetType = UNSET


_encoder = msgspec.json.Encoder()


class Delta(msgspec.Struct, frozen=True):
    """A piece of what a running step brings forth, for those who watch."""

    step_id: str
    seq: int
    data: str


def encode_http(body: object) -> bytes:
    """Return the JSON bytes of an answer's body."""
    return _encoder.encode(body)


def rfc3339(at: int) -> str:
    """Return unix microseconds as RFC 3339 in UTC, always with six decimals."""
    seconds, micros = divmod(at, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{micros:06d}Z"
