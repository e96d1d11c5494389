"""Marks: what a shard's owner keeps on record beside the log, so that a log that went back is noticed.

A view notices it, too, but it can be lost; then the mark alone is left.
"""

import msgspec

MARK_SCHEMA_VERSION = 1


class PiecesMark(msgspec.Struct, frozen=True, kw_only=True):
    """Which pieces of bodies no entry refers to, as far as somebody has looked.

    It says of the pieces up to `end`, in the stream of bodies that `created_at` names, and of all entries up to `seq`.
    """

    created_at: str
    end: int
    seq: int
    unreferenced: tuple[int, ...]


class ShardMark(msgspec.Struct, frozen=True, kw_only=True):
    """How far a shard's log was folded. `created_at` names the stream, `checksum` is that of the entry at `seq`."""

    shard: int
    created_at: str
    floor_seq: int
    """The first sequence that the view still needs."""
    seq: int
    checksum: str
    at: int
    """When it was recorded, in unix microseconds, by the clock of the owner: for people to read."""
    schema: int = MARK_SCHEMA_VERSION
    pieces: PiecesMark | None = None
    """None where nobody has looked yet; a build that knows nothing of it drops it."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ShardMark)


def encode_mark(mark: ShardMark) -> bytes:
    """Return the bytes of the mark as the log keeps them."""
    return _encoder.encode(mark)


def decode_mark(payload: bytes) -> ShardMark:
    """Return the mark; raises msgspec.DecodeError on anything that is not one."""
    return _decoder.decode(payload)
