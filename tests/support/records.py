"""Headers and records for tests: plausible wholes of which a test names only the parts it is about."""

from collections.abc import Mapping

from kernel.ports import ApprovalChange, Batch, CreateKey, ExecutionChange, Parked, StoredAnswer, Watermark
from schemas.bodies import Body
from schemas.entries import Lease, Limits
from schemas.ids import uuid7_from
from schemas.records import (
    HEADER_FIELD,
    Approval,
    ApprovalRecord,
    Dispatch,
    DispatchState,
    Header,
    StepRecord,
    approval_field,
    encode_record,
    step_field,
)

CREATED_AT_US = 1_700_000_000_000_000
"""Past, so that what is due at it is due."""
CREATED_AT_MS = CREATED_AT_US // 1000
LIFE_ENDS_AT_US = 4_000_000_000_000_000
LEASE_MS = 12_000
UNACKNOWLEDGED_LEASE_MS = 8_000
STREAM_CREATED_AT = "2026-11-30T01:02:03.456789Z"

LIMITS = Limits(
    attempts_max=5,
    lease_ms=LEASE_MS,
    unacknowledged_lease_ms=UNACKNOWLEDGED_LEASE_MS,
    base_delay_ms=1_000,
    delay_max_ms=30_000,
    unreachable_ms=300_000,
)


def uuid_at(unix_ms: int, number: int) -> str:
    """The UUIDv7 of a time; `number` stands in for the random bytes, so ids of one time sort by it."""
    return uuid7_from(unix_ms, number.to_bytes(10, "big"))


def execution_id(number: int, *, unix_ms: int = CREATED_AT_MS) -> str:
    return uuid_at(unix_ms, number)


def dispatch_id(number: int) -> str:
    return uuid_at(CREATED_AT_MS, 10_000_000 + number)


def entry_id(number: int, *, unix_ms: int = CREATED_AT_MS) -> str:
    return uuid_at(unix_ms, 20_000_000 + number)


def inline_body(json: bytes = b"null", *, place: str = "input") -> Body:
    return Body(json=json, seq=1, place=place, size_bytes=len(json))


def make_dispatch(
    state: DispatchState = "due", *, number: int = 1, attempt: int = 0, due_at: int = CREATED_AT_US, duty_seq: int = 1
) -> Dispatch:
    return Dispatch(
        dispatch_id=dispatch_id(number),
        state=state,
        attempt=attempt,
        next_attempt=attempt + 1,
        due_at=due_at,
        duty_seq=duty_seq,
    )


