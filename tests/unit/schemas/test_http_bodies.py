"""Bodies of HTTP answers: times with six decimals, optional members left out, null only where it is allowed."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import NoneType
from typing import get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from schemas import http
from schemas.bodies import Usage
from schemas.http import NULL, encode_http, rfc3339

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECONDS = st.integers(-2_000_000_000_000_000, 253_402_300_799_999_999)
CONTRACT = (Path(__file__).parents[3] / "docs/contract.md").read_text("utf-8")
_LISTED = CONTRACT.partition("Nullable fields are exactly: `")[2].partition("`")[0]
NULLABLE = set(re.findall(r"\w+", _LISTED.replace("usage (of a step)", "usage")))
LATER = {
    "session": "",
    "parent_execution_id": None,
    "forked_from": None,
    "fork_seq": 0,
    "spawned_by": None,
    "restoration": None,
    "on_behalf_of": "",
    "subject_groups": [],
}


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (999_999, "1970-01-01T00:00:00.999999Z"),
        (1_000_000, "1970-01-01T00:00:01.000000Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (-1_000_000, "1969-12-31T23:59:59.000000Z"),
        (-1_000_001, "1969-12-31T23:59:58.999999Z"),
        (1_760_000_000_000_007, "2025-10-09T08:53:20.000007Z"),
        (1_709_164_800_120_000, "2024-02-29T00:00:00.120000Z"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_a_time_is_rfc_3339_in_utc_with_six_decimals(at: int, text: str) -> None:
    assert rfc3339(at) == text


@given(MICROSECONDS)
def test_a_time_is_read_back_to_the_microsecond(at: int) -> None:
    assert datetime.fromisoformat(rfc3339(at)) == EPOCH + timedelta(microseconds=at)


@given(MICROSECONDS, MICROSECONDS)
def test_times_sort_as_texts(first: int, second: int) -> None:
    assert (rfc3339(first) < rfc3339(second)) == (first < second)


def execution(**more: object) -> http.Execution:
    whole: dict[str, object] = {
        "id": "e",
        "agent_id": "a",
        "created_by": "api",
        "input": Raw(b'{"n": 1.0}'),
        "status": "running",
        "output": NULL,
        "failure_reason": "",
        "usage": Usage(),
        "created_at": rfc3339(0),
        "updated_at": rfc3339(0),
    }
    return http.Execution(**(whole | more))  # type: ignore[arg-type]  # a test that names a wrong member fails here


def test_a_live_execution_has_no_end_and_every_member_of_a_later_stage() -> None:
    shown = json.loads(encode_http(execution()))
    assert not {"deadline_at", "completed_at", "idempotency_key"} & set(shown)
    assert {name: shown[name] for name in LATER} == LATER
    assert shown["usage"] == dict.fromkeys(Usage.__struct_fields__, 0)


def test_a_body_is_shown_as_it_was_sent() -> None:
    assert b'"input":{"n": 1.0},' in encode_http(execution())


def test_a_decision_shows_what_applies_and_an_empty_list_of_resources() -> None:
    assert encode_http(http.StepDecision(decision="execution_blocked")) == (
        b'{"decision":"execution_blocked","resources":[]}'
    )
    assert encode_http(http.StepDecision(decision="replay", step_id="s", result=NULL)) == (
        b'{"decision":"replay","step_id":"s","result":null,"resources":[]}'
    )


def test_the_fate_of_an_outcome_shows_what_applies() -> None:
    assert encode_http(http.OutcomeDecision(decision="recorded")) == b'{"decision":"recorded"}'


def test_details_are_absent_or_an_object() -> None:
    assert encode_http(http.ErrorEnvelope(code="c", message="m")) == b'{"code":"c","message":"m"}'
    assert encode_http(http.ErrorEnvelope(code="c", message="m", details={"path": "args"})) == (
        b'{"code":"c","message":"m","details":{"path":"args"}}'
    )


def test_the_last_page_names_no_next_one_and_an_empty_one_is_a_list() -> None:
    assert encode_http(http.ExecutionPage(executions=())) == b'{"executions":[]}'
    assert encode_http(http.ExecutionPage(executions=(Raw(b"{}"),), next_cursor="c")) == (
        b'{"executions":[{}],"next_cursor":"c"}'
    )


def test_only_members_that_the_contract_names_are_ever_null() -> None:
    structs = [each for each in vars(http).values() if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    found = {
        name
        for struct in structs
        for name, hint in get_type_hints(struct).items()
        if {Raw, NoneType} & {hint, *get_args(hint)}
    }
    # A page holds executions that were rendered before: objects, never null.
    assert found - {"executions"} <= NULLABLE
    assert {"input", "result", "usage", "forked_from"} <= found & NULLABLE
