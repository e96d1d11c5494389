"""From messages of the log to one batch for the view: inspect, load in two rounds, fold in order.

Damage is told apart here: an entry that cannot be folded is parked and its execution halted, headers that cannot be
trusted stop the shard, a version that this build does not know gives it up.
"""

from collections.abc import Sequence

import msgspec

from kernel.domain.errors import InvariantBroken, KernelError
from kernel.domain.fold import Folded, Position, fold, park
from kernel.domain.fold.plan import first_fields, second_fields
from kernel.domain.framing import are_headers_sound, is_payload_sound
from kernel.domain.identity import call_digest
from kernel.ports import (
    CreateKey,
    ExecutionChange,
    Fetch,
    LogMessage,
    Parked,
    ProjectorView,
)
from schemas.answers import AnyAnswer
from schemas.entries import AnyEntry, ExecutionCreated, StepSubmitted, decode_entry, is_known_version
from schemas.records import HEADER_FIELD, KeyRecord, decode_create_key, decode_header
from workers.projecting.memory import ExecutionMemory, ShardMemory

FIELDS_MAX = 4000
"""Fields that one batch may write, give or take its last entry."""
LOADED_FIELDS_MAX = 16_000
"""Fields that one batch may load in its second round, give or take its first execution."""


class ShardStopped(KernelError):
    """The log of the shard cannot be trusted as it is: an operator has to look."""


class VersionUnknown(KernelError):
    """An entry is newer than this build: another projector has to take the shard."""


class ViewDamaged(KernelError):
    """The view contradicts itself: it has to be built anew from the log."""


class Inspected(msgspec.Struct, frozen=True):
    """A message and the entry in it; None with the reason where it cannot be folded."""

    message: LogMessage
    entry: AnyEntry | None
    damage: str = ""


class Answered(msgspec.Struct, frozen=True):
    """What one message is answered, if anything."""

    message: LogMessage
    entry: AnyEntry | None
    answer: AnyAnswer | None


class FoldedBatch(msgspec.Struct, frozen=True):
    """The outcome of a run of messages: `count` of them were folded, the rest waits for the next batch."""

    count: int
    answered: tuple[Answered, ...]
    changes: tuple[ExecutionChange, ...]
    create_keys: tuple[CreateKey, ...]
    parked: tuple[Parked, ...]


def inspect(message: LogMessage) -> Inspected:
    """Check headers, payload and version, and decode. Raises ShardStopped or VersionUnknown."""
    is_sound = are_headers_sound(
        message.checksum,
        tenant=message.tenant,
        execution_id=message.execution_id,
        entry_id=message.entry_id,
    )
    if not is_sound:
        raise ShardStopped(f"shard {message.shard}: the headers of entry {message.seq} cannot be trusted")
    if not is_payload_sound(message.checksum, message.payload):
        return Inspected(message, None, "the checksum of the payload does not match")
    try:
        if not is_known_version(message.payload):
            raise VersionUnknown(f"shard {message.shard}: entry {message.seq} is of a version this build cannot fold")
        entry = decode_entry(message.payload)
    except msgspec.DecodeError as error:
        return Inspected(message, None, f"the entry cannot be decoded: {error}")
    is_consistent = (
        entry.execution_id == message.execution_id and entry.id == message.entry_id and entry.tenant == message.tenant
    )
    return Inspected(message, entry, "" if is_consistent else "the entry contradicts its headers")


async def fold_batch(view: ProjectorView, memory: ShardMemory, inspected: Sequence[Inspected]) -> FoldedBatch:
    """Load what the messages name and fold them in order, as many as the bounds allow (at least one)."""
    batch = _Batch(memory, inspected)
    await batch.load(view)
    return batch.fold()


