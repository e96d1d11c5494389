"""What others rely on has the bytes it always had. A failure here is a change of a format: see CONTRIBUTING.md."""

from typing import Any, get_args

import msgspec
import pytest

from kernel.domain.signatures import verify_body
from schemas.answers import AnyAnswer, DecisionWord, decode_answer
from schemas.control import AnyControlEntry, decode_control
from schemas.entries import AnyEntry, decode_entry, is_known_version
from schemas.events import EventType, decode_event
from schemas.records import (
    decode_approval,
    decode_bucket,
    decode_counter,
    decode_create_key,
    decode_header,
    decode_key,
    decode_step,
)
from tests.golden import samples
from tests.golden.entries import ENTRIES
from tests.golden.files import FOLDER, read_lines

RECORD_DECODERS = {
    "header": decode_header,
    "step": decode_step,
    "counter": decode_counter,
    "key": decode_key,
    "approval": decode_approval,
    "bucket": decode_bucket,
    "create_key": decode_create_key,
}


def pinned(file: str) -> dict[str, str]:
    return read_lines(FOLDER / file)


def tags(union: Any) -> set[str]:
    return {member.__struct_config__.tag for member in get_args(union)}


@pytest.mark.parametrize("file", samples.PINNED)
def test_every_sample_has_the_bytes_that_are_pinned(file: str) -> None:
    found, wanted = pinned(file), samples.PINNED[file]
    assert found, f"{file} is missing: python -m tests.golden.write"
    assert wanted == found


def test_no_golden_file_is_forgotten() -> None:
    assert {file.name for file in FOLDER.glob("*.txt")} == set(samples.PINNED)


def test_pinned_entries_are_read_as_what_they_were() -> None:
    for name, text in pinned("entries_v1.txt").items():
        assert is_known_version(text.encode()), name
        assert decode_entry(text.encode()) == ENTRIES[name], name


def test_pinned_control_entries_are_read_as_what_they_were() -> None:
    for name, text in pinned("control_v1.txt").items():
        assert decode_control(text.encode()) == samples.CONTROL[name], name


def test_pinned_answers_events_and_records_are_read_as_what_they_were() -> None:
    for name, answer in samples.ANSWERS.items():
        assert decode_answer(bytes.fromhex(pinned("answers_v1.txt")[name])) == answer, name
    for name, event in samples.EVENTS.items():
        assert decode_event(bytes.fromhex(pinned("events_v1.txt")[name])) == event, name
    for name, record in samples.RECORDS.items():
        assert RECORD_DECODERS[name](bytes.fromhex(pinned("records_v1.txt")[name])) == record, name


def test_every_entry_answer_and_event_is_pinned() -> None:
    assert {name.partition(".")[0] for name in pinned("entries_v1.txt")} == tags(AnyEntry)
    assert {name.partition(".")[0] for name in pinned("control_v1.txt")} == tags(AnyControlEntry)
    assert {name.partition(".")[0] for name in pinned("answers_v1.txt")} == tags(AnyAnswer) | {"batch"}
    assert {f"decided.{word}" for word in get_args(DecisionWord)} <= set(pinned("answers_v1.txt"))
    assert set(pinned("events_v1.txt")) == set(pinned("events_wire.txt")) == set(get_args(EventType))
    assert set(pinned("records_v1.txt")) == set(RECORD_DECODERS)


def test_every_member_of_every_entry_is_pinned_with_a_value_of_its_own() -> None:
    whole = {name: msgspec.json.decode(text) for name, text in pinned("entries_v1.txt").items() if "." not in name}
    system = {"dispatch_claimed", "dispatch_delivered", "dispatch_failed", "lease_expired"}
    system |= {"deadline_passed", "agent_missing", "approval_expired", "execution_released"}
    for entry_type in get_args(AnyEntry):
        name = entry_type.__struct_config__.tag
        absent = {member for member, value in whole[name].items() if value in (None, [], "")}
        assert absent == ({"expires"} if name in system else set()), name
        # A member that came later stands in a sample of its own: earlier builds wrote the entry without it.
        later = {
            member
            for sample, text in pinned("entries_v1.txt").items()
            if sample.startswith(f"{name}.")
            for member in msgspec.json.decode(text)
        }
        # Of what any entry may have, one sample is enough.
        later |= {"spilled"} & set(msgspec.json.decode(pinned("entries_v1.txt")["step_submitted.spilled"]))
        assert set(whole[name]) | later == {"type", *entry_type.__struct_fields__}, name


def test_the_pinned_signature_of_the_webhook_is_good() -> None:
    webhook = pinned("webhook.txt")
    assert verify_body([samples.SECRET], webhook["signature"], webhook["body"].encode())
