"""Entries: what is written to the log is what is read from it, and what is not an entry is refused."""

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from schemas.entries import (
    KNOWN_RULES,
    KNOWN_SCHEMAS,
    RULES_VERSION,
    SCHEMA_VERSION,
    SPILLED_SCHEMA,
    AnyEntry,
    Entry,
    ExecutionCompleted,
    HeartbeatReceived,
    Lease,
    Outcome,
    RequestKey,
    StepSubmitted,
    Verdict,
    decode_entry,
    encode_entry,
    is_known_version,
)
from tests.unit.schemas.strategies import JSON_TEXTS, values_of

ENTRY_TYPES: tuple[type[Any], ...] = get_args(AnyEntry)
STAMP: dict[str, Any] = {
    "id": "0199aaaa-0000-7000-8000-000000000001",
    "tenant": "default",
    "execution_id": "0199aaaa-0000-7000-8000-0000000000ff",
    "at": 1_760_000_000_000_001,
    "lease": Lease("0199aaaa-0000-7000-8000-000000000002", 1),
}


def submitted(args: bytes, **more: Any) -> StepSubmitted:
    fields: dict[str, Any] = {
        "kind": "tool_call",
        "target": "t",
        "args_hash": "0" * 64,
        "idempotency": "safe_to_retry",
        "verdict": Verdict(decision="allow", rule_id="permissive", policy_version=0),
    }
    return StepSubmitted(**(STAMP | fields | more), args=Raw(args))


def heartbeat(**more: Any) -> bytes:
    """Return the bytes of an entry with some members changed, or taken out where None."""
    members = json.loads(encode_entry(HeartbeatReceived(**STAMP))) | more
    return json.dumps({name: value for name, value in members.items() if value is not None}).encode()


@pytest.mark.parametrize("entry_type", ENTRY_TYPES, ids=lambda entry_type: entry_type.__name__)
@given(data=st.data())
def test_an_entry_is_read_as_it_was_written(entry_type: type[Any], data: st.DataObject) -> None:
    entry = data.draw(values_of(entry_type))
    payload = encode_entry(entry)
    read = decode_entry(payload)
    assert read == entry
    assert type(read) is entry_type
    assert encode_entry(read) == payload


def test_no_entry_type_is_missing_from_the_union() -> None:
    assert set(Entry.__subclasses__()) == set(ENTRY_TYPES)


def test_every_entry_type_has_a_name_of_its_own() -> None:
    names = [entry_type.__struct_config__.tag for entry_type in ENTRY_TYPES]
    assert len(set(names)) == len(ENTRY_TYPES) == 17


@given(JSON_TEXTS)
def test_the_bytes_of_args_stand_in_the_payload_and_are_read_back(text: str) -> None:
    args = text.encode()
    payload = encode_entry(submitted(args))
    assert b'"args":' + args + b"," in payload
    read = decode_entry(payload)
    assert isinstance(read, StepSubmitted)
    assert bytes(read.args) == args


@pytest.mark.parametrize(
    "args",
    [
        b'{"n":1e2,"m":1E2,"o":-0,"p":1.50,"q":123456789012345678901234567890}',
        b'{ "a" : 1 ,\n\t"a":2 }',
        b'"\\u0000\\ud83d\\ude00\\/\\u2028"',
        '"é\u2028\x7f"'.encode(),
        b'{"z":1,"a":{"z":[],"a":{}}}',
        b"[" * 511 + b"]" * 511,
    ],
    ids=["numbers", "space and equal names", "escapes", "raw characters", "order", "depth"],
)
def test_no_spelling_is_changed(args: bytes) -> None:
    read = decode_entry(encode_entry(submitted(args)))
    assert isinstance(read, StepSubmitted)
    assert bytes(read.args) == args


@pytest.mark.parametrize("state", [b'{"cart": [1.0]}', b"null", b"7", b'""'])
def test_any_state_of_a_completed_execution_is_read_back(state: bytes) -> None:
    entry = ExecutionCompleted(**STAMP, output=Raw(b"null"), state=Raw(state))
    read = decode_entry(encode_entry(entry))
    assert isinstance(read, ExecutionCompleted)
    assert isinstance(read.state, Raw)
    assert bytes(read.state) == state


def test_a_null_result_is_told_from_an_absent_one() -> None:
    settle = (Outcome(step_id="a", result=Raw(b"null")), Outcome(step_id="b", error=Raw(b"null")))
    read = decode_entry(encode_entry(submitted(b"null", settle=settle)))
    assert isinstance(read, StepSubmitted)
    assert read.settle == settle
    assert [each.result is msgspec.UNSET for each in read.settle] == [False, True]


def test_the_digests_of_a_request_key_may_be_any_bytes() -> None:
    key = RequestKey(key=bytes(16), request=bytes(range(240, 256)))
    read = decode_entry(encode_entry(submitted(b"null", key=key)))
    assert isinstance(read, StepSubmitted)
    assert read.key == key


def test_an_entry_carries_the_versions_of_this_build() -> None:
    entry = HeartbeatReceived(**STAMP)
    assert (entry.schema, entry.rules) == (SCHEMA_VERSION, RULES_VERSION)
    assert entry.expires is None
    assert is_known_version(encode_entry(entry))


def test_this_build_folds_what_it_writes() -> None:
    assert {SCHEMA_VERSION, SPILLED_SCHEMA} <= KNOWN_SCHEMAS
    assert is_known_version(heartbeat(schema=SPILLED_SCHEMA))
    assert RULES_VERSION in KNOWN_RULES


@pytest.mark.parametrize(("schema", "rules"), [(3, 1), (1, 2), (2, 2), (0, 1), (1, 0), (-1, 1), (99, 99)])
def test_an_entry_of_another_version_is_told_before_it_is_read(schema: int, rules: int) -> None:
    assert not is_known_version(heartbeat(schema=schema, rules=rules))
    assert not is_known_version(json.dumps({"type": "of_a_later_build", "schema": schema, "rules": rules}).encode())


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"[]", b"null", b"{}", b'{"schema":1}', b'{"rules":1}', b'{"schema":"1","rules":1}', b"\xff"],
)
def test_an_entry_without_a_version_is_refused(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        is_known_version(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        heartbeat() + b" x",
        heartbeat()[:-1],
        heartbeat().replace(b"default", b"\xff"),
        heartbeat(type=None),
        heartbeat(type="execution_vanished"),
        heartbeat(type=7),
        heartbeat(id=None),
        heartbeat(tenant=7),
        heartbeat(at="now"),
        heartbeat(at=1.5),
        heartbeat(lease=None),
        heartbeat(lease=["only the dispatch"]),
        heartbeat(lease={"dispatch_id": "d", "attempt": 1}),
        encode_entry(submitted(b"null")).replace(b'"tool_call"', b'"dream"'),
        encode_entry(submitted(b"null")).replace(b'"safe_to_retry"', b'"twice"'),
        encode_entry(submitted(b"null")).replace(b'"allow"', b'"perhaps"'),
        encode_entry(submitted(b"{]")),
        encode_entry(submitted(b"null", key=RequestKey(key=b"k", request=b"r"))).replace(b'"aw=="', b'"a"'),
    ],
)
def test_what_is_not_an_entry_is_refused(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_entry(payload)
