"""MemoryView: the view in plain dicts, for fast tests. It obeys the same contract suite as RedisView.

Its knobs do to it what happens to a real server: it cannot be asked, a script fails half-way, it loses everything, it
goes back in time.
"""

import copy
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence

from kernel.domain.errors import ViewUnavailable
from kernel.ports import (
    ApprovalQuery,
    Batch,
    DueItem,
    DueWork,
    ExecutionQuery,
    Fetch,
    Fetched,
    ListedApproval,
    Located,
    Ownership,
    Seen,
    T,
    ViewState,
    Watermark,
)
from kernel.view.changes import lease_prefix
from kernel.view.headers import checked_header
from kernel.view.keys import RELEASED, bucket_key, due_member, parse_due_member, place, slots_key, spent_key
from kernel.view.limits import SILENCE_MS_MAX
from kernel.view.memory_shard import MemoryShard
from kernel.view.ranges import is_approval_match, is_match
from schemas.entries import Lease
from schemas.records import HEADER_FIELD, Header

_NONCE_BYTES = 8


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


class MemoryView:
    """Implements `kernel.ports.View`. `clock` returns unix milliseconds and stands in for Redis TIME."""

    def __init__(self, *, clock: Callable[[], int] = unix_ms) -> None:
        self._clock = clock
        self._shards: dict[int, MemoryShard] = {}
        self._projectors: dict[str, int] = {}
        self._buckets: dict[str, tuple[int, int]] = {}
        self._slots: dict[str, dict[str, int]] = {}
        self._spent: Counter[str] = Counter()
        self._halves: set[int] = set()
        self._is_closed = False
        self.is_unavailable = False
        """Knob: while set, everything raises ViewUnavailable and nothing happens."""
        self.losses = 0
        """Connections lost; a knob too: a view that goes back would have ended them."""

    # ------------------------------------------------------------ knobs

    def fail_next_apply(self, shard: int) -> None:
        """Let the next batch of a shard fail in the middle: some of it is written, and `dirty` stays."""
        self._halves.add(shard)

    def lose_everything(self) -> None:
        """Forget all, as a server does that starts without its data."""
        self._shards.clear()
        self._projectors.clear()
        self._buckets.clear()
        self._slots.clear()
        self._spent.clear()

    def snapshot(self) -> object:
        """Return all there is, for `go_back`."""
        return copy.deepcopy((self._shards, self._projectors, self._buckets, self._slots, self._spent))

    def go_back(self, snapshot: object) -> None:
        """Become again what `snapshot` returned, owners included."""
        held = copy.deepcopy(snapshot)
        self._shards, self._projectors, self._buckets, self._slots, self._spent = held  # type: ignore[misc]  # opaque to callers

    def shard(self, number: int) -> MemoryShard:
        """Return the state of a shard, to be looked at."""
        return self._shards.setdefault(number, MemoryShard())

    # ------------------------------------------------------------ projectors

    async def acquire(self, shard: int, *, owner: str, ttl_ms: int, lease_ms: int) -> Ownership | None:
        state, now = self._ask(shard)
        found = state.owner_at(now)
        if found is not None and found != RELEASED:
            return None
        if found is None:
            state.raise_floor(now + lease_ms)
        state.epoch += 1
        state.owner = f"{owner}/{state.epoch}/{secrets.token_hex(_NONCE_BYTES)}"
        state.owned_until = now + ttl_ms
        return Ownership(shard=shard, token=state.owner)

    async def keep(self, ownership: Ownership, *, ttl_ms: int) -> ViewState:
        state, now = self._ask(ownership.shard)
        state.check_owner(ownership.token, now)
        state.owned_until = now + ttl_ms
        return ViewState(watermark=state.watermark, is_dirty=state.dirty is not None, is_rebuilding=state.is_rebuilding)

    async def release(self, ownership: Ownership) -> None:
        state, now = self._ask(ownership.shard)
        if state.owner_at(now) == ownership.token:
            state.owner = RELEASED

    async def load(self, shard: int, fetches: Sequence[Fetch]) -> list[Fetched]:
        state, _ = self._ask(shard)
        found: list[Fetched] = []
        for fetch in fetches:
            fields = state.hash(fetch.tenant, fetch.execution_id)
            values = tuple(fields.get(name) for name in fetch.fields)
            place = state.directory.get(fetch.execution_id)
            is_listed = place is not None and place.tenant == fetch.tenant
            found.append(Fetched(values=values, field_count=len(fields), is_listed=is_listed))
        return found

    async def load_create_keys(self, shard: int, keys: Sequence[tuple[str, bytes]]) -> list[bytes | None]:
        state, _ = self._ask(shard)
        return [state.create_keys.get(key) for key in keys]

    async def log_bytes(self, shard: int) -> dict[str, int]:
        state, _ = self._ask(shard)
        return dict(state.log_bytes)

    async def recent_entry_ids(self, shard: int) -> list[str]:
        state, now = self._ask(shard)
        return list(state.answers_at(now))

    async def apply(self, ownership: Ownership, batch: Batch) -> None:
        state, now = self._ask(ownership.shard)
        state.check_owner(ownership.token, now)
        if state.is_applied(batch):
            return
        state.check_sizes(batch)
        state.dirty = batch.watermark
        if ownership.shard in self._halves:
            self._halves.discard(ownership.shard)
            for change in batch.changes[: (len(batch.changes) + 1) // 2]:
                state.write_fields(change)
            raise ViewUnavailable("the script failed half-way", reason="view_unavailable")
        state.write(batch, now)
        state.finish(batch, now)

    async def wipe(self, ownership: Ownership, *, created_at: str, lease_ms: int) -> Watermark:
        state, now = self._ask(ownership.shard)
        state.check_owner(ownership.token, now)
        empty = Watermark(created_at=created_at, seq=0, checksum="")
        self._shards[ownership.shard] = state.wiped(now, watermark=empty, lease_ms=lease_ms)
        return empty

    async def announce_projector(self, owner: str, *, ttl_ms: int) -> int:
        _, now = self._ask(0)
        self._projectors[owner] = now + ttl_ms
        self._projectors = {name: until for name, until in self._projectors.items() if until > now}
        return len(self._projectors)

    # ------------------------------------------------------------ dispatchers

    async def take_due(self, shard: int, *, items_max: int, hold_ms: int, lease_ms: int) -> DueWork:
        state, now = self._ask(shard)
        state.raise_floor((now if state.is_silent(now) else state.silent_until) + lease_ms)
        state.polled_at = now
        if not state.is_true:
            return DueWork(items=(), next_due_ms=None)
        ripe = sorted((at, member) for member, at in state.due.items() if at <= now)
        taken = [self._take(state, member, now, hold_ms=hold_ms) for _, member in ripe[:items_max]]
        next_due = min(state.due.values(), default=None)
        return DueWork(
            items=tuple(item for item in taken if item is not None),
            next_due_ms=None if next_due is None else max(0, -int(-(next_due - now) // 1)),
        )

    async def defer(self, shard: int, items: Sequence[DueItem], *, delay_ms: int) -> None:
        state, now = self._ask(shard)
        for item in items:
            member = due_member(item.kind, place(item.tenant, item.execution_id, item.agent_id))
            if state.is_held(member):
                state.due[member] = now + delay_ms

    async def take_slot(self, tenant: str, agent_id: str, *, holder: str, limit: int, hold_ms: int) -> bool:
        _, now = self._ask(0)
        held = {name: until for name, until in self._held(tenant, agent_id).items() if until > now}
        is_free = holder in held or len(held) < limit
        if is_free:
            held[holder] = now + hold_ms
        self._slots[slots_key(tenant, agent_id)] = held
        return is_free

    async def give_slot(self, tenant: str, agent_id: str, *, holder: str) -> None:
        self._ask(0)
        self._held(tenant, agent_id).pop(holder, None)

    def _held(self, tenant: str, agent_id: str) -> dict[str, int]:
        return self._slots.setdefault(slots_key(tenant, agent_id), {})

    def _take(self, state: MemoryShard, member: str, now: int, *, hold_ms: int) -> DueItem | None:
        kind, tenant, execution_id, agent_id = parse_due_member(member)
        if kind == "lease" and state.floor is not None and now < state.floor:
            state.due[member] = state.floor
            return None
        state.hold(member, now, hold_ms)
        raw = state.hash(tenant, execution_id).get(HEADER_FIELD)
        if raw is None:
            return None
        if kind == "lease":
            state.marks.add(place(tenant, execution_id, agent_id))
        header = checked_header(raw, tenant=tenant, execution_id=execution_id)
        return DueItem(kind=kind, tenant=tenant, agent_id=agent_id, execution_id=execution_id, header=header)

    # ------------------------------------------------------------ doors

    async def locate(self, shard: int, execution_id: str) -> Seen[Located | None]:
        state, _ = self._ask(shard)
        return _seen(state, state.directory.get(execution_id))

    async def fields(
        self, shard: int, tenant: str, execution_id: str, fields: Sequence[bytes]
    ) -> Seen[tuple[bytes | None, ...]]:
        state, _ = self._ask(shard)
        found = state.hash(tenant, execution_id)
        return _seen(state, tuple(found.get(name) for name in fields))

    async def executions(self, shard: int, tenant: str, query: ExecutionQuery) -> Seen[tuple[Header, ...]]:
        state, _ = self._ask(shard)
        found = [header for header in state.headers(tenant) if is_match(query, header)]
        found.sort(key=lambda header: header.execution_id, reverse=True)
        return _seen(state, tuple(found[: query.limit]))

    async def approvals(self, shard: int, tenant: str, query: ApprovalQuery) -> Seen[tuple[ListedApproval, ...]]:
        state, _ = self._ask(shard)
        found = [approval for approval in state.approvals(tenant) if is_approval_match(query, approval)]
        found.sort(key=lambda approval: approval.record.approval_id)
        return _seen(state, tuple(found[: query.limit]))

    async def stored_answer(self, shard: int, entry_id: str) -> Seen[bytes | None]:
        state, now = self._ask(shard)
        return _seen(state, state.answers_at(now).get(entry_id))

    async def renew_lease(self, shard: int, execution_id: str, lease: Lease, *, lease_ms: int) -> bool:
        state, now = self._ask(shard)
        prefix, found = lease_prefix(lease), state.leases.get(execution_id, "")
        where = found.removeprefix(prefix)
        member = due_member("lease", where)
        if not state.is_true or where == found or where in state.marks or member not in state.due:
            return False
        state.due[member] = now + lease_ms
        return True

    async def live_executions(self, shard: int, tenant: str, agent_id: str) -> Seen[int]:
        state, _ = self._ask(shard)
        live = [header for header in state.headers(tenant) if header.agent_id == agent_id and not header.is_terminal]
        return _seen(state, len(live))

    async def take_token(self, tenant: str, bucket: bytes, *, max_calls: int, window_ms: int) -> bool:
        return self._pour(tenant, bucket, max_calls, window_ms, wanted=1) == 1

    async def give_token(self, tenant: str, bucket: bytes, *, max_calls: int, window_ms: int) -> None:
        self._pour(tenant, bucket, max_calls, window_ms, wanted=-1)

    async def draw_tokens(self, tenant: str, bucket: bytes, *, wanted: int, max_calls: int, window_ms: int) -> int:
        return self._pour(tenant, bucket, max_calls, window_ms, wanted=wanted)

    def _pour(self, tenant: str, bucket: bytes, max_calls: int, window_ms: int, *, wanted: int) -> int:
        _, now = self._ask(0)
        key, full = bucket_key(tenant, bucket), max_calls * window_ms
        parts, at = self._buckets.get(key, (full, now))
        held = min(full, parts + (now - at) * max_calls)
        taken = min(wanted, held // window_ms)
        if taken:
            self._buckets[key] = min(full, held - taken * window_ms), now
        return taken

    async def spend(self, tenant: str, quota: str, *, day: int, limit: int, wanted: int, least: int) -> int:
        self._ask(0)
        key = spent_key(tenant, quota, day)
        taken = min(wanted, limit - self._spent[key])
        if taken < least:
            return 0
        self._spent[key] += taken
        return taken

    async def count_live(self, shard: int, tenant: str) -> int:
        state, _ = self._ask(shard)
        return sum(not header.is_terminal for header in state.headers(tenant))

    async def count_log_bytes(self, shard: int, tenant: str) -> int:
        state, _ = self._ask(shard)
        return state.log_bytes.get(tenant, 0)

    async def beat(self, shards: Sequence[int]) -> None:
        for shard in shards:
            state, now = self._ask(shard)
            if state.beat_at is None or now - state.beat_at > SILENCE_MS_MAX:
                state.silent_until = now
            state.beat_at = now

    async def check(self) -> None:
        self._ask(0)

    async def close(self) -> None:
        self._is_closed = True

    def _ask(self, shard: int) -> tuple[MemoryShard, int]:
        if self.is_unavailable or self._is_closed:
            raise ViewUnavailable("the view cannot be asked", reason="view_unavailable")
        return self.shard(shard), self._clock()


def _seen(state: MemoryShard, value: T) -> Seen[T]:
    seq = -1 if state.watermark is None else state.watermark.seq
    return Seen(seq, state.is_rebuilding or state.dirty is not None, value)
