"""One shard of MemoryView: what Redis keeps under a shard's keys, in dicts, with the same rules.

Lists and live sets are read off headers and records, so they also test the indexes that Redis keeps.
"""

from collections.abc import Iterable

import msgspec

from kernel.domain.errors import InvariantBroken, OwnershipLost
from kernel.ports import Batch, ExecutionChange, ListedApproval, Located, StoredAnswer, Watermark
from kernel.view.changes import translate
from kernel.view.headers import checked_header
from kernel.view.keys import RELEASED, answer_slice
from kernel.view.limits import ANSWER_MS, SILENCE_MS_MAX
from schemas.records import HEADER_FIELD, Header, decode_approval, is_approval_field

_HELD_MS = 0.5
"""Part of a due item's time that says that it is held, as in Redis."""

ExecutionPlace = tuple[str, str]
"""Tenant and execution id."""


class Slice(msgspec.Struct):
    """Answers whose entries are of one time, and when they are forgotten."""

    expires_at: int
    answers: dict[str, bytes]


class MemoryShard(msgspec.Struct):
    """State of one shard. Times are unix milliseconds."""

    owner: str | None = None
    owned_until: int = 0
    epoch: int = 0
    watermark: Watermark | None = None
    dirty: Watermark | None = None
    rebuilding_lease_ms: int | None = None
    floor: int | None = None
    beat_at: int | None = None
    silent_until: int = 0
    polled_at: int | None = None
    hashes: dict[ExecutionPlace, dict[bytes, bytes]] = {}
    directory: dict[str, Located] = {}
    due: dict[str, float] = {}
    leases: dict[str, str] = {}
    marks: set[str] = set()
    slices: dict[int, Slice] = {}
    create_keys: dict[tuple[str, bytes], bytes] = {}
    parked: dict[int, str] = {}
    log_bytes: dict[str, int] = {}

    @property
    def is_rebuilding(self) -> bool:
        return self.rebuilding_lease_ms is not None

    @property
    def is_true(self) -> bool:
        """Whether leases and due work are the ones of a watermark."""
        return self.watermark is not None and self.dirty is None and not self.is_rebuilding

    def owner_at(self, now: int) -> str | None:
        """Return the owner's token, `-` after a release, None after a death."""
        return self.owner if self.owner == RELEASED or now < self.owned_until else None

    def check_owner(self, token: str, now: int) -> None:
        if self.owner_at(now) != token:
            raise OwnershipLost("the shard is not, or not any more, owned by this token")

    def raise_floor(self, unix_ms: int) -> None:
        self.floor = max(self.floor or 0, unix_ms)

    def is_silent(self, now: int) -> bool:
        """Whether doors or dispatchers have been silent, so that leases may be due through our fault."""
        signs = (self.polled_at, self.beat_at)
        return self.floor is None or any(sign is None or now - sign > SILENCE_MS_MAX for sign in signs)

    def hash(self, tenant: str, execution_id: str) -> dict[bytes, bytes]:
        return self.hashes.get((tenant, execution_id), {})

    def headers(self, tenant: str) -> Iterable[Header]:
        """Return the headers of a tenant's executions."""
        for (owner, execution_id), fields in self.hashes.items():
            if owner == tenant and HEADER_FIELD in fields:
                yield checked_header(fields[HEADER_FIELD], tenant=owner, execution_id=execution_id)

    def approvals(self, tenant: str) -> Iterable[ListedApproval]:
        """Return the approvals of a tenant's executions."""
        for header in self.headers(tenant):
            for field, raw in self.hash(tenant, header.execution_id).items():
                if is_approval_field(field):
                    yield ListedApproval(header.execution_id, header.agent_id, decode_approval(raw))

    def answers_at(self, now: int) -> dict[str, bytes]:
        """Return the answers that are still kept."""
        kept = [found.answers for found in self.slices.values() if now < found.expires_at]
        return {entry_id: answer for answers in kept for entry_id, answer in answers.items()}

    def hold(self, member: str, now: int, hold_ms: int) -> None:
        self.due[member] = now + hold_ms + _HELD_MS

    def is_held(self, member: str) -> bool:
        return member in self.due and self.due[member] % 1 == _HELD_MS

    def is_applied(self, batch: Batch) -> bool:
        """Whether the batch was applied before. Raises OwnershipLost where the view is not what it was folded from."""
        if self.watermark == batch.watermark != batch.expected and self.dirty is None:
            return True
        if self.watermark != batch.expected or self.dirty not in (None, batch.watermark):
            # As in Redis: the view went backwards under a living owner, and its leases with it.
            self.owner = None
            self.owned_until = 0
            raise OwnershipLost("the view is not at the expected watermark")
        return False

    def check_sizes(self, batch: Batch) -> None:
        """Raises InvariantBroken where an execution is not the one that the batch was folded from."""
        if self.dirty is not None:
            return
        for before in (change.before for change in batch.changes):
            if before is not None and len(self.hash(before.tenant, before.execution_id)) != before.field_count:
                raise InvariantBroken("an execution has lost fields, or has some of its own")

    def write(self, batch: Batch, now: int) -> None:
        """Write everything but the watermark."""
        for change in batch.changes:
            self.write_fields(change)
        writes = translate(batch.changes)
        for header in writes.listed:
            self.directory[header.execution_id] = Located(tenant=header.tenant, agent_id=header.agent_id)
        self.due.update(writes.due_at)
        self.due.update((member, now + period_ms) for member, period_ms in writes.due_in)
        for member in writes.not_due:
            self.due.pop(member, None)
        self.leases.update(writes.renewable)
        for execution_id in writes.not_renewable:
            self.leases.pop(execution_id, None)
        self.marks.difference_update(writes.unmarked)
        for stored in batch.answers:
            self._store(stored, now)
        for key in batch.create_keys:
            self.create_keys[key.tenant, key.digest] = key.record
        self.log_bytes.update(batch.log_bytes)
        self.parked.update((parked.seq, parked.reason) for parked in batch.parked)

    def write_fields(self, change: ExecutionChange) -> None:
        where = (change.after.tenant, change.after.execution_id)
        if change.before is None:
            self.hashes.pop(where, None)
        if change.fields:
            self.hashes.setdefault(where, {}).update(change.fields)

    def finish(self, batch: Batch, now: int) -> None:
        """Set the watermark and what goes with it."""
        if batch.is_rebuilding:
            self.rebuilding_lease_ms = self.rebuilding_lease_ms or 0
        elif self.rebuilding_lease_ms is not None:
            self.raise_floor(now + self.rebuilding_lease_ms)
            self.rebuilding_lease_ms = None
        self.watermark = batch.watermark
        self.dirty = None

    def wiped(self, now: int, *, watermark: Watermark, lease_ms: int) -> "MemoryShard":
        """Return an empty shard that has what a wipe leaves alone."""
        empty = MemoryShard(
            owner=self.owner,
            owned_until=self.owned_until,
            epoch=self.epoch,
            watermark=watermark,
            rebuilding_lease_ms=lease_ms,
            floor=self.floor,
            beat_at=self.beat_at,
            silent_until=self.silent_until,
            polled_at=self.polled_at,
        )
        empty.raise_floor(now + lease_ms)
        return empty

    def _store(self, stored: StoredAnswer, now: int) -> None:
        number = answer_slice(stored.entry_id)
        found = self.slices.get(number)
        answers = found.answers if found is not None and now < found.expires_at else {}
        answers[stored.entry_id] = stored.answer
        self.slices[number] = Slice(expires_at=now + ANSWER_MS, answers=answers)
