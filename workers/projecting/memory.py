"""The working memory of one owned shard: the headers and records that batches read and write.

It is only ever ahead of the view by the batch in hand. After anything but a clean success the owner drops it whole.
What was not loaded is never read as absent.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

from kernel.domain.errors import InvariantBroken
from kernel.domain.fold import Folded
from kernel.ports import ApprovalChange, LogMessage
from schemas.events import encode_event
from schemas.records import (
    HEADER_FIELD,
    ApprovalRecord,
    BucketRecord,
    CallCounter,
    CreateKeyRecord,
    Header,
    KeyRecord,
    StepRecord,
    approval_field,
    bucket_field,
    counter_field,
    decode_approval,
    decode_bucket,
    decode_counter,
    decode_key,
    decode_step,
    dispatch_field,
    encode_record,
    entry_field,
    event_field,
    key_field,
    order_field,
    step_field,
)

Record = StepRecord | CallCounter | KeyRecord | ApprovalRecord | BucketRecord | bool
R = TypeVar("R", StepRecord, CallCounter, KeyRecord, ApprovalRecord, BucketRecord, bool)
RECORDS_MAX = 100_000
"""Records of all its executions that one shard keeps in memory between batches."""


class ExecutionMemory:
    """What is known of one execution. `is_whole`: every record that exists is here, so what is not here is absent."""

    __slots__ = ("approvals", "before", "create_keys", "fields", "header", "is_whole", "records")

    def __init__(self, header: Header | None, *, is_whole: bool) -> None:
        self.header = header
        self.before = header
        """The header as the view has it."""
        self.is_whole = is_whole
        self.records: dict[bytes, Record | None] = {}
        self.fields: dict[bytes, bytes] = {}
        """Fields that the batch in hand has to write, encoded."""
        self.approvals: dict[str, ApprovalChange] = {}
        """Approvals that the batch in hand made or ended."""
        self.create_keys: dict[tuple[str, bytes], CreateKeyRecord | None] = {}

    # ------------------------------------------------------------ kernel.domain.fold.Records

    def step(self, step_id: str) -> StepRecord | None:
        return self._record(step_field(step_id), StepRecord)

    def counter(self, call_digest: bytes) -> CallCounter | None:
        return self._record(counter_field(call_digest), CallCounter)

    def key(self, key_digest: bytes) -> KeyRecord | None:
        return self._record(key_field(key_digest), KeyRecord)

    def has_dispatch(self, dispatch_id: str) -> bool:
        return self._record(dispatch_field(dispatch_id), bool) is not None

    def approval(self, approval_id: str) -> ApprovalRecord | None:
        return self._record(approval_field(approval_id), ApprovalRecord)

    def bucket(self, bucket_digest: bytes) -> BucketRecord | None:
        return self._record(bucket_field(bucket_digest), BucketRecord)

    def create_key(self, tenant: str, key_digest: bytes) -> CreateKeyRecord | None:
        try:
            return self.create_keys[tenant, key_digest]
        except KeyError:
            raise InvariantBroken("a create key was judged without being loaded") from None

    def _record(self, field: bytes, kind: type[R]) -> R | None:
        record = self.records.get(field)
        if record is None:
            if not self.is_whole and field not in self.records:
                raise InvariantBroken(f"a record was read without being loaded: {field!r}")
            return None
        if not isinstance(record, kind):
            raise InvariantBroken("a record is of another kind than its field says")
        return record

    # ------------------------------------------------------------ loading

    def missing(self, fields: Iterable[bytes]) -> tuple[bytes, ...]:
        """Return the fields that have to be loaded before they can be judged."""
        return () if self.is_whole else tuple(field for field in fields if field not in self.records)

    def learn(self, fields: Iterable[bytes], values: Iterable[bytes | None]) -> None:
        """Take over loaded values; None means that the field does not exist."""
        for field, value in zip(fields, values, strict=True):
            self.records[field] = None if value is None else _decode(field, value)

    # ------------------------------------------------------------ writing

    def take(self, folded: Folded) -> None:
        """Take over what one entry did, and note every field that has to be written for it."""
        header = folded.header
        if header is None:
            return
        records, fields = self.records, self.fields
        first_event = header.event_count - len(folded.events) + 1
        for event_seq, event in enumerate(folded.events, first_event):
            fields[event_field(event_seq)] = encode_event(event)
        for step in folded.steps.values():
            field = step_field(step.step_id)
            if records.get(field) is None:
                fields[order_field(step.ordinal)] = field[1:]
            records[field] = step
            fields[field] = encode_record(step)
        for digest, counter in folded.counters.items():
            records[counter_field(digest)] = counter
            fields[counter_field(digest)] = encode_record(counter)
        for digest, key in folded.keys.items():
            records[key_field(digest)] = key
            fields[key_field(digest)] = encode_record(key)
        for approval_id, approval in folded.approvals.items():
            self._take_approval(approval)
            fields[approval_field(approval_id)] = encode_record(approval)
        for digest, bucket in folded.buckets.items():
            records[bucket_field(digest)] = bucket
            fields[bucket_field(digest)] = encode_record(bucket)
        for dispatch_id in folded.dispatches:
            records[dispatch_field(dispatch_id)] = True
            fields[dispatch_field(dispatch_id)] = b"1"
        fields[entry_field(header.entry_count)] = b"%d" % header.last_seq
        self.header = header

    def _take_approval(self, approval: ApprovalRecord) -> None:
        """Note what becomes of an approval. What the view has it as is what the batch in hand found first."""
        noted = self.approvals.get(approval.approval_id)
        known = self.approval(approval.approval_id)
        before = noted.before if noted is not None else None if known is None else known.status
        self.approvals[approval.approval_id] = ApprovalChange(before=before, after=approval)
        self.records[approval_field(approval.approval_id)] = approval

    def written(self) -> dict[bytes, bytes]:
        """Return all fields to write, the header among them."""
        if self.header is None:
            return {}
        self.fields[HEADER_FIELD] = encode_record(self.header)
        return self.fields

    def settle(self) -> None:
        """The view has the batch: what was written is now what it holds."""
        self.before = self.header
        self.fields = {}
        self.approvals = {}
        self.create_keys = {}


def _decode(field: bytes, value: bytes) -> Record:
    match field[:1]:
        case b"s":
            return decode_step(value)
        case b"c":
            return decode_counter(value)
        case b"k":
            return decode_key(value)
        case b"d":
            return True
        case b"a":
            return decode_approval(value)
        case b"r":
            return decode_bucket(value)
        case _:
            raise InvariantBroken(f"a field of no known kind was loaded: {field!r}")


class ShardMemory:
    """The executions a shard's owner knows, the most recently used kept, and the entry ids it has seen."""

    SEEN_FOR = 120_000_000
    """Microseconds of broker time for which an entry id is remembered."""

    def __init__(self, *, executions_max: int) -> None:
        self._executions_max = executions_max
        self._executions: OrderedDict[str, ExecutionMemory] = OrderedDict()
        self._weights: dict[str, int] = {}
        self._weight = 0
        self._seen: OrderedDict[str, int] = OrderedDict()
        self.log_bytes: dict[str, int] = {}
        """By tenant, the bytes of its entries that the view has counted."""

    def get(self, execution_id: str) -> ExecutionMemory | None:
        found = self._executions.get(execution_id)
        if found is not None:
            self._executions.move_to_end(execution_id)
        return found

    def put(self, execution_id: str, execution: ExecutionMemory) -> None:
        self._executions[execution_id] = execution

    def settle(self, execution_ids: Iterable[str]) -> None:
        """The view has what these executions had to write; forget what was used longest ago beyond the bounds."""
        for execution_id in execution_ids:
            execution = self._executions[execution_id]
            execution.settle()
            weight = len(execution.records)
            self._weight += weight - self._weights.get(execution_id, 0)
            self._weights[execution_id] = weight
        while len(self._executions) > self._executions_max or self._weight > RECORDS_MAX:
            execution_id, _ = self._executions.popitem(last=False)
            self._weight -= self._weights.pop(execution_id, 0)

    def grown(self, messages: Iterable[LogMessage]) -> tuple[tuple[str, int], ...]:
        """Return what `log_bytes` says of these messages' tenants once they are folded."""
        totals: dict[str, int] = {}
        for message in messages:
            tenant = message.tenant
            before = totals.get(tenant)
            if before is None:
                before = self.log_bytes.get(tenant, 0)
            totals[tenant] = before + len(message.payload)
        return tuple(totals.items())

    def remember(self, entry_ids: Iterable[str], stored_at: int) -> None:
        """Take over ids that were seen before this memory began."""
        for entry_id in entry_ids:
            self._seen[entry_id] = stored_at

    def see(self, entry_id: str, stored_at: int) -> bool:
        """Note an entry id and return whether it was there before, within two minutes of broker time."""
        seen = self._seen
        while seen:
            oldest, seen_at = next(iter(seen.items()))
            if stored_at - seen_at <= self.SEEN_FOR:
                break
            del seen[oldest]
        if entry_id in seen:
            return True
        seen[entry_id] = stored_at
        return False
