"""The view as a port: what projectors, dispatchers and doors need of it."""

from collections.abc import Mapping, Sequence
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from schemas.entries import Lease
from schemas.events import ApprovalStatus
from schemas.records import ApprovalRecord, Header

T = TypeVar("T")


class Watermark(msgspec.Struct, frozen=True, gc=False):
    """The last entry a shard's view reflects; seq 0 with an empty checksum before the first."""

    created_at: str
    seq: int
    checksum: str


class Ownership(msgspec.Struct, frozen=True, gc=False):
    """The fence: every write names the token, and only the present owner's token is accepted."""

    shard: int
    token: str


class ViewState(msgspec.Struct, frozen=True, gc=False):
    """What an owner finds. `watermark` None: lost or never written. `is_dirty`: a script failed half-way."""

    watermark: Watermark | None
    is_dirty: bool
    is_rebuilding: bool


class Fetch(msgspec.Struct, frozen=True):
    """Fields of one execution's hash that a batch needs."""

    tenant: str
    execution_id: str
    fields: tuple[bytes, ...]


class Fetched(msgspec.Struct, frozen=True):
    """The values in the order asked, the hash's length, and whether the directory has the id as this tenant's."""

    values: tuple[bytes | None, ...]
    field_count: int
    is_listed: bool


class ApprovalChange(msgspec.Struct, frozen=True):
    """What a batch does to one approval: its status before (None: new), and the record after."""

    before: ApprovalStatus | None
    after: ApprovalRecord


class ExecutionChange(msgspec.Struct, frozen=True):
    """What a batch does to one execution: its header before (None: new) and after, and every field to set.

    Directory, lists, due work and renewable leases follow from the two headers (`kernel.domain.duty`), the lists of
    approvals from `approvals`, whose records are among the fields too.
    """

    before: Header | None
    after: Header
    fields: Mapping[bytes, bytes]
    approvals: tuple[ApprovalChange, ...] = ()


class StoredAnswer(msgspec.Struct, frozen=True):
    """An answer kept two minutes under its entry id, whose own time (a UUIDv7) names the slice it lies in."""

    entry_id: str
    answer: bytes


class CreateKey(msgspec.Struct, frozen=True):
    tenant: str
    digest: bytes
    record: bytes


class Parked(msgspec.Struct, frozen=True):
    seq: int
    reason: str


class Batch(msgspec.Struct, frozen=True):
    """All that one script applies: absolute values only, then the new watermark."""

    expected: Watermark
    watermark: Watermark
    changes: tuple[ExecutionChange, ...]
    answers: tuple[StoredAnswer, ...]
    create_keys: tuple[CreateKey, ...]
    parked: tuple[Parked, ...]
    is_rebuilding: bool
    """Whether readers still have to wait after this batch."""
    log_bytes: tuple[tuple[str, int], ...] = ()
    """Tenants that entries of this batch belong to, and the bytes of all their entries in the shard's log by now."""


class ProjectorView(Protocol):
    """What a projector needs of the view. Everything raises ViewUnavailable when Redis cannot be asked."""

    async def acquire(self, shard: int, *, owner: str, ttl_ms: int, lease_ms: int) -> Ownership | None:
        """Take a free shard, else None. After an owner that did not release, the lease floor moves to now + lease."""
        ...

    async def keep(self, ownership: Ownership, *, ttl_ms: int) -> ViewState:
        """Renew and look. Raises OwnershipLost."""
        ...

    async def release(self, ownership: Ownership) -> None: ...

    async def load(self, shard: int, fetches: Sequence[Fetch]) -> list[Fetched]:
        """One pipelined read."""
        ...

    async def log_bytes(self, shard: int) -> dict[str, int]:
        """Return the bytes of every tenant's entries, as the last batch left them."""
        ...

    async def load_create_keys(self, shard: int, keys: Sequence[tuple[str, bytes]]) -> list[bytes | None]:
        """Records of creates' keys by (tenant, digest)."""
        ...

    async def recent_entry_ids(self, shard: int) -> list[str]:
        """Ids of the entries whose answers are still stored: the memory of seen ids after a take-over."""
        ...

    async def apply(self, ownership: Ownership, batch: Batch) -> None:
        """Apply the batch if the fence and the expected watermark hold.

        Raises OwnershipLost (nothing changed, or not this owner's to know), InvariantBroken (nothing changed: an
        execution's fields are not those the batch was folded from) or ViewUnavailable (unknown: look with `keep`).
        Sending the same batch again is safe in every case.
        """
        ...

    async def wipe(self, ownership: Ownership, *, created_at: str, lease_ms: int) -> Watermark:
        """Drop everything of the shard, mark it as rebuilding, and return the empty watermark it now has.

        The lease floor moves to now + lease.
        """
        ...

    async def announce_projector(self, owner: str, *, ttl_ms: int) -> int:
        """Say that this projector lives and return how many do: shards are shared among them."""
        ...


DutyKind = Literal["delivery", "lease", "deadline", "approval"]


class DueItem(msgspec.Struct, frozen=True):
    """One piece of due work that this dispatcher now holds, with the header as the view has it."""

    kind: DutyKind
    tenant: str
    agent_id: str
    execution_id: str
    header: Header


class DueWork(msgspec.Struct, frozen=True):
    items: tuple[DueItem, ...]
    next_due_ms: int | None
    """Milliseconds until the next piece is due, 0 when more is due now, None when nothing waits."""