class _Batch:
    def __init__(self, memory: ShardMemory, inspected: Sequence[Inspected]) -> None:
        self.memory = memory
        self.inspected = inspected
        self.shard = inspected[0].message.shard
        self.executions: dict[str, ExecutionMemory] = {}
        self.entries: dict[str, list[AnyEntry]] = {}
        self.postponed: set[str] = set()
        """Executions whose records did not fit into this batch: it ends before their first message."""
        for item in inspected:
            entries = self.entries.setdefault(item.message.execution_id, [])
            if item.entry is not None and not item.damage:
                entries.append(item.entry)

    # ------------------------------------------------------------ loading

    async def load(self, view: ProjectorView) -> None:
        await self._load_first(view)
        await self._load_second(view)
        await self._load_create_keys(view)

    async def _load_first(self, view: ProjectorView) -> None:
        tenants = {item.message.execution_id: item.message.tenant for item in self.inspected}
        fetches: list[Fetch] = []
        for execution_id, entries in self.entries.items():
            known = self.memory.get(execution_id)
            if known is not None:
                self.executions[execution_id] = known
                if known.is_whole:
                    continue
                missing = known.missing(first_fields(entries))
                if missing:
                    fetches.append(Fetch(tenants[execution_id], execution_id, missing))
            else:
                wanted = (HEADER_FIELD, *first_fields(entries))
                fetches.append(Fetch(tenants[execution_id], execution_id, wanted))
        await self._fetch(view, fetches)

    async def _load_second(self, view: ProjectorView) -> None:
        fetches: list[Fetch] = []
        loaded = 0
        for execution_id, entries in self.entries.items():
            execution = self.executions[execution_id]
            header = execution.header
            if header is None or execution.is_whole:
                continue
            calls = [entry for entry in entries if isinstance(entry, StepSubmitted)]
            digests = [call_digest(call.kind, call.target, call.args_hash) for call in calls]
            counters = {digest: execution.counter(digest) for digest in digests}
            keyed = [entry.key.key for entry in calls if entry.key is not None]
            keys: dict[bytes, KeyRecord | None] = {key: execution.key(key) for key in keyed}
            missing = execution.missing(second_fields(header, entries, counters, keys))
            loaded += len(missing)
            if loaded > LOADED_FIELDS_MAX and fetches:
                self.postponed.add(execution_id)
            elif missing:
                fetches.append(Fetch(header.tenant, execution_id, missing))
        await self._fetch(view, fetches)

    async def _fetch(self, view: ProjectorView, fetches: Sequence[Fetch]) -> None:
        if not fetches:
            return
        for fetch, fetched in zip(fetches, await view.load(self.shard, fetches), strict=True):
            execution = self.executions.get(fetch.execution_id)
            values, fields = fetched.values, fetch.fields
            if execution is None:
                raw, values, fields = values[0], values[1:], fields[1:]
                header = None if raw is None else decode_header(raw)
                if header is None and (fetched.is_listed or fetched.field_count):
                    raise ViewDamaged(f"shard {self.shard}: an execution is listed and has no header")
                execution = ExecutionMemory(header, is_whole=header is None)
                self.executions[fetch.execution_id] = execution
                self.memory.put(fetch.execution_id, execution)
            expected = 0 if execution.before is None else execution.before.field_count
            if fetched.field_count != expected:
                raise ViewDamaged(f"shard {self.shard}: an execution has {fetched.field_count} fields, not {expected}")
            execution.learn(fields, values)

    async def _load_create_keys(self, view: ProjectorView) -> None:
        created = [
            (entry.execution_id, entry.tenant, entry.key.key)
            for entries in self.entries.values()
            for entry in entries
            if isinstance(entry, ExecutionCreated) and entry.key is not None
        ]
        wanted = list(dict.fromkeys((tenant, digest) for _, tenant, digest in created))
        if not wanted:
            return
        records = await view.load_create_keys(self.shard, wanted)
        decoded = [None if raw is None else decode_create_key(raw) for raw in records]
        # Creates of one batch may share a key: all of them look into the same small table.
        shared = dict(zip(wanted, decoded, strict=True))
        for execution_id, _, _ in created:
            self.executions[execution_id].create_keys = shared

    # ------------------------------------------------------------ folding

    def fold(self) -> FoldedBatch:
        answered: list[Answered] = []
        create_keys: list[CreateKey] = []
        parked: list[Parked] = []
        touched: dict[str, ExecutionMemory] = {}
        weight = 0
        for item in self.inspected:
            execution = self.executions[item.message.execution_id]
            if weight >= FIELDS_MAX or item.message.execution_id in self.postponed:
                break
            folded, damage = self._fold_one(item, execution)
            if damage:
                parked.append(Parked(item.message.seq, damage))
            if folded is not None:
                weight += 4 + len(folded.events) + 2 * len(folded.steps)
                execution.take(folded)
                touched[item.message.execution_id] = execution
                if folded.create_key is not None:
                    digest, record = folded.create_key
                    execution.create_keys[item.message.tenant, digest] = record
                    create_keys.append(CreateKey(item.message.tenant, digest, msgspec.msgpack.encode(record)))
            answered.append(Answered(item.message, item.entry, None if folded is None else folded.answer))
        changes = [
            ExecutionChange(
                before=execution.before,
                after=execution.header,
                fields=execution.written(),
                approvals=tuple(execution.approvals.values()),
            )
            for execution in touched.values()
            if execution.header is not None
        ]
        return FoldedBatch(
            count=len(answered),
            answered=tuple(answered),
            changes=tuple(changes),
            create_keys=tuple(create_keys),
            parked=tuple(parked),
        )

    def _fold_one(self, item: Inspected, execution: ExecutionMemory) -> tuple[Folded | None, str]:
        """Fold or park one message. Without a header there is nothing to halt, and nobody is answered."""
        message = item.message
        position = Position(
            seq=message.seq,
            stored_at=message.stored_at,
            payload=message.payload,
            is_repeated=self.memory.see(message.entry_id, message.stored_at),
        )
        damage = item.damage
        if item.entry is not None and not damage:
            try:
                return fold(execution.header, execution, item.entry, position), ""
            except InvariantBroken as error:
                damage = str(error)
        if execution.header is None:
            return None, damage
        return park(execution.header, position, damage), damage
