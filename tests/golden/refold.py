"""A golden log folded anew, and its outcome as plain JSON values with every member named."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kernel.domain.fold import Folded, Position, fold, park
from schemas.bodies import Body
from schemas.entries import decode_entry
from schemas.events import EventRecord
from schemas.records import CreateKeyRecord, Header
from tests.golden.files import FrozenEntry
from tests.support.dict_records import DictRecords


class _Execution:
    """All that was folded of one execution."""

    def __init__(self, create_keys: dict[tuple[str, bytes], CreateKeyRecord]) -> None:
        self.header: Header | None = None
        self.records = DictRecords()
        self.records.create_keys = create_keys
        self.events: list[EventRecord] = []

    def take(self, folded: Folded, tenant: str) -> None:
        self.header = folded.header or self.header
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


def refold(log: Sequence[FrozenEntry]) -> dict[str, Any]:
    """Fold a whole log and return every answer by sequence, and what became of every execution."""
    create_keys: dict[tuple[str, bytes], CreateKeyRecord] = {}
    executions: dict[str, _Execution] = {}
    answers: dict[str, Any] = {}
    for line in log:
        payload = bytes(line.payload)
        position = Position(seq=line.seq, stored_at=line.stored_at, payload=payload, is_repeated=line.is_repeated)
        execution_id, tenant = _whose(payload)
        execution = executions.setdefault(execution_id, _Execution(create_keys))
        if line.parked:
            assert execution.header is not None
            folded = park(execution.header, position, line.parked)
        else:
            folded = fold(execution.header, execution.records, decode_entry(payload), position)
        execution.take(folded, tenant)
        answers[str(line.seq)] = shown(folded.answer)
    return {
        "answers": answers,
        "create_keys": {f"{tenant}/{digest.hex()}": shown(record) for (tenant, digest), record in create_keys.items()},
        "executions": {execution_id: _shown_execution(execution) for execution_id, execution in executions.items()},
    }


def shown(value: Any) -> Any:
    """Return a value as JSON values: a Struct by its members' names, JSON bytes as their text, other bytes in hex."""
    match value:
        case Body():
            text = value.json.decode() if value.json else None
            return {"json": text, "seq": value.seq, "place": value.place, "size_bytes": value.size_bytes}
        case msgspec.Struct():
            tag = value.__struct_config__.tag
            named = {} if tag is None else {"is": tag}
            return named | {name: shown(getattr(value, name)) for name in value.__struct_fields__}
        case bytes():
            return value.hex()
        case tuple() | list():
            return [shown(each) for each in value]
        case _:
            return value


def expected_of(actual: Any, expected: Any) -> Any:
    """Return what of `actual` the expectation speaks of: a member added since, with a default, is no change."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        return {name: expected_of(actual[name], part) for name, part in expected.items() if name in actual}
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        return [expected_of(each, part) for each, part in zip(actual, expected, strict=True)]
    return actual


def _whose(payload: bytes) -> tuple[str, str]:
    """Return execution and tenant, which in the log stand in headers too, where a parked payload is not needed."""
    found = msgspec.json.decode(payload)
    return found["execution_id"], found["tenant"]


def _shown_execution(execution: _Execution) -> dict[str, Any]:
    records = execution.records
    return {
        "header": shown(execution.header),
        "events": [shown(event) for event in execution.events],
        "steps": {step_id: shown(step) for step_id, step in records.steps.items()},
        "counters": {digest.hex(): shown(counter) for digest, counter in records.counters.items()},
        "keys": {digest.hex(): shown(key) for digest, key in records.keys.items()},
        "approvals": {approval_id: shown(each) for approval_id, each in records.approvals.items()},
        "buckets": {digest.hex(): shown(bucket) for digest, bucket in records.buckets.items()},
        "dispatches": sorted(records.dispatches),
    }
