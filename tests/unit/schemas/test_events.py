"""Events: kept as they are, in the words of the contract; absent members of a payload are left out."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given

from schemas.events import (
    EXECUTION_STATUSES,
    STEP_STATUSES,
    TERMINAL_EXECUTION,
    TERMINAL_STEP,
    DispatchPayload,
    EventRecord,
    EventType,
    ExecutionStatus,
    StepStatus,
    WirePayload,
    decode_event,
    encode_event,
)
from tests.unit.schemas.strategies import values_of

QUEUED = EventRecord(
    type="dispatch.queued", at=1, payload=DispatchPayload(dispatch_id="d", status="pending", attempt=0)
)


@given(values_of(EventRecord))
def test_an_event_is_read_as_it_was_written(event: EventRecord) -> None:
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        encode_event(QUEUED).replace(b"dispatch.queued", b"dispatch.vanish"),
        encode_event(QUEUED).replace(b"pending", b"perhaps"),
        msgspec.msgpack.encode(["dispatch.queued", 1, ["weather", "fine"]]),
    ],
)
def test_what_is_not_an_event_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_event(raw)


def test_every_family_has_the_events_of_the_contract() -> None:
    families: dict[str, list[str]] = {}
    for event_type in get_args(EventType):
        family, _, verb = event_type.partition(".")
        families.setdefault(family, []).append(verb)
    assert families == {
        "execution": ["created", "started", "blocked", "resumed", "completed", "failed", "cancelled"],
        "step": ["proposed", "allowed", "awaiting_approval", "denied", "executing", "succeeded", "failed", "cancelled"],
        "approval": ["requested", "granted", "denied", "expired"],
        "dispatch": ["queued", "acked", "failed", "discarded"],
    }


def test_the_statuses_are_listed_whole_and_some_of_them_are_final() -> None:
    assert get_args(ExecutionStatus) == EXECUTION_STATUSES
    assert get_args(StepStatus) == STEP_STATUSES
    assert set(EXECUTION_STATUSES) - TERMINAL_EXECUTION == {"pending", "running", "blocked"}
    assert set(STEP_STATUSES) - TERMINAL_STEP == {"awaiting_approval", "allowed", "executing"}


def test_absent_members_of_a_payload_are_left_out_and_zeros_are_not() -> None:
    payload = WirePayload(dispatch_id="d", attempt=0, reason="")
    assert msgspec.json.encode(payload) == b'{"dispatch_id":"d","attempt":0,"reason":""}'
