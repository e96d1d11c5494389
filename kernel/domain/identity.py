"""Names derived from content: step ids, digests that name records, and the shard and bucket of an execution.

SHA-256 wherever two different things must never share a name, xxHash only to spread load. All of it is on the wire or
in the log, so none of it may ever change.
"""

import hashlib

import xxhash

from schemas.ids import uuid_bytes

DIGEST_BYTES = 16


def step_id(execution_id: str, kind: str, target: str, args_hash: str, occurrence: int) -> str:
    """Return the id, 64 hex digits, of the n-th use (from 0) of one call within an attempt."""
    fields = (execution_id, kind, target, args_hash, str(occurrence))
    return hashlib.sha256(_framed(*(field.encode() for field in fields))).hexdigest()


def call_digest(kind: str, target: str, args_hash: str) -> bytes:
    """Return the 16 bytes that name the occurrence counter of a call."""
    return _digest(_framed(kind.encode(), target.encode(), args_hash.encode()))


def request_key_digest(key: str) -> bytes:
    """Return the 16 bytes that name an Idempotency-Key within its scope."""
    return _digest(key.encode())


def body_digest(method: str, path: str, canonical_body: bytes) -> bytes:
    """Return the 16 bytes that tell whether a repeated key comes with the same request."""
    return _digest(_framed(method.encode(), path.encode(), canonical_body))


def shard_of(execution_id: str, shards: int) -> int:
    """Return the shard of an execution, from 0."""
    return xxhash.xxh3_64_intdigest(uuid_bytes(execution_id)) % shards


def shard_of_create_key(tenant: str, key: str, shards: int) -> int:
    """Return the shard that sees every create of a tenant under one Idempotency-Key.

    A tenant id holds no U+0000, so no two pairs are one text.
    """
    return xxhash.xxh3_64_intdigest(tenant.encode() + b"\0" + key.encode()) % shards


def bucket_of(execution_id: str) -> int:
    """Return the subject bucket of an execution, 0 to 255: the last byte of its id."""
    return int(execution_id[-2:], 16)


def _framed(*fields: bytes) -> bytes:
    """Join fields, each after its length, so that different fields never make the same bytes."""
    return b"".join(b"%d:%b" % (len(field), field) for field in fields)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:DIGEST_BYTES]