class DispatcherView(Protocol):
    """What a dispatcher needs of the view. All timers compare with Redis TIME inside the script."""

    async def take_due(self, shard: int, *, items_max: int, hold_ms: int, lease_ms: int) -> DueWork:
        """Hold up to `items_max` due items for `hold_ms`: until then no other dispatcher is given them.

        Leases are not expired below the lease floor, and a lease taken here is marked, so that a heartbeat from now
        on goes through the log. Doors or dispatchers silent for five seconds move the floor to now + `lease_ms`.
        """
        ...

    async def defer(self, shard: int, items: Sequence[DueItem], *, delay_ms: int) -> None:
        """Give items back, due again after the delay."""
        ...

    async def take_slot(self, tenant: str, agent_id: str, *, holder: str, limit: int, hold_ms: int) -> bool:
        """Take one of an agent's webhook slots, and say whether one was free: fewer than `limit` were held.

        It ends by itself after `hold_ms`; until then the same holder may take it again, for as long anew, and is not
        refused. Raises ViewUnavailable, and then it is unknown whether it was taken.
        """
        ...

    async def give_slot(self, tenant: str, agent_id: str, *, holder: str) -> None:
        """Give the holder's slot back, where it still has one."""


class Seen(msgspec.Struct, Generic[T], frozen=True):
    """A value and how fresh it is. `watermark_seq` is -1 where the shard has no watermark."""

    watermark_seq: int
    is_rebuilding: bool
    value: T


class Located(msgspec.Struct, frozen=True):
    """Whose an execution is, as the directory says."""

    tenant: str
    agent_id: str


class ExecutionQuery(msgspec.Struct, frozen=True):
    """One page of a list: newest first by id. Times are unix microseconds; empty strings and 0 mean absent."""

    agent_id: str = ""
    status: str = ""
    created_after: int = 0
    created_before: int = 0
    before_id: str = ""
    limit: int = 50


class ListedApproval(msgspec.Struct, frozen=True):
    """An approval with what its record leaves to its execution."""

    execution_id: str
    agent_id: str
    record: ApprovalRecord


class ApprovalQuery(msgspec.Struct, frozen=True):
    """One page of approvals: oldest first by id, the ones after `after_id`. Empty strings mean absent.

    With `approval_id` it is that approval alone.
    """

    approval_id: str = ""
    status: ApprovalStatus | Literal[""] = ""
    agent_id: str = ""
    execution_id: str = ""
    after_id: str = ""
    limit: int = 50


class DoorView(Protocol):
    """What a door needs of the view. Everything raises ViewUnavailable when Redis cannot be asked."""

    # How often a connection was lost: what is read after one may be older than what was read before.
    @property
    def losses(self) -> int: ...

    async def locate(self, shard: int, execution_id: str) -> Seen[Located | None]: ...

    async def fields(
        self, shard: int, tenant: str, execution_id: str, fields: Sequence[bytes]
    ) -> Seen[tuple[bytes | None, ...]]:
        """Return fields of one execution's hash as they stood at one moment."""
        ...

    async def executions(self, shard: int, tenant: str, query: ExecutionQuery) -> Seen[tuple[Header, ...]]:
        """Return up to `query.limit` matching headers of one shard, newest first by id."""
        ...

    async def approvals(self, shard: int, tenant: str, query: ApprovalQuery) -> Seen[tuple[ListedApproval, ...]]:
        """Return up to `query.limit` matching approvals of one shard, oldest first by id.

        An approval lies in the shard of its execution's id, and so its own id does.
        """
        ...

    async def stored_answer(self, shard: int, entry_id: str) -> Seen[bytes | None]: ...

    async def renew_lease(self, shard: int, execution_id: str, lease: Lease, *, lease_ms: int) -> bool:
        """Run the lease anew if it is current, acknowledged and unmarked; False: append the heartbeat instead."""
        ...

    async def live_executions(self, shard: int, tenant: str, agent_id: str) -> Seen[int]: ...

    async def take_token(self, tenant: str, bucket: bytes, *, max_calls: int, window_ms: int) -> bool:
        """Take a token from a bucket that holds `max_calls` and is full after a window, and say whether there was one.

        Raises ViewUnavailable, and then it is unknown whether one was taken.
        """
        ...

    async def give_token(self, tenant: str, bucket: bytes, *, max_calls: int, window_ms: int) -> None:
        """Give back a token that was taken for nothing."""
        ...

    async def draw_tokens(self, tenant: str, bucket: bytes, *, wanted: int, max_calls: int, window_ms: int) -> int:
        """Take as many tokens as there are, up to `wanted`, and return how many that were."""
        ...

    async def spend(self, tenant: str, quota: str, *, day: int, limit: int, wanted: int, least: int) -> int:
        """Take up to `wanted` of what a day's `limit` leaves, or nothing where less than `least` is left.

        `day` counts from 1970. Returns what was taken.
        """
        ...

    async def count_live(self, shard: int, tenant: str) -> int:
        """Return how many executions of the tenant have not ended, as far as the view reflects the log."""
        ...

    async def count_log_bytes(self, shard: int, tenant: str) -> int:
        """Return the bytes of the tenant's entries in the log, as far as the view reflects it."""
        ...

    async def beat(self, shards: Sequence[int]) -> None:
        """Say that a door lives, in every shard."""

    async def check(self) -> None:
        """Raise ViewUnavailable unless Redis answers and does not evict."""


class View(ProjectorView, DispatcherView, DoorView, Protocol):
    """All sides of the view, as the adapters implement them."""

    async def close(self) -> None: ...
