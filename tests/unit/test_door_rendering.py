"""Records and answers as the wire shows them."""

from typing import Any

import msgspec
import pytest

from kernel.control.agents import Agent
from kernel.door.fetching import NO_TEXTS, Texts
from kernel.door.rendering import (
    agent_json,
    array_response,
    decision_response,
    event_json,
    execution_json,
    outcome_response,
    step_json,
)
from schemas.answers import Decided, Recorded
from schemas.bodies import Body, Usage, body_of
from schemas.entries import Lease, Limits
from schemas.events import DispatchPayload, EventRecord, ExecutionPayload, StepPayload
from schemas.records import Dispatch, Header, StepRecord

EXECUTION_ID = "0199aaaa-0000-7000-8000-0000000000ff"
DISPATCH_ID = "0199aaaa-0000-7000-8000-000000000001"
STEP = "ab" * 32
AT = 1_760_000_000_000_001
TIME = "2025-10-09T08:53:20.000001Z"


def inline(json: bytes) -> Body:
    return body_of(json, seq=1, place="x")


def header(**members: Any) -> Header:
    return Header(
        **{
            "execution_id": EXECUTION_ID,
            "tenant": "default",
            "agent_id": "a",
            "created_by": "api",
            "status": "running",
            "created_at": AT,
            "updated_at": AT,
            "life_ends_at": AT,
            "input": inline(b"null"),
            "limits": Limits(5, 1, 1, 1, 1, 1),
            "dispatch": Dispatch(DISPATCH_ID, "due", 0, 1, AT, 1),
            **members,
        }
    )


def step(**members: Any) -> StepRecord:
    return StepRecord(
        **{
            "step_id": STEP,
            "ordinal": 1,
            "kind": "tool_call",
            "target": "t",
            "args_hash": "cd" * 32,
            "occurrence": 0,
            "status": "executing",
            "idempotency": "safe_to_retry",
            "args": inline(b'{"b":1.0,"a":1e2}'),
            "rule_id": "permissive",
            "policy_version": 0,
            **members,
        }
    )


def decoded(raw: bytes) -> Any:
    return msgspec.json.decode(raw)


def test_a_fresh_execution_has_every_member_and_no_null_string() -> None:
    assert decoded(execution_json(header(), NO_TEXTS)) == {
        "id": EXECUTION_ID,
        "agent_id": "a",
        "created_by": "api",
        "input": None,
        "status": "running",
        "output": None,
        "failure_reason": "",
        "usage": dict.fromkeys(Usage.__struct_fields__, 0),
        "created_at": TIME,
        "updated_at": TIME,
        "idempotency_key": "",
        "session": "",
        "parent_execution_id": None,
        "forked_from": None,
        "fork_seq": 0,
        "spawned_by": None,
        "restoration": None,
        "on_behalf_of": "",
        "subject_groups": [],
    }


def test_an_ended_execution_tells_when_and_why() -> None:
    found = decoded(
        execution_json(
            header(status="failed", completed_at=AT, deadline_at=AT, failure_reason="boom", idempotency_key="k"),
            NO_TEXTS,
        )
    )
    assert (found["completed_at"], found["deadline_at"], found["failure_reason"]) == (TIME, TIME, "boom")
    assert found["idempotency_key"] == "k"


def test_bodies_are_the_bytes_of_the_record() -> None:
    raw = execution_json(header(input=inline(b'{"z":1.0,"a":1e2,"n":1234567890123456789012}')), NO_TEXTS)
    assert b'"input":{"z":1.0,"a":1e2,"n":1234567890123456789012}' in raw


def test_a_large_body_is_the_text_that_was_fetched_for_its_place() -> None:
    large = Body(json=b"", seq=7, place="args", size_bytes=9)
    raw = step_json(EXECUTION_ID, step(args=large), Texts({(7, "args"): b'"fetched"'}))
    assert decoded(raw)["args"] == "fetched"


def test_a_step_has_nulls_where_nothing_is_recorded() -> None:
    found = decoded(step_json(EXECUTION_ID, step(), NO_TEXTS))
    assert found == {
        "step_id": STEP,
        "execution_id": EXECUTION_ID,
        "kind": "tool_call",
        "target": "t",
        "args_hash": "cd" * 32,
        "occurrence": 0,
        "status": "executing",
        "idempotency": "safe_to_retry",
        "args": {"b": 1.0, "a": 100.0},
        "result": None,
        "error": None,
        "usage": None,
        "rule_id": "permissive",
        "policy_version": 0,
    }


