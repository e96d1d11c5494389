"""Records: the state of an execution as the fold reads and writes it and the view keeps it (msgpack).

An execution is one bounded header plus records, each a field of its own in the execution's hash. Field names are
made here and nowhere else. Times are unix microseconds.
"""

from typing import Literal

import msgspec

from schemas.answers import AnyAnswer
from schemas.bodies import Body, Usage
from schemas.entries import Lease, Limits
from schemas.events import TERMINAL_EXECUTION, TERMINAL_STEP, ApprovalStatus, ExecutionStatus, StepStatus

DispatchState = Literal["due", "in_flight", "acknowledged", "waiting", "used_up", "retired", "held"]


class Dispatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One delivery obligation.

    `due`: to be claimed at once (or at `due_at`); `in_flight`: claimed, outcome unknown; `acknowledged`: the agent
    has it; `waiting`: a delivery failed, due again at `due_at`; `used_up`: no attempt is left; `retired`: over;
    `held`: made by a decision on an approval, due when the attempt before has nothing left that must not run twice.
    `duty_seq` is the entry that created the present duty: ids of system entries are built from it.
    """

    dispatch_id: str
    state: DispatchState
    attempt: int
    """Number of the last claim, 0 before the first."""
    next_attempt: int
    """Number the next claim has to carry: `attempt` again after an unreachable target."""
    due_at: int
    duty_seq: int
    tries: int = 0
    """Consecutive failed tries of an unreachable target; they set the wait and use up nothing."""
    unreachable_since: int = 0
    unreachable_told_at: int = 0


class Approval(msgspec.Struct, frozen=True, array_like=True):
    """The pending approval of a blocked execution."""

    approval_id: str
    step_id: str
    timeout_at: int


class Header(msgspec.Struct, array_like=True):
    """The bounded heart of an execution. Only the fold's draft of one entry may change one in place."""

    execution_id: str
    tenant: str
    agent_id: str
    created_by: str
    status: ExecutionStatus
    created_at: int
    updated_at: int
    """Fold time of the last entry that changed anything; fold time never steps back."""
    life_ends_at: int
    input: Body
    limits: Limits
    dispatch: Dispatch
    idempotency_key: str = ""
    deadline_at: int | None = None
    completed_at: int | None = None
    output: Body | None = None
    state: Body | None = None
    failure_reason: str = ""
    usage: Usage = Usage()
    lease: Lease | None = None
    """The most recently claimed (dispatch, attempt)."""
    is_lease_acknowledged: bool = False
    claimed_by: str = ""
    claims: int = 0
    """Claims so far: occurrence counters and keys of a lease belong to one of them."""
    renewed_seq: int = 0
    """The last entry that renewed the lease."""
    open_steps: tuple[str, ...] = ()
    """Ids of the steps that have not ended, by first submission."""
    approval: Approval | None = None
    step_count: int = 0
    event_count: int = 0
    entry_count: int = 0
    field_count: int = 0
    """Fields in the execution's hash, the header's own included; another length is damage."""
    first_seq: int = 0
    last_seq: int = 0
    chain: bytes = b""
    """SHA-256 chain over the entries that were applied."""
    halted: str = ""
    """Why the execution is halted; empty while it is not."""
    is_lease_over: bool = False
    """Whether the lease ran out after a block, when nothing returns a dispatch to due."""
    awaited: tuple[str, ...] = ()
    """Steps that hold the dispatch back: at_most_once, executing, of the attempt before the block."""

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL_EXECUTION


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """One step. `ordinal` counts first submissions from 1."""

    step_id: str
    ordinal: int
    kind: str
    target: str
    args_hash: str
    occurrence: int
    status: StepStatus
    idempotency: str
    args: Body
    rule_id: str
    policy_version: int
    result: Body | None = None
    error: Body | None = None
    usage: Usage | None = None
    reason: str = ""
    approval_id: str = ""
    started_at: int | None = None
    completed_at: int | None = None

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL_STEP


class ApprovalRecord(msgspec.Struct, frozen=True, array_like=True):
    """One approval and, once it is not pending, how it ended."""

    approval_id: str
    step_id: str
    target: str
    rule_id: str
    status: ApprovalStatus
    approvers: tuple[str, ...]
    message: str
    separate_requester: bool
    created_at: int
    timeout_at: int
    decided_by: str = ""
    asserted_by: str = ""
    rationale: str = ""
    decided_at: int | None = None


class BucketRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token bucket of one execution: what it held at a time, in parts of which a call takes one window."""

    parts: int
    at: int


class CallCounter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Uses of one (kind, target, args_hash) under one claim, and whether one was ever failed as indeterminate."""

    claims: int
    uses: int
    is_indeterminate: bool = False


class KeyRecord(msgspec.Struct, frozen=True, array_like=True):
    """What an Idempotency-Key was first used for. `claims` is 0 for keys that live as long as the execution."""

    request: bytes
    claims: int
    answer: AnyAnswer


class CreateKeyRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The execution a create's key made, kept per tenant in the key's shard."""

    request: bytes
    execution_id: str


HEADER_FIELD = b"h"


def step_field(step_id: str) -> bytes:
    return b"s" + bytes.fromhex(step_id)


def order_field(ordinal: int) -> bytes:
    """Field that holds the step id (32 bytes) of an ordinal."""
    return b"o%d" % ordinal


def counter_field(call_digest: bytes) -> bytes:
    return b"c" + call_digest


def approval_field(approval_id: str) -> bytes:
    return b"a" + bytes.fromhex(approval_id.replace("-", ""))


def is_approval_field(field: bytes) -> bool:
    return field[:1] == b"a"


def bucket_field(bucket_digest: bytes) -> bytes:
    return b"r" + bucket_digest


def key_field(key_digest: bytes) -> bytes:
    return b"k" + key_digest


def event_field(event_seq: int) -> bytes:
    return b"e%d" % event_seq


def dispatch_field(dispatch_id: str) -> bytes:
    """Field that is present (value `1`) for every dispatch the execution ever had."""
    return b"d" + bytes.fromhex(dispatch_id.replace("-", ""))


def entry_field(ordinal: int) -> bytes:
    """Field that holds the decimal log sequence of the n-th entry, counted from 1."""
    return b"q%d" % ordinal


_encoder = msgspec.msgpack.Encoder()
encode_record = _encoder.encode
decode_header = msgspec.msgpack.Decoder(Header).decode
decode_step = msgspec.msgpack.Decoder(StepRecord).decode
decode_counter = msgspec.msgpack.Decoder(CallCounter).decode
decode_key = msgspec.msgpack.Decoder(KeyRecord).decode
decode_approval = msgspec.msgpack.Decoder(ApprovalRecord).decode
decode_bucket = msgspec.msgpack.Decoder(BucketRecord).decode
decode_create_key = msgspec.msgpack.Decoder(CreateKeyRecord).decode
