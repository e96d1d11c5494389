"""The log as a port: entries of the shards, and the control stream."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec


class Outgoing(msgspec.Struct, frozen=True):
    """One entry on its way into a shard. `reply_to` names the process that waits for the answer, or is empty."""

    shard: int
    tenant: str
    execution_id: str
    entry_id: str
    payload: bytes
    reply_to: str


class Piece(msgspec.Struct, frozen=True):
    """A piece of a body, on its way into the stream of bodies beside a shard. `entry_id` is its entry's."""

    shard: int
    tenant: str
    execution_id: str
    entry_id: str
    payload: bytes


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """The broker has the entry on disk. `is_duplicate`: an entry with this id was there before."""

    seq: int
    is_duplicate: bool


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """The broker refused this publish: the entry is not in the log through it. `is_full`: for want of room."""

    reason: str
    is_full: bool


class LogMessage(msgspec.Struct, frozen=True):
    """One message of a shard as it lies in the log. Headers are as found: empty where missing."""

    shard: int
    seq: int
    stored_at: int
    """The broker's timestamp in unix microseconds: data in the log."""
    tenant: str
    """From the subject."""
    entry_id: str
    execution_id: str
    checksum: str
    reply_to: str
    payload: bytes


class LogState(msgspec.Struct, frozen=True, gc=False):
    """`created_at` names this incarnation of the stream; an empty stream has first_seq = last_seq + 1.

    `broker_time` is the broker's clock at the answer, in unix microseconds.
    """

    created_at: str
    first_seq: int
    last_seq: int
    broker_time: int


class Follower(Protocol):
    """A reader of one shard in sequence order. It re-creates its consumer by itself and never skips on its own.

    The messages may still have holes (damage, deletion): the caller checks that sequences are contiguous.
    """

    async def next(self, *, messages_max: int, bytes_max: int, wait_seconds: float) -> list[LogMessage]:
        """Return what is there, at most `messages_max` and `bytes_max` (one message may exceed it alone).

        Waits up to `wait_seconds` for the first one; an empty list means nothing came.
        """
        ...

    @property
    def restarts(self) -> int:
        """How often the consumer was created anew: after a change the caller compares its watermark's entry."""
        ...


class Log(Protocol):
    """The append-only record: one stream a shard."""

    @property
    def is_connected(self) -> bool: ...

    def send(self, outgoing: Outgoing, acknowledged: Callable[[Acknowledged | Rejected], None]) -> None:
        """Publish without waiting; the callback is called at most once, on the loop, when the broker spoke.

        Raises LogUnavailable when certainly nothing was sent: disconnected, or the send buffer is full. The same
        entry may be sent again: its id de-duplicates it.
        """
        ...

    def is_silent(self, shard: int) -> bool:
        """Whether the broker is there and has acknowledged nothing of a shard for too long.

        Then `send` lets one publish a period through and raises LogUnavailable for all others: the first of them that
        is acknowledged ends the silence, as a new connection does, and `note_stored`.
        """
        ...

    def note_stored(self, shard: int, *, sent_at: float) -> None:
        """Something that was sent at that time of the event loop's clock has been read back from the log."""
        ...

    async def append(self, outgoing: Outgoing, *, timeout_seconds: float) -> Acknowledged:
        """Publish, and publish again with the same id, until acknowledged.

        Raises LogUnavailable where every publish was refused or none was sent, OutcomeUnknown otherwise.
        """
        ...

    async def get(self, shard: int, seq: int) -> LogMessage | None:
        """Return the message at a sequence, None where there is none."""
        ...

    async def state(self, shard: int) -> LogState: ...

    async def mark(self, shard: int) -> bytes | None:
        """Return what `put_mark` last recorded of a shard, None where nothing is."""
        ...

    async def put_mark(self, shard: int, payload: bytes, *, timeout_seconds: float) -> None:
        """Record something small about a shard, durably and in place of what was; errors as of `append`."""
        ...

    async def put_piece(self, piece: Piece, *, timeout_seconds: float) -> Acknowledged:
        """Store a piece of a body durably and return where in the stream of bodies it is; errors as of `append`.

        The same piece of the same entry, put again soon, may be stored once; that of another entry is its own.
        """
        ...

    async def piece(self, shard: int, seq: int) -> LogMessage | None:
        """Return the piece at a sequence of the stream of bodies, None where there is none."""
        ...

    async def bodies_state(self, shard: int) -> LogState:
        """Return the state of the stream of bodies beside a shard."""
        ...

    async def drop_piece(self, shard: int, seq: int) -> None:
        """Remove a piece for good. One that is not there, or is removed at the same time by another, is no error."""
        ...

    def follow(self, shard: int, *, after_seq: int) -> AbstractAsyncContextManager[Follower]: ...


class ControlMessage(msgspec.Struct, frozen=True):
    seq: int
    payload: bytes


class ControlLog(Protocol):
    """The control stream: small, read whole by every process."""

    async def append_control(self, *, entry_id: str, payload: bytes, timeout_seconds: float) -> int:
        """Append and return the sequence; errors as of Log.append."""
        ...

    async def read_control(self, *, after_seq: int) -> list[ControlMessage]:
        """Return all messages after a sequence (in bounded pages); empty when level with the head."""
        ...

    async def control_head(self) -> int: ...

    async def wait_control(self, *, wait_seconds: float) -> None:
        """Return when a control entry was appended by anybody, or the time is up: a hint, not a promise."""
        ...