def test_an_ended_step_tells_its_times_and_usage() -> None:
    found = decoded(
        step_json(EXECUTION_ID, step(usage=Usage(input_tokens=1), started_at=AT, completed_at=AT), NO_TEXTS)
    )
    assert (found["started_at"], found["completed_at"], found["usage"]["input_tokens"]) == (TIME, TIME, 1)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (
            Decided("proceed", STEP, rule_id="permissive"),
            {"decision": "proceed", "step_id": STEP, "rule_id": "permissive", "resources": []},
        ),
        (
            Decided("replay", STEP, result=inline(b"null")),
            {"decision": "replay", "step_id": STEP, "result": None, "resources": []},
        ),
        (
            Decided("replay", STEP, error=inline(b'{"message":"m"}')),
            {"decision": "replay", "step_id": STEP, "error": {"message": "m"}, "resources": []},
        ),
        (
            Decided("denied", STEP, reason="r", rule_id="x"),
            {"decision": "denied", "step_id": STEP, "reason": "r", "rule_id": "x", "resources": []},
        ),
        (
            Decided("blocked", STEP, approval_id=DISPATCH_ID),
            {"decision": "blocked", "step_id": STEP, "approval_id": DISPATCH_ID, "resources": []},
        ),
        (Decided("execution_terminal"), {"decision": "execution_terminal", "resources": []}),
    ],
)
def test_a_decision_has_the_members_that_apply_and_no_others(answer: Decided, body: dict[str, Any]) -> None:
    response = decision_response(answer, NO_TEXTS)
    assert (response.status, decoded(response.body), response.headers) == (200, body, ())


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (Recorded("recorded"), {"decision": "recorded"}),
        (Recorded("execution_terminal"), {"decision": "execution_terminal"}),
        (Recorded("replay", result=inline(b"null")), {"decision": "replay", "result": None}),
        (Recorded("replay", error=inline(b"{}")), {"decision": "replay", "error": {}}),
    ],
)
def test_the_fate_of_an_outcome_shows_what_was_recorded_before(answer: Recorded, body: dict[str, Any]) -> None:
    assert decoded(outcome_response(answer, NO_TEXTS).body) == body


def test_a_repeated_answer_says_so_in_its_header() -> None:
    replayed = ((b"idempotent-replayed", b"true"),)
    assert decision_response(Decided("proceed", STEP, is_replayed=True), NO_TEXTS).headers == replayed
    assert outcome_response(Recorded("recorded", is_replayed=True), NO_TEXTS).headers == replayed


@pytest.mark.parametrize(
    ("event", "payload"),
    [
        (
            EventRecord("execution.created", AT, ExecutionPayload("pending", deadline_at=AT)),
            {"execution_id": EXECUTION_ID, "status": "pending", "deadline_at": TIME},
        ),
        (
            EventRecord("execution.started", AT, ExecutionPayload("running")),
            {"execution_id": EXECUTION_ID, "status": "running"},
        ),
        (
            EventRecord("execution.completed", AT, ExecutionPayload("completed", output=inline(b"null"))),
            {"execution_id": EXECUTION_ID, "status": "completed", "output": None},
        ),
        (
            EventRecord("execution.failed", AT, ExecutionPayload("failed", reason="")),
            {"execution_id": EXECUTION_ID, "status": "failed", "reason": ""},
        ),
        (
            EventRecord("step.proposed", AT, StepPayload(STEP, "local", "")),
            {"step_id": STEP, "step_type": "local", "target": ""},
        ),
        (
            EventRecord("step.allowed", AT, StepPayload(STEP, "local", "t", rule_id="local", policy_version=0)),
            {"step_id": STEP, "step_type": "local", "target": "t", "rule_id": "local", "policy_version": 0},
        ),
        (
            EventRecord("step.failed", AT, StepPayload(STEP, "local", "t", error=inline(b'{"message":"m"}'))),
            {"step_id": STEP, "step_type": "local", "target": "t", "error": {"message": "m"}},
        ),
        (
            EventRecord("dispatch.queued", AT, DispatchPayload(DISPATCH_ID, "pending", 0)),
            {"execution_id": EXECUTION_ID, "dispatch_id": DISPATCH_ID, "status": "pending", "attempt": 0},
        ),
        (
            EventRecord("dispatch.failed", AT, DispatchPayload(DISPATCH_ID, "failed", 2, reason="http_500")),
            {
                "execution_id": EXECUTION_ID,
                "dispatch_id": DISPATCH_ID,
                "status": "failed",
                "attempt": 2,
                "reason": "http_500",
            },
        ),
    ],
)
def test_an_event_has_exactly_the_payload_of_its_family(event: EventRecord, payload: dict[str, Any]) -> None:
    assert decoded(event_json(EXECUTION_ID, 3, event, NO_TEXTS)) == {
        "execution_id": EXECUTION_ID,
        "event_seq": 3,
        "type": event.type,
        "payload": payload,
        "occurred_at": TIME,
    }


def test_an_agent_is_shown_without_its_secrets() -> None:
    raw = agent_json(
        Agent(tenant="default", agent_id="a", webhook_url="http://x/", secrets=(b"top-secret",), registered_at=AT)
    )
    assert b"top-secret" not in raw
    assert set(decoded(raw)) == {
        "id",
        "webhook_url",
        "require_v1",
        "max_concurrency",
        "policy_version",
        "description",
        "input_schema",
        "output_schema",
        "registered_at",
        "updated_at",
    }


def test_a_list_names_its_next_cursor_only_where_more_exists() -> None:
    assert array_response([], next_cursor="").body == b"[]"
    assert array_response([b"1", b"2"], next_cursor="").headers == ()
    assert array_response([b"1"], next_cursor="c").headers == ((b"rebuno-next-cursor", b"c"),)


def test_the_lease_of_a_header_is_never_shown() -> None:
    assert DISPATCH_ID.encode() not in execution_json(header(lease=Lease(DISPATCH_ID, 1)), NO_TEXTS)
