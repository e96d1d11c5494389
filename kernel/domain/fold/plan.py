"""Which records a batch of entries of one execution reads, in two rounds.

The first round follows from the entries alone, the second from the header, counters and keys that the first one
brought. Whatever the fold asks beyond this raises: it is never read as absent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kernel.domain.buckets import bucket_digest
from kernel.domain.identity import call_digest, step_id
from schemas.answers import Decided
from schemas.entries import (
    AgentMissing,
    AnyEntry,
    ApprovalDecided,
    ApprovalExpired,
    DeadlinePassed,
    DispatchClaimed,
    DispatchFailed,
    ExecutionCancelled,
    ExecutionCompleted,
    ExecutionFailed,
    HeartbeatReceived,
    LeaseExpired,
    StepCompleted,
    StepFailed,
    StepSubmitted,
    Verdict,
)
from schemas.records import (
    CallCounter,
    Header,
    KeyRecord,
    approval_field,
    bucket_field,
    counter_field,
    dispatch_field,
    key_field,
    step_field,
)

_CLOSING = (
    ExecutionCompleted,
    ExecutionFailed,
    ExecutionCancelled,
    DeadlinePassed,
    AgentMissing,
    LeaseExpired,
    DispatchFailed,
    ApprovalDecided,
    ApprovalExpired,
)
"""Entries that may end or resume the execution and so look at every open step and at the pending approval."""


def first_fields(entries: Iterable[AnyEntry]) -> set[bytes]:
    """Return the fields that the entries of one execution name outright."""
    fields: set[bytes] = set()
    for entry in entries:
        match entry:
            case StepSubmitted(lease=lease, key=key, settle=settle):
                call = (entry.kind, entry.target, entry.args_hash)
                fields.add(counter_field(call_digest(*call)))
                # Mostly it is the first of its kind under its claim: then the second round has nothing left to read.
                fields.add(step_field(step_id(entry.execution_id, *call, 0)))
                fields.update(_asked_of_policy(entry.verdict))
            case (
                ExecutionCompleted(lease=lease, key=key, settle=settle)
                | ExecutionFailed(lease=lease, key=key, settle=settle)
            ):
                pass
            case StepCompleted(lease=lease, key=key) | StepFailed(lease=lease, key=key):
                settle = ()
                fields.add(step_field(entry.step_id))
            case HeartbeatReceived(lease=lease):
                key, settle = None, ()
            case ApprovalDecided():
                fields.add(approval_field(entry.approval_id))
                if entry.key is not None:
                    fields.add(key_field(entry.key.key))
                continue
            case _:
                continue
        fields.add(dispatch_field(lease.dispatch_id))
        fields.update(step_field(outcome.step_id) for outcome in settle)
        if key is not None:
            fields.add(key_field(key.key))
    return fields


def _asked_of_policy(verdict: Verdict) -> Iterator[bytes]:
    if verdict.rate_limit is not None and verdict.rate_limit.per == "execution":
        yield bucket_field(bucket_digest(verdict.rule_id, verdict.rate_limit))
    if verdict.approval_id:
        yield approval_field(verdict.approval_id)


def second_fields(
    header: Header,
    entries: Sequence[AnyEntry],
    counters: Mapping[bytes, CallCounter | None],
    keys: Mapping[bytes, KeyRecord | None],
) -> set[bytes]:
    """Return the step fields that the entries may touch, given what the first round brought.

    The n-th equal call of a batch may become any occurrence from the counter on, and any from 0 on where the batch
    holds a claim, which starts the counters anew.
    """
    fields: set[bytes] = set()
    if any(isinstance(entry, _CLOSING) for entry in entries):
        fields.update(step_field(open_id) for open_id in header.open_steps)
        if header.approval is not None:
            fields.add(approval_field(header.approval.approval_id))
    has_claim = any(isinstance(entry, DispatchClaimed) for entry in entries)
    calls: dict[tuple[str, str, str], int] = {}
    for entry in entries:
        if isinstance(entry, StepSubmitted):
            call = (entry.kind, entry.target, entry.args_hash)
            calls[call] = calls.get(call, 0) + 1
    for call, count in calls.items():
        counter = counters[call_digest(*call)]
        start = counter.uses if counter is not None and counter.claims == header.claims else 0
        occurrences = set(range(start, start + count))
        if has_claim:
            occurrences.update(range(count))
        fields.update(step_field(step_id(header.execution_id, *call, occurrence)) for occurrence in occurrences)
    for record in keys.values():
        if record is not None and isinstance(record.answer, Decided) and record.answer.decision == "proceed":
            fields.add(step_field(record.answer.step_id))
    return fields