def make_header(number: int = 1, **parts: object) -> Header:
    """A running execution whose first delivery is due. `parts` are fields of Header."""
    created_at = parts.get("created_at", CREATED_AT_US)
    assert isinstance(created_at, int)
    whole: dict[str, object] = {
        "execution_id": execution_id(number, unix_ms=created_at // 1000),
        "tenant": "acme",
        "agent_id": "researcher",
        "created_by": "tests",
        "status": "running",
        "created_at": created_at,
        "updated_at": created_at,
        "life_ends_at": LIFE_ENDS_AT_US,
        "input": inline_body(),
        "limits": LIMITS,
        "dispatch": make_dispatch(),
        "field_count": 1,
        "first_seq": 1,
        "last_seq": 1,
    }
    return Header(**(whole | parts))  # type: ignore[arg-type]  # a test that names a wrong part fails here


def leased_header(number: int = 1, *, attempt: int = 1, renewed_seq: int = 2, **parts: object) -> Header:
    """A running execution whose agent acknowledged its delivery."""
    lease = Lease(dispatch_id=dispatch_id(1), attempt=attempt)
    return make_header(
        number,
        **{
            "dispatch": make_dispatch("acknowledged", attempt=attempt),
            "lease": lease,
            "is_lease_acknowledged": True,
            "claims": attempt,
            "renewed_seq": renewed_seq,
        }
        | parts,
    )


def ended_header(number: int = 1, status: str = "completed", **parts: object) -> Header:
    """An execution that is over."""
    return make_header(
        number,
        **{"status": status, "completed_at": CREATED_AT_US + 1, "dispatch": make_dispatch("retired")} | parts,
    )


def make_step(number: int = 1, **parts: object) -> StepRecord:
    """A step that succeeded. `parts` are fields of StepRecord."""
    whole: dict[str, object] = {
        "step_id": f"{number:064x}",
        "ordinal": number,
        "kind": "tool_call",
        "target": "search",
        "args_hash": "0" * 64,
        "occurrence": 0,
        "status": "succeeded",
        "idempotency": "safe_to_retry",
        "args": inline_body(b"{}", place="args"),
        "rule_id": "permissive",
        "policy_version": 0,
        "result": inline_body(b'{"ok":true}', place="result"),
    }
    return StepRecord(**(whole | parts))  # type: ignore[arg-type]  # as above


def approval_id(number: int) -> str:
    return uuid_at(CREATED_AT_MS, 30_000_000 + number)


def make_approval(number: int = 1, **parts: object) -> ApprovalRecord:
    """An approval that nobody has decided. `parts` are fields of ApprovalRecord."""
    whole: dict[str, object] = {
        "approval_id": approval_id(number),
        "step_id": f"{number:064x}",
        "target": "transfer",
        "rule_id": "ask-first",
        "status": "pending",
        "approvers": ("boss",),
        "message": "sure?",
        "separate_requester": False,
        "created_at": CREATED_AT_US,
        "timeout_at": CREATED_AT_US + 1,
    }
    return ApprovalRecord(**(whole | parts))  # type: ignore[arg-type]  # as above


def asking_header(approval: ApprovalRecord, number: int = 1, **parts: object) -> Header:
    """An execution that waits for an approval."""
    pending = Approval(approval.approval_id, approval.step_id, approval.timeout_at)
    retired = make_dispatch("retired", attempt=1)
    return make_header(
        number, **{"status": "blocked", "approval": pending, "dispatch": retired, "is_lease_over": True} | parts
    )


def new(approval: ApprovalRecord) -> ApprovalChange:
    return ApprovalChange(before=None, after=approval)


def ended(approval: ApprovalRecord) -> ApprovalChange:
    return ApprovalChange(before="pending", after=approval)


def change(
    after: Header,
    *,
    before: Header | None = None,
    fields: Mapping[bytes, bytes] | None = None,
    approvals: tuple[ApprovalChange, ...] = (),
) -> ExecutionChange:
    """The change to a header and to approvals, with the fields of both among its fields."""
    own = {HEADER_FIELD: encode_record(after)}
    own |= {approval_field(each.after.approval_id): encode_record(each.after) for each in approvals}
    return ExecutionChange(before=before, after=after, fields=own | dict(fields or {}), approvals=approvals)


def step_fields(*numbers: int) -> dict[bytes, bytes]:
    """Fields of some steps, as an execution's hash holds them."""
    steps = [make_step(number) for number in numbers]
    return {step_field(step.step_id): encode_record(step) for step in steps}


def watermark(seq: int, *, created_at: str = STREAM_CREATED_AT) -> Watermark:
    return Watermark(created_at=created_at, seq=seq, checksum=f"{seq:016x}-{seq:016x}" if seq else "")


def make_batch(
    from_seq: int,
    to_seq: int,
    *changes: ExecutionChange,
    answers: tuple[StoredAnswer, ...] = (),
    create_keys: tuple[CreateKey, ...] = (),
    parked: tuple[Parked, ...] = (),
    is_rebuilding: bool = False,
) -> Batch:
    """The batch that takes a shard from one watermark to another."""
    return Batch(
        expected=watermark(from_seq),
        watermark=watermark(to_seq),
        changes=changes,
        answers=answers,
        create_keys=create_keys,
        parked=parked,
        is_rebuilding=is_rebuilding,
    )
