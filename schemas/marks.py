"""Marks: what a shard's owner keeps on record beside the log, so that a log that went back is noticed.

A view notices it, too, but it can be lost; then the mark alone is left.
"""

import msgspec

MARK_SCHEMA_VERSION = 1


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


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ShardMark)


def encode_mark(mark: ShardMark) -> bytes:
    """Return the bytes of the mark as the log keeps them."""
    return _encoder.encode(mark)


def decode_mark(payload: bytes) -> ShardMark:
    """Return the mark; raises msgspec.DecodeError on anything that is not one."""
    return _decoder.decode(payload)
