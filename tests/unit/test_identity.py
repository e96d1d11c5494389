"""Step ids against the vectors of the contract; shards, buckets and digests pinned for ever."""

import hashlib
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import xxhash

from kernel.domain.identity import (
    body_digest,
    bucket_of,
    call_digest,
    request_key_digest,
    shard_of,
    shard_of_create_key,
    step_id,
)

IDENTITY: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden/vectors.json").read_text("utf-8"))[
    "identity"
]
EXECUTION_ID = "0199aaaa-0000-7000-8000-0000000000ff"
NULL_HASH = "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"


@pytest.mark.parametrize("vector", IDENTITY["steps"], ids=lambda vector: vector["step_id"][:8])
def test_every_vector_has_its_step_id(vector: dict[str, Any]) -> None:
    fields = (vector["kind"], vector["target"], vector["args_hash"], vector["occurrence"])
    assert step_id(IDENTITY["execution_id"], *fields) == vector["step_id"]


def test_a_character_that_moves_between_fields_makes_another_step() -> None:
    ids = {
        step_id(EXECUTION_ID, "local", "ab", NULL_HASH, 0),
        step_id(EXECUTION_ID, "locala", "b", NULL_HASH, 0),
        step_id(EXECUTION_ID, "loca", "lab", NULL_HASH, 0),
        step_id(EXECUTION_ID, "local", "ab", NULL_HASH, 10),
        step_id(EXECUTION_ID, "local", "ab", NULL_HASH + "1", 0),
        step_id(EXECUTION_ID, "local", "ab\x00", NULL_HASH, 0),
    }
    assert len(ids) == 6


def test_the_shard_is_the_hash_of_the_sixteen_bytes() -> None:
    raw = UUID(EXECUTION_ID).bytes
    assert len(raw) == 16
    for shards in (1, 8, 13):
        assert shard_of(EXECUTION_ID, shards) == xxhash.xxh3_64_intdigest(raw) % shards


def test_shards_and_buckets_are_pinned() -> None:
    ids = [f"0199aaaa-0000-7000-8000-0000000000{last:02x}" for last in (0x00, 0x01, 0x7F, 0xFE, 0xFF)]
    assert [shard_of(execution_id, 8) for execution_id in ids] == [2, 1, 0, 2, 2]
    assert [bucket_of(execution_id) for execution_id in ids] == [0, 1, 127, 254, 255]


def test_the_shard_of_a_key_belongs_to_the_tenant_and_the_key() -> None:
    raw = "acme\0clé 🙂".encode()
    assert shard_of_create_key("acme", "clé 🙂", 8) == xxhash.xxh3_64_intdigest(raw) % 8
    pairs = [("default", "order-1"), ("default", "order-2"), ("acme", "order-1"), ("acme", "")]
    assert [shard_of_create_key(tenant, key, 1024) for tenant, key in pairs] == [118, 471, 416, 695]


def test_a_call_digest_is_half_a_sha256_over_framed_fields() -> None:
    framed = b"9:tool_call" + b"2:\xc3\xa9" + b"64:" + NULL_HASH.encode()
    assert call_digest("tool_call", "é", NULL_HASH) == hashlib.sha256(framed).digest()[:16]
    assert call_digest("local", "a", NULL_HASH) != call_digest("locala", "", NULL_HASH)


def test_a_request_key_digest_is_half_a_sha256_of_the_key() -> None:
    assert request_key_digest("clé") == hashlib.sha256("clé".encode()).digest()[:16]
    assert request_key_digest("a") != request_key_digest("A")


def test_a_body_digest_covers_method_path_and_body() -> None:
    framed = b"4:POST" + b"14:/v0/executions" + b'7:{"a":1}'
    assert body_digest("POST", "/v0/executions", b'{"a":1}') == hashlib.sha256(framed).digest()[:16]
    others = {
        body_digest("PUT", "/v0/executions", b'{"a":1}'),
        body_digest("POST", "/v0/execution", b's{"a":1}'),
        body_digest("POST", "/v0/executions", b'{"a":2}'),
        body_digest("POST", "/v0/executions", b'{"a":1}'),
    }
    assert len(others) == 4
