"""Entries: the messages of the log, each an accepted input stamped with what the outside world decided.

An entry is JSON. Bodies stay the bytes that were sent (duplicate members, and surrogates in an error, already
resolved), so a refold reads what the client wrote. Times are unix microseconds, durations milliseconds.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from schemas.bodies import Spilled, Usage

SCHEMA_VERSION = 1
SPILLED_SCHEMA = 2
"""Of entries with bodies that stand elsewhere: an earlier build would read each of them as null."""
RULES_VERSION = 1
KNOWN_SCHEMAS = frozenset({SCHEMA_VERSION, SPILLED_SCHEMA})
KNOWN_RULES = frozenset({1})

StepKind = Literal["tool_call", "llm_call", "local"]
Idempotency = Literal["safe_to_retry", "at_most_once"]


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The pair that a delivery attempt is known by."""

    dispatch_id: str
    attempt: int


class RequestKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An Idempotency-Key as the log keeps it: 16-byte digests of the key and of method, path and body."""

    key: bytes
    request: bytes


class ApprovalTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rule asks of an approval. Empty `approvers`: whoever may decide at all."""

    approvers: tuple[str, ...] = ()
    timeout_ms: int = 900_000
    message: str = ""
    separate_requester: bool = False
    """Whether the principal that created the execution may not decide."""


