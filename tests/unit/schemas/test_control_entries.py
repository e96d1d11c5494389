"""Control entries: read as written, absent members told from empty ones, no secret in the open."""

import re
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, inspect

import schemas.answers
import schemas.bodies
import schemas.control
import schemas.entries
import schemas.events
import schemas.http
import schemas.records
import schemas.webhook
from schemas.control import (
    CONTROL_SCHEMA_VERSION,
    AgentPut,
    AnyControlEntry,
    ControlEntry,
    SealedSecret,
    ShardsSet,
    decode_control,
    encode_control,
)
from tests.unit.schemas.strategies import values_of

CONTROL_TYPES: tuple[type[Any], ...] = get_args(AnyControlEntry)
MODULES = (
    schemas.answers,
    schemas.bodies,
    schemas.control,
    schemas.entries,
    schemas.events,
    schemas.http,
    schemas.records,
    schemas.webhook,
)
SECRET_WORD = re.compile(r"secret|password|api_?key|token$", re.IGNORECASE)


@pytest.mark.parametrize("control_type", CONTROL_TYPES, ids=lambda control_type: control_type.__name__)
@given(data=st.data())
def test_a_control_entry_is_read_as_it_was_written(control_type: type[Any], data: st.DataObject) -> None:
    entry = data.draw(values_of(control_type))
    read = decode_control(encode_control(entry))
    assert read == entry
    assert type(read) is control_type


def test_no_control_entry_type_is_missing_from_the_union() -> None:
    assert set(ControlEntry.__subclasses__()) == set(CONTROL_TYPES)


def test_a_control_entry_carries_the_version_of_this_build() -> None:
    assert ShardsSet(id="i", at=1, by="start", shards=8).schema == CONTROL_SCHEMA_VERSION == 1


def test_what_a_change_does_not_send_is_not_written() -> None:
    entry = AgentPut(id="i", at=1, by="api", tenant="default", agent_id="a", webhook_url="http://127.0.0.1/")
    payload = encode_control(entry)
    assert b"secret" not in payload
    assert b"require_v1" not in payload
    read = decode_control(payload)
    assert isinstance(read, AgentPut)
    assert (read.secret, read.next_secret, read.require_v1, read.max_concurrency) == (UNSET,) * 4


def test_what_a_change_sends_is_written_even_where_it_is_the_default() -> None:
    entry = AgentPut(
        id="i", at=1, by="api", tenant="default", agent_id="a", webhook_url="", require_v1=False, max_concurrency=64
    )
    payload = encode_control(entry)
    assert b'"require_v1":false,"max_concurrency":64' in payload


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"[]",
        b'{"type":"tenant_vanished","id":"i","at":1,"by":"api"}',
        b'{"type":"shards_set","id":"i","at":1,"by":"api"}',
        b'{"type":"shards_set","id":"i","at":1,"by":"api","shards":"8"}',
        b'{"type":"agent_deleted","id":"i","at":1,"by":"api","tenant":"t"}',
    ],
)
def test_what_is_not_a_control_entry_is_refused(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_control(payload)


def test_every_member_that_is_named_for_a_secret_is_sealed() -> None:
    found = {
        f"{struct.__name__}.{field.name}": field.type
        for module in MODULES
        for struct in vars(module).values()
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct)
        for field in _fields(struct)
        if SECRET_WORD.search(field.name)
    }
    assert set(found) == {"AgentPut.secret", "AgentPut.next_secret"}
    for member in found.values():
        assert isinstance(member, inspect.StructType)
        assert member.cls is SealedSecret


def _fields(struct: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    described = inspect.type_info(struct)
    assert isinstance(described, inspect.StructType)
    return described.fields
