"""Records: kept as they are, each under a field name that no other record has."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.events import EXECUTION_STATUSES, STEP_STATUSES, TERMINAL_EXECUTION, TERMINAL_STEP
from schemas.records import (
    HEADER_FIELD,
    CallCounter,
    CreateKeyRecord,
    Header,
    KeyRecord,
    StepRecord,
    counter_field,
    decode_counter,
    decode_create_key,
    decode_header,
    decode_key,
    decode_step,
    dispatch_field,
    encode_record,
    entry_field,
    event_field,
    key_field,
    order_field,
    step_field,
)
from tests.support.records import make_header, make_step
from tests.unit.schemas.strategies import values_of

DECODERS: dict[type[msgspec.Struct], Callable[[bytes], Any]] = {
    Header: decode_header,
    StepRecord: decode_step,
    CallCounter: decode_counter,
    KeyRecord: decode_key,
    CreateKeyRecord: decode_create_key,
}
NUMBERS = st.integers(0, 2**63)
NAMES = st.one_of(
    st.just(HEADER_FIELD),
    st.binary(min_size=32, max_size=32).map(lambda raw: step_field(raw.hex())),
    NUMBERS.map(order_field),
    st.binary(min_size=16, max_size=16).map(counter_field),
    st.binary(min_size=16, max_size=16).map(key_field),
    NUMBERS.map(event_field),
    st.uuids().map(lambda uuid: dispatch_field(str(uuid))),
    NUMBERS.map(entry_field),
)


@pytest.mark.parametrize("record_type", DECODERS, ids=lambda record_type: record_type.__name__)
@given(data=st.data())
def test_a_record_is_read_as_it_was_written(record_type: type[msgspec.Struct], data: st.DataObject) -> None:
    record = data.draw(values_of(record_type))
    assert DECODERS[record_type](encode_record(record)) == record


@pytest.mark.parametrize("record_type", DECODERS, ids=lambda record_type: record_type.__name__)
@pytest.mark.parametrize("raw", [b"", b"\xc1", msgspec.msgpack.encode([]), msgspec.msgpack.encode({"a": 1})])
def test_what_is_not_the_record_is_refused(record_type: type[msgspec.Struct], raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        DECODERS[record_type](raw)


@pytest.mark.parametrize("status", EXECUTION_STATUSES)
def test_an_execution_is_terminal_by_its_status(status: str) -> None:
    assert make_header(status=status).is_terminal == (status in TERMINAL_EXECUTION)


@pytest.mark.parametrize("status", STEP_STATUSES)
def test_a_step_is_terminal_by_its_status(status: str) -> None:
    assert make_step(status=status).is_terminal == (status in TERMINAL_STEP)


def test_the_first_byte_of_a_field_name_tells_the_kind() -> None:
    made = [
        HEADER_FIELD,
        step_field("ab" * 32),
        order_field(1),
        counter_field(b"x"),
        key_field(b"x"),
        event_field(1),
        dispatch_field("0199aaaa-0000-7000-8000-000000000002"),
        entry_field(1),
    ]
    assert [name[:1] for name in made] == [b"h", b"s", b"o", b"c", b"k", b"e", b"d", b"q"]


@given(NUMBERS, NUMBERS)
def test_numbered_fields_differ_with_their_number(first: int, second: int) -> None:
    for field in (order_field, event_field, entry_field):
        assert (field(first) == field(second)) == (first == second)


@given(st.lists(NAMES, max_size=30))
def test_field_names_say_what_they_were_made_of(names: list[bytes]) -> None:
    # A name of fixed length or of decimal digits behind its kind has one reading only.
    lengths = {b"h": 1, b"s": 33, b"c": 17, b"k": 17, b"d": 17}
    for name in names:
        kind = name[:1]
        if kind in lengths:
            assert len(name) == lengths[kind]
        else:
            assert name[1:] == b"%d" % int(name[1:])