class RateTerms(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A rule's token bucket: full at first, refilled with `max_calls` in every window."""

    max_calls: int
    window_ms: int
    per: Literal["execution", "agent", "global"] = "execution"
    on_error: Literal["allow", "deny"] = "allow"
    """What an unreachable bucket means; asked of `agent` and `global` alone."""


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What policy said of a submission, and the rule and bundle version that said it."""

    decision: Literal["allow", "deny", "require_approval"]
    rule_id: str
    policy_version: int
    reason: str = ""
    approval: ApprovalTerms | None = None
    """Present exactly with `require_approval`."""
    approval_id: str = ""
    """Drawn by the door until its shard is the execution's; present exactly with `require_approval`."""
    rate_limit: RateTerms | None = None
    limited: str = ""
    """Why the door got no token from a bucket of its agent or tenant; empty where it got one or needed none."""
    token_budget_max: int = 0
    """Tokens of its execution from which on an `llm_call` is denied; 0 without a budget."""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item of `settle`: the outcome of a step, exactly one of result and error."""

    step_id: str
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    usage: Usage | None = None
    """As it was sent."""
    read_usage: Usage | UnsetType = UNSET
    """As the result itself says it, where it has the form of an LLM call's record: it counts for an `llm_call` that
    was sent none. The door reads it, so that a later change of how it is read changes no history."""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """The settings an execution lives under, stamped at creation so that every projector folds alike."""

    attempts_max: int
    lease_ms: int
    unacknowledged_lease_ms: int
    base_delay_ms: int
    delay_max_ms: int
    unreachable_ms: int


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=False):
    """What every entry carries. `expires` is absent on system entries."""

    id: str
    tenant: str
    execution_id: str
    at: int
    expires: int | None = None
    schema: int = SCHEMA_VERSION
    rules: int = RULES_VERSION
    spilled: dict[str, Spilled] | UnsetType = UNSET
    """By place, the bodies whose text is not here; `null` stands for each. An entry with one is of `SPILLED_SCHEMA`."""


class ExecutionCreated(Entry, frozen=True, kw_only=True, tag="execution_created"):
    agent_id: str
    created_by: str
    input: Raw
    dispatch_id: str
    limits: Limits
    deadline_at: int | None
    """The configured deadline; None when none is configured."""
    life_ends_at: int
    idempotency_key: str = ""
    """The body field as the Execution echoes it; `key` is what the fold judges."""
    key: RequestKey | None = None


class StepSubmitted(Entry, frozen=True, kw_only=True, tag="step_submitted"):
    lease: Lease
    kind: StepKind
    target: str
    args: Raw
    args_hash: str
    idempotency: Idempotency
    verdict: Verdict
    settle: tuple[Outcome, ...] = ()
    key: RequestKey | None = None


class StepCompleted(Entry, frozen=True, kw_only=True, tag="step_completed"):
    lease: Lease
    step_id: str
    result: Raw
    usage: Usage | None = None
    key: RequestKey | None = None
    read_usage: Usage | UnsetType = UNSET
    """As of `Outcome`."""


class StepFailed(Entry, frozen=True, kw_only=True, tag="step_failed"):
    lease: Lease
    step_id: str
    error: Raw
    """Always a JSON object: the door has wrapped every other value as `{"message": …}`."""
    key: RequestKey | None = None


class HeartbeatReceived(Entry, frozen=True, kw_only=True, tag="heartbeat_received"):
    lease: Lease


class ExecutionCompleted(Entry, frozen=True, kw_only=True, tag="execution_completed"):
    lease: Lease
    output: Raw
    state: Raw | UnsetType = UNSET
    settle: tuple[Outcome, ...] = ()
    key: RequestKey | None = None


class ExecutionFailed(Entry, frozen=True, kw_only=True, tag="execution_failed"):
    lease: Lease
    error: str
    settle: tuple[Outcome, ...] = ()
    key: RequestKey | None = None


class ExecutionCancelled(Entry, frozen=True, kw_only=True, tag="execution_cancelled"):
    cancelled_by: str


class DispatchClaimed(Entry, frozen=True, kw_only=True, tag="dispatch_claimed"):
    """A dispatcher wants to deliver; `claimed_by` names its process and this one claim."""

    lease: Lease
    claimed_by: str
    is_answered_by_name: bool | UnsetType = UNSET
    """Whether the answer to an accepted claim names who holds it; absent in the entries of earlier builds."""


class DispatchDelivered(Entry, frozen=True, kw_only=True, tag="dispatch_delivered"):
    lease: Lease


class DispatchFailed(Entry, frozen=True, kw_only=True, tag="dispatch_failed"):
    """A delivery failed; `reason` is `unreachable`, `timeout` or `http_<status>`.

    `jitter_permille` (0-250) lengthens the wait, and `retry_after_ms` is the agent's own wish, 0 without one.
    """

    lease: Lease
    reason: str
    jitter_permille: int
    retry_after_ms: int = 0


class LeaseExpired(Entry, frozen=True, kw_only=True, tag="lease_expired"):
    """Nobody renewed the lease since the entry `renewed_seq`."""

    lease: Lease
    renewed_seq: int


class DeadlinePassed(Entry, frozen=True, kw_only=True, tag="deadline_passed"):
    due_at: int


class AgentMissing(Entry, frozen=True, kw_only=True, tag="agent_missing"):
    """The dispatch that was due found its agent deleted."""

    dispatch_id: str


class ApprovalDecided(Entry, frozen=True, kw_only=True, tag="approval_decided"):
    """A principal grants or denies. `dispatch_id` is the one that resumes the execution if this decides."""

    approval_id: str
    decision: Literal["granted", "denied"]
    principal: str
    decided_by: str
    asserted_by: str
    rationale: str
    dispatch_id: str
    key: RequestKey | None = None


class ApprovalExpired(Entry, frozen=True, kw_only=True, tag="approval_expired"):
    """Nobody decided in time."""

    approval_id: str
    dispatch_id: str


class ExecutionReleased(Entry, frozen=True, kw_only=True, tag="execution_released"):
    """An operator ends the halt that a parked entry caused."""

    reason: str


OrdinaryEntry = (
    StepSubmitted
    | StepCompleted
    | StepFailed
    | HeartbeatReceived
    | ExecutionCompleted
    | ExecutionFailed
    | ExecutionCancelled
    | DispatchClaimed
    | DispatchDelivered
    | DispatchFailed
    | LeaseExpired
    | DeadlinePassed
    | AgentMissing
    | ApprovalDecided
    | ApprovalExpired
)
"""Entries of an execution that exists and is not halted."""
AnyEntry = ExecutionCreated | OrdinaryEntry | ExecutionReleased

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEntry)


class _Versions(msgspec.Struct, frozen=True):
    schema: int
    rules: int


_versions = msgspec.json.Decoder(_Versions)


def encode_entry(entry: AnyEntry) -> bytes:
    """Return the bytes of the entry as the log keeps them."""
    return _encoder.encode(entry)


def decode_entry(payload: bytes) -> AnyEntry:
    """Return the entry; raises msgspec.DecodeError on anything that is not one."""
    return _decoder.decode(payload)


def is_known_version(payload: bytes) -> bool:
    """Whether this build can fold the entry; raises msgspec.DecodeError where no version can be read."""
    found = _versions.decode(payload)
    return found.schema in KNOWN_SCHEMAS and found.rules in KNOWN_RULES
