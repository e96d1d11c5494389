"""A log held in a list and the fold over it: given entries, when one more, then its answer, events and state.

Records are plain dicts, so nothing here can hide what the fold forgot to write.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET, Raw, UnsetType

from kernel.domain.canonical import args_hash
from kernel.domain.fold import Folded, Position, fold
from kernel.domain.identity import body_digest, request_key_digest
from kernel.domain.json_values import read_value
from schemas.bodies import Usage
from schemas.entries import (
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
    RequestKey,
    StepCompleted,
    StepFailed,
    StepSubmitted,
    Verdict,
    encode_entry,
)
from schemas.ids import uuid7_from
from schemas.records import Header
from tests.support.dict_records import DictRecords

START = 1_760_000_000_000_000
SECOND = 1_000_000
LIMITS = Limits(
    attempts_max=5,
    lease_ms=120_000,
    unacknowledged_lease_ms=45_000,
    base_delay_ms=1000,
    delay_max_ms=30_000,
    unreachable_ms=300_000,
)
ALLOW = Verdict(decision="allow", rule_id="permissive", policy_version=0)


def uuid_number(number: int) -> str:
    """Return a valid UUIDv7 that differs for every number."""
    return uuid7_from(1_760_000_000_000 + number, number.to_bytes(10, "big"))


EXECUTION = uuid_number(1)
DISPATCH = uuid_number(2)


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def hash_of(args: Any) -> str:
    return args_hash(read_value(json.dumps(args).encode()).canonical)


def request_key(key: str, request: Any) -> RequestKey:
    return RequestKey(key=request_key_digest(key), request=body_digest("POST", "/", json.dumps(request).encode()))


def result_of(step_id: str, value: Any, usage: Usage | None = None) -> Outcome:
    return Outcome(step_id=step_id, result=raw(value), usage=usage)


def error_of(step_id: str, value: Any) -> Outcome:
    return Outcome(step_id=step_id, error=raw(value))


class ListLog:
    """One execution's entries in a list; time stands still until told to pass."""

    def __init__(self, sequences: Iterator[int] | None = None, *, ids_from: int = 1000) -> None:
        self.sequences = itertools.count(1) if sequences is None else sequences
        self.now = START
        self.execution_id = EXECUTION
        self.tenant = "default"
        self.header: Header | None = None
        self.records = DictRecords()
        self.events: list[Any] = []
        self.entries: list[tuple[AnyEntry, Position]] = []
        self._ids = itertools.count(ids_from)

    # ------------------------------------------------------------ when

    def append(self, entry: AnyEntry, *, is_repeated: bool = False, stored_at: int | None = None) -> Any:
        """Fold one more entry and return its answer."""
        position = Position(
            seq=next(self.sequences),
            stored_at=self.now if stored_at is None else stored_at,
            payload=encode_entry(entry),
            is_repeated=is_repeated,
        )
        self.entries.append((entry, position))
        folded = fold(self.header, self.records, entry, position)
        self.take(folded, entry.tenant)
        return folded.answer

    def take(self, folded: Folded, tenant: str) -> None:
        if folded.header is not None:
            self.header = folded.header
        self.events.extend(folded.events)
        self.records.steps.update(folded.steps)
        self.records.counters.update(folded.counters)
        self.records.keys.update(folded.keys)
        self.records.dispatches.update(folded.dispatches)
        self.records.approvals.update(folded.approvals)
        self.records.buckets.update(folded.buckets)
        if folded.create_key is not None:
            digest, record = folded.create_key
            self.records.create_keys[tenant, digest] = record

    def stamp(self, *, tenant: str = "", is_system: bool = False) -> dict[str, Any]:
        return {
            "id": uuid_number(next(self._ids)),
            "tenant": tenant or self.tenant,
            "execution_id": self.execution_id,
            "at": self.now,
            "expires": None if is_system else self.now + 24 * SECOND,
        }

    def create(self, *, limits: Limits = LIMITS, **more: Any) -> Any:
        fields: dict[str, Any] = {
            "agent_id": "agent",
            "created_by": "api",
            "input": raw(None),
            "dispatch_id": DISPATCH,
            "limits": limits,
            "deadline_at": None,
            "life_ends_at": self.now + 30 * 86_400 * SECOND,
        }
        return self.append(ExecutionCreated(**self.stamp(), **(fields | more)))

    def claim(
        self,
        attempt: int | None = None,
        dispatch_id: str | None = None,
        by: str = "dispatcher",
        *,
        is_named: bool = False,
    ) -> Any:
        dispatch = self.live_header.dispatch
        lease = Lease(dispatch_id or dispatch.dispatch_id, dispatch.next_attempt if attempt is None else attempt)
        named = True if is_named else UNSET
        return self.append(
            DispatchClaimed(**self.stamp(is_system=True), lease=lease, claimed_by=by, is_answered_by_name=named)
        )

    def delivered(self, lease: Lease | None = None) -> Any:
        return self.append(DispatchDelivered(**self.stamp(is_system=True), lease=lease or self.lease))

    def delivery_failed(self, reason: str, lease: Lease | None = None, jitter: int = 0, retry_after_ms: int = 0) -> Any:
        return self.append(
            DispatchFailed(
                **self.stamp(is_system=True),
                lease=lease or self.lease,
                reason=reason,
                jitter_permille=jitter,
                retry_after_ms=retry_after_ms,
            )
        )

    def expire(self, lease: Lease | None = None, renewed_seq: int | None = None) -> Any:
        seq = self.live_header.renewed_seq if renewed_seq is None else renewed_seq
        return self.append(LeaseExpired(**self.stamp(is_system=True), lease=lease or self.lease, renewed_seq=seq))

    def submit(
        self,
        target: str = "tool",
        args: Any = None,
        *,
        lease: Lease | None = None,
        kind: Any = "tool_call",
        idempotency: Any = "safe_to_retry",
        settle: Sequence[Outcome] = (),
        key: str = "",
        verdict: Verdict = ALLOW,
        **more: Any,
    ) -> Any:
        return self.append(
            StepSubmitted(
                **self.stamp(),
                lease=lease or self.lease,
                kind=kind,
                target=target,
                args=raw(args),
                args_hash=hash_of(args),
                idempotency=idempotency,
                verdict=verdict,
                settle=tuple(settle),
                key=request_key(key, [kind, target, args]) if key else None,
                **more,
            )
        )

    def complete_step(
        self,
        step_id: str,
        result: Any = None,
        *,
        lease: Lease | None = None,
        key: str = "",
        usage: Usage | None = None,
        read_usage: Usage | UnsetType = UNSET,
        **more: Any,
    ) -> Any:
        return self.append(
            StepCompleted(
                **self.stamp(),
                lease=lease or self.lease,
                step_id=step_id,
                result=raw(result),
                usage=usage,
                key=request_key(key, [step_id, result]) if key else None,
                read_usage=read_usage,
                **more,
            )
        )

    def fail_step(self, step_id: str, error: Any, *, lease: Lease | None = None, key: str = "") -> Any:
        return self.append(
            StepFailed(
                **self.stamp(),
                lease=lease or self.lease,
                step_id=step_id,
                error=raw(error),
                key=request_key(key, [step_id, error]) if key else None,
            )
        )

    def ask(
        self,
        target: str = "dangerous",
        args: Any = None,
        *,
        approval_id: str = "",
        terms: ApprovalTerms | None = None,
        **more: Any,
    ) -> Any:
        """Submit a step whose rule wants an approval."""
        verdict = Verdict(
            decision="require_approval",
            rule_id="ask-first",
            policy_version=3,
            approval=terms or ApprovalTerms(),
            approval_id=approval_id or uuid_number(next(self._ids)),
        )
        return self.submit(target, args, verdict=verdict, **more)

    def decide(
        self, decision: Any = "granted", *, by: str = "boss", approval_id: str = "", key: str = "", **more: Any
    ) -> Any:
        """Grant or deny the pending approval, or another one."""
        pending = self.live_header.approval
        fields: dict[str, Any] = {
            "approval_id": approval_id or (pending and pending.approval_id) or uuid_number(1),
            "principal": by,
            "decided_by": by,
            "asserted_by": "",
            "rationale": "",
            "dispatch_id": uuid_number(next(self._ids)),
            "key": request_key(key, [decision, more]) if key else None,
        }
        return self.append(ApprovalDecided(**self.stamp(), decision=decision, **(fields | more)))

    def expire_approval(self, approval_id: str = "") -> Any:
        pending = self.live_header.approval
        name = approval_id or (pending and pending.approval_id) or uuid_number(1)
        dispatch_id = uuid_number(next(self._ids))
        return self.append(ApprovalExpired(**self.stamp(is_system=True), approval_id=name, dispatch_id=dispatch_id))

    def heartbeat(self, lease: Lease | None = None) -> Any:
        return self.append(HeartbeatReceived(**self.stamp(), lease=lease or self.lease))

    def complete(
        self,
        output: Any = None,
        *,
        lease: Lease | None = None,
        settle: Sequence[Outcome] = (),
        key: str = "",
        **more: Any,
    ) -> Any:
        return self.append(
            ExecutionCompleted(
                **self.stamp(),
                lease=lease or self.lease,
                output=raw(output),
                settle=tuple(settle),
                key=request_key(key, output) if key else None,
                **more,
            )
        )

    def fail(
        self, error: str = "broken", *, lease: Lease | None = None, settle: Sequence[Outcome] = (), key: str = ""
    ) -> Any:
        return self.append(
            ExecutionFailed(
                **self.stamp(),
                lease=lease or self.lease,
                error=error,
                settle=tuple(settle),
                key=request_key(key, error) if key else None,
            )
        )

    def cancel(self) -> Any:
        return self.append(ExecutionCancelled(**self.stamp(), cancelled_by="api"))

    def deadline(self, due_at: int) -> Any:
        return self.append(DeadlinePassed(**self.stamp(is_system=True), due_at=due_at))

    def agent_missing(self, dispatch_id: str = DISPATCH) -> Any:
        return self.append(AgentMissing(**self.stamp(is_system=True), dispatch_id=dispatch_id))

    def release(self) -> Any:
        return self.append(ExecutionReleased(**self.stamp(is_system=True), reason="looked at"))

    def later(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def next_attempt(self) -> None:
        """Let the lease run out and the next attempt be claimed."""
        self.expire()
        self.claim()

    # ------------------------------------------------------------ then

    @property
    def live_header(self) -> Any:
        assert self.header is not None
        return self.header

    @property
    def lease(self) -> Lease:
        assert self.live_header.lease is not None
        return self.live_header.lease

    @property
    def event_types(self) -> list[str]:
        return [event.type for event in self.events]

    def new_events(self, since: int) -> list[str]:
        return self.event_types[since:]

    @property
    def field_count(self) -> int:
        """Fields the execution's hash must have, counted from what was written."""
        records = self.records
        return (
            1
            + 2 * len(records.steps)
            + len(records.counters)
            + len(records.keys)
            + len(records.dispatches)
            + len(records.approvals)
            + len(records.buckets)
            + len(self.events)
            + self.live_header.entry_count
        )


def started(**more: Any) -> ListLog:
    """Return a log in which an execution was created and its first attempt claimed."""
    log = ListLog()
    log.create(**more)
    log.claim()
    return log
