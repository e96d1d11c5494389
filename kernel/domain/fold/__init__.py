"""The fold: one pure function that judges entries in log order.

It has no clock, no randomness and no I/O: ids, times and verdicts are data in the entry. Everything that depends on
order is decided here and nowhere else, so replaying the log gives the same state, events and answers.
"""

import copy
import hashlib
from typing import assert_never

import msgspec

from kernel.domain.fold import approvals, dispatches, executions, steps
from kernel.domain.fold.draft import Draft, Position, Records, time_of
from schemas.answers import AnyAnswer, DecidedBefore, Ignored, Refusal
from schemas.entries import (
    AgentMissing,
    AnyEntry,
    ApprovalDecided,
    ApprovalExpired,
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
    LeaseExpired,
    OrdinaryEntry,
    StepCompleted,
    StepFailed,
    StepSubmitted,
)
from schemas.events import EventRecord
from schemas.records import ApprovalRecord, BucketRecord, CallCounter, CreateKeyRecord, Header, KeyRecord, StepRecord

__all__ = ["Folded", "Position", "Records", "fold", "is_late", "park"]


class Folded(msgspec.Struct, frozen=True):
    """What one entry did. `header` is None where no execution exists after it; events continue the header's count."""

    header: Header | None
    answer: AnyAnswer | None
    """None where nobody is answered: the entry came late, or its first copy was answered already."""
    events: tuple[EventRecord, ...] = ()
    steps: dict[str, StepRecord] = {}
    counters: dict[bytes, CallCounter] = {}
    keys: dict[bytes, KeyRecord] = {}
    dispatches: tuple[str, ...] = ()
    approvals: dict[str, ApprovalRecord] = {}
    buckets: dict[bytes, BucketRecord] = {}
    create_key: tuple[bytes, CreateKeyRecord] | None = None


HALTED = Refusal(
    code="unavailable",
    message="the execution is halted until an operator releases it",
    detail_name="reason",
    detail="halted",
)
NOT_FOUND = Refusal(code="not_found", message="execution not found")


def fold(header: Header | None, records: Records, entry: AnyEntry, position: Position) -> Folded:
    """Judge one entry against the state before it and return the state after it.

    Neither the header nor the records are changed. Raises InvariantBroken where the state contradicts itself: the
    caller parks the entry.
    """
    if header is not None and header.tenant != entry.tenant:
        # Of another tenant's execution an entry learns and leaves as much as of one that does not exist.
        return Folded(header=None, answer=missing(entry))
    if position.is_repeated or is_late(entry, position):
        return unchanged(header, position, None)
    if isinstance(entry, ExecutionCreated):
        if header is not None:
            return unchanged(header, position, Refusal(code="conflict", message="the execution exists already"))
        draft, answer = executions.create(entry, records, position)
        return Folded(header=None, answer=answer) if draft is None else finished(draft, position, answer)
    if header is None:
        return Folded(header=None, answer=missing(entry))
    if isinstance(entry, ExecutionReleased):
        return released(header, position)
    if header.halted:
        return unchanged(header, position, HALTED if entry.expires is not None else Ignored())
    now = max(time_of(entry.at, position), header.updated_at)
    draft = Draft(header, records, seq=position.seq, now=now, spilled=entry.spilled)
    answer = judge(draft, entry)
    if isinstance(answer, Refusal | DecidedBefore | Ignored):
        return unchanged(header, position, answer)
    return finished(draft, position, answer)


def missing(entry: AnyEntry) -> AnyAnswer:
    """Answer an entry whose execution does not exist; system entries, which have no expiry, expect no refusal."""
    return NOT_FOUND if entry.expires is not None else Ignored()


def is_late(entry: AnyEntry, position: Position) -> bool:
    """Whether the broker stored the entry after its request had been given up; both times are in the log."""
    return entry.expires is not None and position.stored_at > entry.expires


def judge(draft: Draft, entry: OrdinaryEntry) -> AnyAnswer:
    """Judge an entry of an execution that exists and is not halted."""
    match entry:
        case StepSubmitted():
            return steps.on_submitted(draft, entry)
        case StepCompleted():
            return steps.on_step_completed(draft, entry)
        case StepFailed():
            return steps.on_step_failed(draft, entry)
        case HeartbeatReceived():
            return dispatches.on_heartbeat(draft, entry)
        case ExecutionCompleted() | ExecutionFailed():
            return executions.on_ended_by_agent(draft, entry)
        case ExecutionCancelled():
            return executions.on_cancelled(draft, entry)
        case DispatchClaimed():
            return dispatches.on_claimed(draft, entry)
        case DispatchDelivered():
            return dispatches.on_delivered(draft, entry)
        case DispatchFailed():
            return dispatches.on_delivery_failed(draft, entry)
        case LeaseExpired():
            return dispatches.on_lease_expired(draft, entry)
        case DeadlinePassed():
            return executions.on_deadline(draft, entry)
        case AgentMissing():
            return dispatches.on_agent_missing(draft, entry)
        case ApprovalDecided():
            return approvals.on_decided(draft, entry)
        case ApprovalExpired():
            return approvals.on_expired(draft, entry)
        case _:
            assert_never(entry)


def finished(draft: Draft, position: Position, answer: AnyAnswer) -> Folded:
    chain(draft.header, position)
    return Folded(
        header=draft.header,
        answer=answer,
        events=tuple(draft.events),
        steps=draft.steps,
        counters=draft.counters,
        keys=draft.keys,
        dispatches=tuple(draft.dispatches),
        approvals=draft.approvals,
        buckets=draft.buckets,
        create_key=draft.create_key,
    )


def unchanged(header: Header | None, position: Position, answer: AnyAnswer | None) -> Folded:
    """Note that the entry lies in the execution's log, and nothing else: a refusal leaves no other trace."""
    if header is None:
        return Folded(header=None, answer=answer)
    after = copy.copy(header)
    chain(after, position)
    return Folded(header=after, answer=answer)


def released(header: Header, position: Position) -> Folded:
    after = copy.copy(header)
    after.halted = ""
    chain(after, position)
    return Folded(header=after, answer=Ignored())


def park(header: Header, position: Position, reason: str) -> Folded:
    """Halt the execution of an entry that cannot be folded; the entry itself is never applied."""
    after = copy.copy(header)
    after.halted = reason
    chain(after, position)
    return Folded(header=after, answer=HALTED)


def chain(header: Header, position: Position) -> None:
    """Extend the execution's hash chain and its list of entries, whatever the entry did."""
    digest = hashlib.sha256(header.chain)
    digest.update(position.payload)
    header.chain = digest.digest()
    header.entry_count += 1
    header.field_count += 1
    header.last_seq = position.seq
