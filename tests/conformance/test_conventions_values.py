"""K6, K7, K9, K115: values read back as they were sent, duplicates, empty collections and empty strings."""

import hashlib
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, details, exact, exact_member, null_members, path_of
from tests.conformance.harness.calls import json_bytes
from tests.conformance.harness.kernel import Kernel

RESULT = rb'{"b":1.0,"a":1e2,"n":123456789012345678901234567890,"z":"\u0000"}'
ODD = (
    RESULT,
    rb'{"":{"b":{},"a":[]},"b":[[],{}," "],"\u0000":-0,"\u00e9":1E0,"e\u0301":100e-2}',
    rb"[0,-0,-0.0,1,1.0,1.00,1e0,1E+0,9007199254740993,0.1e-307,4.9e-324,1e308,18446744073709551617]",
    rb'["\u0000\u0001\u001f\u007f\u0080\u2028\u2029\ufeff\ufffe\uffff\ud83d\ude42","/\/","<&>","\"\\\b\f\n\r\t"]',
    '{"é":"€ 🙂\u2028","e\u0301":"café cafe\u0301"}'.encode(),
    b'{ "spaced" : [ 1 , 2 ] ,\n\t"again": { } }',
    b'""',
    b"[]",
    b"{}",
    b"false",
    b"0",
    b"-0.0e-5",
    b"null",
)


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
async def test_k6_a_value_reads_back_as_it_was_sent(kernel: Kernel, value: bytes) -> None:
    agent = await kernel.agent()
    created = await kernel.post("/v0/executions", b'{"agent_id":"%s","input":%s}' % (agent.id.encode(), value))
    assert exact_member(created.content, "input") == exact(value)
    lease = await agent.lease(created.json()["id"])
    submitted = await lease.request("/steps", b'{"kind":"tool_call","target":"t","args":%s}' % value)
    step_id = accepted(submitted)["step_id"]
    accepted(await lease.request(f"/steps/{step_id}/complete", b'{"result":%s}' % value))
    repeated = await lease.request(f"/steps/{step_id}/complete", b'{"result":0}')
    accepted(await lease.request("/complete", b'{"output":%s}' % value), 204)

    target = f"/v0/executions/{lease.execution_id}"
    step = (await kernel.get(f"{target}/steps/{step_id}")).content
    steps = (await kernel.get(f"{target}/steps")).content
    execution = (await kernel.get(target)).content
    listed = (await kernel.get("/v0/executions", agent_id=agent.id)).content
    ended = (await kernel.get(f"{target}/events", after_seq=len(await kernel.events(lease.execution_id)) - 1)).content
    shown = [
        exact_member(repeated.content, "result"),
        exact_member(step, "args"),
        exact_member(step, "result"),
        exact_member(steps, 0, "args"),
        exact_member(steps, 0, "result"),
        exact_member(execution, "input"),
        exact_member(execution, "output"),
        exact_member(listed, "executions", 0, "input"),
        exact_member(listed, "executions", 0, "output"),
        exact_member(ended, 0, "payload", "output"),
    ]

    assert shown == [exact(value)] * len(shown)


