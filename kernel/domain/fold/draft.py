"""The working copy of one execution while one entry is folded.

A draft never touches what it was given: the header is copied, records are laid over. A refused entry throws its
draft away, so a refusal leaves no trace whatever was tried before it.
"""

import copy
from collections.abc import Mapping
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from kernel.domain.errors import InvariantBroken
from schemas.bodies import Body, Spilled, body_of
from schemas.events import (
    ApprovalPayload,
    DispatchPayload,
    DispatchStatus,
    EventRecord,
    EventType,
    ExecutionPayload,
    StepPayload,
)
from schemas.records import ApprovalRecord, BucketRecord, CallCounter, CreateKeyRecord, Header, KeyRecord, StepRecord

_VERDICTS: frozenset[EventType] = frozenset({"step.allowed", "step.denied", "step.awaiting_approval"})
Payload = ExecutionPayload | StepPayload | ApprovalPayload | DispatchPayload


class Position(msgspec.Struct, frozen=True, gc=False):
    """Where an entry lies in the log: all that the fold knows of the outside. `stored_at` is the broker's time."""

    seq: int
    stored_at: int
    payload: bytes
    is_repeated: bool = False
    """Whether the same entry id was seen before."""


def time_of(at: int, position: Position) -> int:
    """Return the time of an entry stamped `at`: never later than the log had it.

    What is due is counted from it. A door or a dispatcher whose clock ran ahead must not put a delivery off until
    that time has come.
    """
    return min(at, position.stored_at)


class Records(Protocol):
    """The records an entry names, loaded beforehand. None means: certainly absent. Not loaded raises."""

    def step(self, step_id: str) -> StepRecord | None: ...

    def counter(self, call_digest: bytes) -> CallCounter | None: ...

    def key(self, key_digest: bytes) -> KeyRecord | None: ...

    def has_dispatch(self, dispatch_id: str) -> bool: ...

    def approval(self, approval_id: str) -> ApprovalRecord | None: ...

    def bucket(self, bucket_digest: bytes) -> BucketRecord | None: ...

    def create_key(self, tenant: str, key_digest: bytes) -> CreateKeyRecord | None: ...


class Draft:
    """One execution, one entry: reads fall through to the records, writes stay here."""

    __slots__ = (
        "approvals",
        "buckets",
        "counters",
        "create_key",
        "dispatches",
        "events",
        "header",
        "keys",
        "now",
        "records",
        "seq",
        "spilled",
        "steps",
    )

    def __init__(
        self,
        header: Header,
        records: Records,
        *,
        seq: int,
        now: int,
        spilled: Mapping[str, Spilled] | UnsetType = UNSET,
    ) -> None:
        """`spilled` are the bodies of the entry that stand elsewhere."""
        self.header = copy.copy(header)
        self.records = records
        self.seq = seq
        self.now = now
        self.spilled = spilled
        self.steps: dict[str, StepRecord] = {}
        self.counters: dict[bytes, CallCounter] = {}
        self.keys: dict[bytes, KeyRecord] = {}
        self.approvals: dict[str, ApprovalRecord] = {}
        self.buckets: dict[bytes, BucketRecord] = {}
        self.dispatches: list[str] = []
        self.create_key: tuple[bytes, CreateKeyRecord] | None = None
        self.events: list[EventRecord] = []

    # ------------------------------------------------------------ reading

    def step(self, step_id: str) -> StepRecord | None:
        return self.steps.get(step_id) or self.records.step(step_id)

    def known_step(self, step_id: str) -> StepRecord:
        """Return a step that the header names; without its record the execution is damaged."""
        step = self.step(step_id)
        if step is None:
            raise InvariantBroken("the header names a step that has no record")
        return step

    def approval(self, approval_id: str) -> ApprovalRecord | None:
        return self.approvals.get(approval_id) or self.records.approval(approval_id)

    def bucket(self, bucket_digest: bytes) -> BucketRecord | None:
        return self.buckets.get(bucket_digest) or self.records.bucket(bucket_digest)

    def body(self, json: bytes, place: str) -> Body:
        spilled = None if self.spilled is UNSET else self.spilled.get(place)
        return body_of(json, seq=self.seq, place=place, spilled=spilled)

    # ------------------------------------------------------------ writing

    def put_new_step(self, step: StepRecord) -> None:
        self.steps[step.step_id] = step
        self.header.step_count += 1
        self.header.field_count += 2
        if not step.is_terminal:
            self.header.open_steps = (*self.header.open_steps, step.step_id)

    def put_step(self, step: StepRecord) -> None:
        self.steps[step.step_id] = step
        if step.is_terminal:
            self._let_go(step.step_id)
            self.header.open_steps = tuple(open_id for open_id in self.header.open_steps if open_id != step.step_id)
            if step.usage is not None:
                self.header.usage = self.header.usage + step.usage

    def await_step(self, step: StepRecord) -> None:
        """Let a step that starts under the attempt before a decision hold the new dispatch back, if it has to."""
        header = self.header
        if header.dispatch.state == "held" and step.idempotency == "at_most_once":
            header.awaited = (*header.awaited, step.step_id)

    def _let_go(self, step_id: str) -> None:
        """Make the dispatch due that nothing holds back any more."""
        header = self.header
        if step_id not in header.awaited:
            return
        header.awaited = tuple(awaited for awaited in header.awaited if awaited != step_id)
        if not header.awaited and header.dispatch.state == "held":
            header.dispatch = replace(header.dispatch, state="due", due_at=self.now, duty_seq=self.seq)

    def put_counter(self, call_digest: bytes, counter: CallCounter) -> None:
        if call_digest not in self.counters and self.records.counter(call_digest) is None:
            self.header.field_count += 1
        self.counters[call_digest] = counter

    def put_key(self, key_digest: bytes, record: KeyRecord) -> None:
        if self.records.key(key_digest) is None:
            self.header.field_count += 1
        self.keys[key_digest] = record

    def put_approval(self, approval: ApprovalRecord) -> None:
        if self.approval(approval.approval_id) is None:
            self.header.field_count += 1
        self.approvals[approval.approval_id] = approval

    def put_bucket(self, bucket_digest: bytes, bucket: BucketRecord) -> None:
        if self.bucket(bucket_digest) is None:
            self.header.field_count += 1
        self.buckets[bucket_digest] = bucket

    def put_dispatch(self, dispatch_id: str) -> None:
        self.dispatches.append(dispatch_id)
        self.header.field_count += 1

    # ------------------------------------------------------------ events

    def emit(self, type: EventType, payload: Payload) -> None:
        self.events.append(EventRecord(type=type, at=self.now, payload=payload))
        self.header.event_count += 1
        self.header.field_count += 1
        self.header.updated_at = self.now

    def emit_step(
        self, type: EventType, step: StepRecord, *, error: Body | None = None, is_verdict: bool = True
    ) -> None:
        """Where policy gave the verdict that the event tells, the event names the rule."""
        is_verdict = is_verdict and step.rule_id != "" and type in _VERDICTS
        self.emit(
            type,
            StepPayload(
                step_id=step.step_id,
                step_type=step.kind,
                target=step.target,
                rule_id=step.rule_id if is_verdict else None,
                policy_version=step.policy_version if is_verdict else None,
                error=error,
            ),
        )

    def emit_dispatch(self, type: EventType, status: DispatchStatus, *, reason: str | None = None) -> None:
        dispatch = self.header.dispatch
        self.emit(
            type,
            DispatchPayload(dispatch_id=dispatch.dispatch_id, status=status, attempt=dispatch.attempt, reason=reason),
        )