async def test_k6_an_error_that_is_an_object_reads_back_as_it_was_sent(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()
    error = rb'{"z":1.0,"message":"\u0000 \ud83d\ude42","a":{"b":1e2,"a":-0},"n":123456789012345678901234567890}'
    step_id = await lease.proceed()
    accepted(await lease.request(f"/steps/{step_id}/fail", b'{"error":%s}' % error))

    step = (await kernel.get(f"/v0/executions/{lease.execution_id}/steps/{step_id}")).content
    events = (await kernel.get(f"/v0/executions/{lease.execution_id}/events", limit=1000)).content
    repeated = (await lease.fail(step_id, "another")).content

    assert exact_member(step, "error") == exact(error)
    assert exact_member(repeated, "error") == exact(error)
    assert exact(events)[-1][1][2] == ("type", "step.failed")
    assert exact_member(events, -1, "payload", "error") == exact(error)


@pytest.mark.parametrize(
    "target", ["\x00", "a\x00b", "", " ", "é 🙂", "e\u0301", "/../", "\u2028<&>", "x" * 1024, "é" * 512]
)
async def test_k6_a_target_is_taken_verbatim(kernel: Kernel, target: str) -> None:
    lease = await (await kernel.agent()).start()

    step_id = await lease.proceed(target)

    step = await kernel.step(lease.execution_id, step_id)
    assert step["target"] == target
    proposed = [event for event in await kernel.events(lease.execution_id) if event["type"] == "step.proposed"]
    assert [event["payload"]["target"] for event in proposed] == [target]


async def test_k6_the_texts_of_a_failure_are_taken_verbatim(kernel: Kernel) -> None:
    agent = await kernel.agent()
    for error in ("a\x00b", "", " \n", "é 🙂 e\u0301", "\ufeff"):
        lease = await agent.start()
        step_id = await lease.proceed()
        accepted(await lease.fail(step_id, error))
        accepted(await lease.fail_execution(error), 204)

        assert (await kernel.step(lease.execution_id, step_id))["error"] == {"message": error}
        assert (await kernel.execution(lease.execution_id))["failure_reason"] == error


def _args_hash(canonical: bytes) -> str:
    return hashlib.sha256(canonical).hexdigest()


async def test_k7_of_duplicate_members_the_last_value_is_hashed_recorded_and_shown(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()
    body = (
        rb'{"kind":"local","target":"first","kind":"tool_call","target":"last",'
        rb'"args":{"x":0},"args":{"x":1,"y":{"k":1,"k":2},"\u0078":3}}'
    )

    step_id = accepted(await lease.request("/steps", body))["step_id"]

    text = (await kernel.get(f"/v0/executions/{lease.execution_id}/steps/{step_id}")).content
    step = exact_member(text)
    assert exact_member(text, "args") == exact(b'{"x":3,"y":{"k":2}}')
    assert ("args_hash", _args_hash(b'{"x":3,"y":{"k":2}}')) in step[1]
    assert ("kind", "tool_call") in step[1]
    assert ("target", "last") in step[1]
    # The same call spelled once is the same call: it counts as its second use.
    again = accepted(await lease.submit("last", {"y": {"k": 2}, "x": 3}))["step_id"]
    assert (await kernel.step(lease.execution_id, again))["occurrence"] == 1


async def test_k7_of_duplicate_members_the_last_value_is_the_outcome_and_its_replay(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()
    step_id, failed = await lease.proceed("one"), await lease.proceed("two")
    result = rb'{"result":1,"result":{"a":1,"b":2,"\u0061":3,"c":[{"d":1,"d":2}]}}'
    error = rb'{"error":"x","error":{"message":"first","message":"last"}}'

    accepted(await lease.request(f"/steps/{step_id}/complete", result))
    accepted(await lease.request(f"/steps/{failed}/fail", error))

    expected = exact(b'{"a":3,"b":2,"c":[{"d":2}]}')
    replayed = await lease.request(f"/steps/{step_id}/complete", b"{}")
    step = await kernel.get(f"/v0/executions/{lease.execution_id}/steps/{step_id}")
    assert exact_member(replayed.content, "result") == expected
    assert exact_member(step.content, "result") == expected
    assert (await kernel.step(lease.execution_id, failed))["error"] == {"message": "last"}
    assert accepted(await lease.fail(failed, "again")) == {"decision": "replay", "error": {"message": "last"}}


async def _ended_run(kernel: Kernel) -> Lease:
    """A run with a step of every outcome, and a mark of every optional member left out."""
    lease = await (await kernel.agent()).start()
    await lease.done("null", result=None)
    accepted(await lease.fail(await lease.proceed("failing"), {"message": "m", "code": None}))
    await lease.proceed("left open", idempotency="at_most_once")
    accepted(await lease.complete_execution(), 204)
    return lease


async def test_k9_no_string_field_of_any_answer_is_null(kernel: Kernel) -> None:
    ended = await _ended_run(kernel)
    live = await ended.agent.start({"x": None})
    decision = await live.decide()

    answers: list[Any] = [decision, accepted(await live.complete(decision["step_id"]))]
    for lease in (ended, live):
        target = f"/v0/executions/{lease.execution_id}"
        for path in ("", "/events", "/steps", *(f"/steps/{step['step_id']}" for step in await _steps(lease))):
            answers.append(accepted(await kernel.get(f"{target}{path}")))
    answers.append(accepted(await kernel.get("/v0/executions", agent_id=ended.agent.id)))
    answers.append(accepted(await kernel.get("/v0/agents", cursor=ended.agent.id[:-1], limit=5)))
    answers.append(accepted(await kernel.get(f"/v0/agents/{ended.agent.id}")))
    answers.append((await kernel.get("/v0/nothing")).json())
    answers.append((await kernel.cancel(ended.execution_id)).json())

    assert [path for answer in answers for path in null_members(answer)] == []


async def test_k9_an_answer_has_exactly_the_members_of_the_contract(kernel: Kernel) -> None:
    lease = await _ended_run(kernel)

    execution = await kernel.execution(lease.execution_id)
    assert execution.keys() - {"idempotency_key"} == (
        {"id", "agent_id", "created_by", "input", "status", "output", "failure_reason", "usage", "created_at"}
        | {"updated_at", "completed_at"}
        | {"session", "parent_execution_id", "forked_from", "fork_seq", "spawned_by", "restoration"}
        | {"on_behalf_of", "subject_groups"}
    )
    assert execution["usage"] is not None
    assert execution["failure_reason"] == ""
    assert execution["created_by"] == "api"
    for step in await kernel.steps(lease.execution_id):
        assert step.keys() - {"started_at", "completed_at"} == (
            {"step_id", "execution_id", "kind", "target", "args_hash", "occurrence", "status", "idempotency", "args"}
            | {"result", "error", "usage", "rule_id", "policy_version"}
        )
    agent = accepted(await kernel.get(f"/v0/agents/{lease.agent.id}"))
    assert agent.keys() == (
        {"id", "webhook_url", "require_v1", "max_concurrency", "policy_version", "description", "input_schema"}
        | {"output_schema", "registered_at", "updated_at"}
    )
    for event in await kernel.events(lease.execution_id):
        assert event.keys() == {"execution_id", "event_seq", "type", "payload", "occurred_at"}


async def test_k9_an_empty_collection_is_an_empty_list(kernel: Kernel) -> None:
    agent = await kernel.agent()
    target = f"/v0/executions/{(await agent.create())['id']}"

    assert (await kernel.get(f"{target}/steps")).content == b"[]"
    assert (await kernel.get(f"{target}/steps", status="failed")).content == b"[]"
    assert (await kernel.get(f"{target}/events", after_seq=10**6)).content == b"[]"
    assert accepted(await kernel.get("/v0/executions", agent_id="nobody")) == {"executions": []}
    assert accepted(await kernel.get("/v0/executions", status="blocked", agent_id=agent.id)) == {"executions": []}
    assert (await kernel.get("/v0/agents", cursor="z" * 128)).content == b"[]"


async def _steps(lease: Lease) -> list[dict[str, Any]]:
    return await lease.kernel.steps(lease.execution_id)


QUERIES = {
    "/v0/executions": ("agent_id", "status", "created_after", "created_before", "cursor", "limit"),
    "/v0/executions/{execution_id}/events": ("after_seq", "limit", "wait"),
    "/v0/executions/{execution_id}/steps": ("status", "cursor", "limit"),
    "/v0/agents": ("cursor", "limit"),
}


@pytest.mark.parametrize("path", QUERIES)
async def test_k115_an_empty_query_value_answers_as_its_absence(kernel: Kernel, path: str) -> None:
    lease = await _ended_run(kernel)
    target = path.format(execution_id=lease.execution_id)
    # On the lists that everybody's tests share, a page that nobody else changes.
    fixed = {"agent_id": lease.agent.id} if path == "/v0/executions" else {}
    if path == "/v0/agents":
        fixed = {"cursor": lease.agent.id[:-1], "limit": "1"}
    expected = accepted(await kernel.get(target, **fixed))

    for name in QUERIES[path]:
        if name not in fixed:
            assert accepted(await kernel.get(target, **fixed, **{name: ""})) == expected, name
    everything = dict.fromkeys(QUERIES[path], "") | fixed
    assert accepted(await kernel.get(f"{target}?{urlencode(everything)}")) == expected


@pytest.mark.parametrize(
    "field", ["idempotency_key", "session", "concurrency_key", "parent_execution_id", "on_behalf_of"]
)
async def test_k115_an_empty_string_on_create_is_an_absent_one(kernel: Kernel, field: str) -> None:
    agent = await kernel.agent()
    empty: dict[str, Any] = {field: ""}

    first = await kernel.create(agent.id, 1, **empty)
    second = await kernel.create(agent.id, 2, **empty)
    plain = await agent.create(3)

    # A key of "" would have made the second one a repeat of the first, with another body.
    assert accepted(first, 201)["id"] != accepted(second, 201)["id"]
    assert "idempotent-replayed" not in second.headers
    assert accepted(first, 201).keys() == plain.keys()


async def test_k115_an_empty_required_string_is_not_absent(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()

    assert path_of(await lease.submit("t", kind="")) == "kind"
    assert (await lease.decide(""))["decision"] == "proceed"
    accepted(await lease.fail_execution(""), 204)
    assert (await kernel.execution(lease.execution_id))["failure_reason"] == ""


async def test_k115_an_empty_idempotency_is_safe_to_retry(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()

    with_empty, without = await lease.proceed(idempotency=""), await lease.proceed()

    for step_id in (with_empty, without):
        assert (await kernel.step(lease.execution_id, step_id))["idempotency"] == "safe_to_retry"


async def test_k115_an_empty_secret_at_registration_is_an_absent_one(kernel: Kernel) -> None:
    agent = await kernel.agent()
    update = {"id": agent.id, "webhook_url": agent.endpoint.url}

    accepted(await kernel.post("/v0/agents", update | {"secret": "", "next_secret": ""}))
    accepted(await (await agent.start()).heartbeat(), 204)
    accepted(await kernel.post("/v0/agents", update | {"secret": agent.secret, "next_secret": ""}))
    accepted(await (await agent.start()).heartbeat(), 204)

    for missing in ({}, {"secret": ""}):
        body = {"id": f"{agent.id}-new", "webhook_url": agent.endpoint.url} | missing
        details(await kernel.post("/v0/agents", json_bytes(body)), 400, "validation_error")
