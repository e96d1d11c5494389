"""Submissions and outcomes through the door: decisions, keys, settle, large bodies, lists of steps."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace
from nats.aio.client import Client
from redis.asyncio import Redis

from kernel.domain.canonical import args_hash
from kernel.domain.identity import step_id as identity
from schemas.bodies import INLINE_BYTES_MAX
from schemas.entries import Lease
from tests.support.door import Rig, rig_on_servers

UNKNOWN_STEP = "ab" * 32
OTHER_DISPATCH = "0199aaaa-0000-7000-8000-000000000001"
LARGE = "x" * (INLINE_BYTES_MAX + 1)


@pytest_asyncio.fixture
async def rig(nats_url: str, redis_url: str, fresh_nats: Client, fresh_redis: Redis) -> AsyncIterator[Rig]:
    async with rig_on_servers(nats_url, redis_url) as rig:
        await rig.register()
        yield rig


async def test_a_first_submit_proceeds_with_the_identity_of_its_call(rig: Rig) -> None:
    run = await rig.started()
    response = await run.submit("search", {"q": "hi"})
    expected = identity(run.execution_id, "tool_call", "search", args_hash(b'{"q":"hi"}'), 0)
    assert response.json() == {
        "decision": "proceed",
        "step_id": expected,
        "rule_id": "permissive",
        "resources": [],
    }


async def test_the_same_call_twice_is_two_steps_and_twenty_at_once_are_twenty(rig: Rig) -> None:
    run = await rig.started()
    first, second = await run.proceed(), await run.proceed()
    assert first != second
    responses = await asyncio.gather(*(run.submit("many", {}) for _ in range(20)))
    steps = (await rig.call("GET", f"{run.path}/steps")).json()
    ids = {response.json()["step_id"] for response in responses}
    assert ids == {step["step_id"] for step in steps if step["target"] == "many"}
    assert sorted(step["occurrence"] for step in steps if step["target"] == "many") == list(range(20))


async def test_member_order_and_spelling_make_no_other_step_and_literals_do(rig: Rig) -> None:
    run = await rig.started()
    hashes: list[str] = []
    for args in (b'{"a":1,"b":"\\u00e9"}', '{ "b": "é", "a": 1 }'.encode(), b'{"a":1.0,"b":"\\u00e9"}', b"null", b"{}"):
        body = b'{"kind":"tool_call","target":"t","args":' + args + b"}"
        response = await run.send("POST", f"{run.path}/steps", body)
        step = await rig.call("GET", f"{run.path}/steps/{response.json()['step_id']}")
        hashes.append(step.json()["args_hash"])
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 4
    absent = await run.send("POST", f"{run.path}/steps", {"kind": "tool_call", "target": "t"})
    step = (await rig.call("GET", f"{run.path}/steps/{absent.json()['step_id']}")).json()
    assert (step["args_hash"], step["occurrence"]) == (hashes[3], 1)


async def test_a_finished_step_replays_its_literals_in_the_next_attempt(rig: Rig) -> None:
    # Given
    run = await rig.started()
    step_id = await run.proceed(args={"q": 1})
    result = b'{"result":{"b":1.0,"a":1e2,"n":123456789012345678901234567890,"z":"\\u0000"}}'
    recorded = await run.send("POST", f"{run.path}/steps/{step_id}/complete", result)
    assert recorded.json() == {"decision": "recorded"}
    failed_id = await run.proceed("fails")
    await run.fail_step(failed_id, "boom")
    # When
    await rig.expire(run)
    run.lease = await rig.claim(run.execution_id)
    replayed = await run.submit(args={"q": 1})
    # Then
    expected = b'"result":{"b":1.0,"a":1e2,"n":123456789012345678901234567890,"z":"\\u0000"}'
    assert expected in replayed.content
    assert (replayed.json()["decision"], replayed.json()["step_id"]) == ("replay", step_id)
    assert (await run.submit("fails")).json()["error"] == {"message": "boom"}


async def test_a_null_result_replays_as_a_null_that_is_there(rig: Rig) -> None:
    run = await rig.started()
    step_id = await run.proceed()
    await run.send("POST", f"{run.path}/steps/{step_id}/complete")
    again = await run.complete_step(step_id, 1)
    assert again.json() == {"decision": "replay", "result": None}
    late = await run.fail_step(step_id, "late")
    assert late.json() == {"decision": "replay", "result": None}


async def test_large_bodies_are_fetched_from_their_entries(rig: Rig) -> None:
    run = await rig.started(input={"i": LARGE})
    step_id = await run.proceed(args={"a": LARGE})
    await run.complete_step(step_id, {"r": LARGE})
    failing = await run.proceed("fails", {})
    settled = await run.proceed("settled", {})
    await run.fail_step(failing, {"message": LARGE})
    await run.complete({"o": LARGE}, settle=[{"step_id": settled, "result": {"s": LARGE}}])
    execution = (await rig.call("GET", run.path)).json()
    assert (execution["input"], execution["output"]) == ({"i": LARGE}, {"o": LARGE})
    steps = {step["step_id"]: step for step in (await rig.call("GET", f"{run.path}/steps")).json()}
    assert steps[step_id]["args"] == {"a": LARGE}
    assert steps[step_id]["result"] == {"r": LARGE}
    assert steps[settled]["result"] == {"s": LARGE}
    assert steps[failing]["error"] == {"message": LARGE}
    events = await rig.events(run.execution_id)
    assert any(event["payload"].get("error") == {"message": LARGE} for event in events)
    assert any(event["payload"].get("output") == {"o": LARGE} for event in events)
    listed = (await rig.call("GET", "/v0/executions")).json()["executions"][0]
    assert listed["input"] == {"i": LARGE}


async def test_settled_outcomes_are_large_too_and_replay(rig: Rig) -> None:
    run = await rig.started()
    first, second = await run.proceed("first"), await run.proceed("second")
    settle = [{"step_id": first, "result": {"r": LARGE}}, {"step_id": second, "error": {"message": LARGE}}]
    response = await run.submit("third", settle=settle)
    assert response.json()["decision"] == "proceed"
    await rig.expire(run)
    run.lease = await rig.claim(run.execution_id)
    assert (await run.submit("first")).json()["result"] == {"r": LARGE}
    assert (await run.submit("second")).json()["error"] == {"message": LARGE}


async def test_settle_is_all_or_nothing(rig: Rig) -> None:
    run = await rig.started()
    step_id = await run.proceed()
    for unknown in (UNKNOWN_STEP, "no id", step_id.upper()):
        settle = [{"step_id": step_id, "result": 1}, {"step_id": unknown, "result": 1}]
        response = await run.submit("next", settle=settle)
        assert (response.status_code, response.content) == (404, b'{"code":"not_found","message":"step not found"}')
    assert (await rig.call("GET", f"{run.path}/steps/{step_id}")).json()["status"] == "executing"
    assert (await run.complete()).status_code == 204
    late = await run.submit("next", settle=[{"step_id": "no id", "result": 1}])
    assert late.json() == {"decision": "execution_terminal", "resources": []}


async def test_a_submit_repeated_with_its_key_is_the_same_step(rig: Rig) -> None:
    run = await rig.started()
    key = {"idempotency-key": "k1"}
    first = await run.submit(args={"a": 1, "b": 2}, headers=key)
    count = len(await rig.events(run.execution_id))
    again = await run.send(
        "POST", f"{run.path}/steps", b'{"args": {"b":2,"a":1}, "target": "t", "kind":"tool_call"}', headers=key
    )
    assert again.json() == first.json()
    assert (again.headers["idempotent-replayed"], "idempotent-replayed" in first.headers) == ("true", False)
    assert len(await rig.events(run.execution_id)) == count
    assert (await run.submit(args={"a": 2}, headers=key)).json()["code"] == "conflict"
    assert (await run.submit(args={"a": 1, "b": 2})).json()["step_id"] != first.json()["step_id"]


async def test_a_key_whose_step_has_ended_replays_the_outcome(rig: Rig) -> None:
    run = await rig.started()
    key = {"idempotency-key": "k1"}
    step_id = (await run.submit(headers=key)).json()["step_id"]
    done = await run.complete_step(step_id, {"r": 1}, headers={"idempotency-key": "k2"})
    assert done.json() == {"decision": "recorded"}
    again = await run.submit(headers=key)
    assert again.json() == {"decision": "replay", "step_id": step_id, "result": {"r": 1}, "resources": []}
    repeated = await run.complete_step(step_id, {"r": 1}, headers={"idempotency-key": "k2"})
    assert (repeated.json(), repeated.headers["idempotent-replayed"]) == ({"decision": "recorded"}, "true")


async def test_lease_headers_are_checked_by_spelling_always_and_by_value_while_it_lives(rig: Rig) -> None:
    run = await rig.started()
    step_id = await run.proceed()
    calls = {
        f"{run.path}/steps": {"kind": "local", "target": "t"},
        f"{run.path}/steps/{step_id}/complete": {"result": 1},
        f"{run.path}/steps/{step_id}/fail": {"error": "x"},
        f"{run.path}/heartbeat": None,
        f"{run.path}/complete": {"output": 1},
        f"{run.path}/fail": {"error": "x"},
    }
    events = await rig.events(run.execution_id)
    for target, body in calls.items():
        for lease in (Lease("", 1), Lease("x", 1), replace(run.lease, attempt=0), replace(run.lease, attempt=-1)):
            response = await run.send("POST", target, body, lease=lease)
            assert (response.status_code, response.json()["code"]) == (400, "validation_error"), (target, lease)
        unknown = await run.send("POST", target, body, lease=Lease(OTHER_DISPATCH, 1))
        assert unknown.json()["details"] == {"path": "Rebuno-Dispatch-Id"}
        for attempt in (2, 10**30):
            stale = await run.send("POST", target, body, lease=replace(run.lease, attempt=attempt))
            assert (stale.status_code, stale.json()["code"]) == (409, "lease_superseded"), (target, attempt)
    assert await rig.events(run.execution_id) == events


async def test_a_heartbeat_renews_and_ends_with_the_execution(rig: Rig) -> None:
    run = await rig.started()
    # The first one acknowledges the attempt through the log, the others are the view's alone.
    for _ in range(3):
        beat = await run.heartbeat()
        assert (beat.status_code, beat.content) == (204, b"")
    assert (await rig.event_types(run.execution_id)).count("dispatch.acked") == 1
    await rig.call("POST", f"{run.path}/cancel")
    late = await run.heartbeat()
    assert (late.status_code, late.json()["code"]) == (409, "lease_superseded")


async def test_outcomes_after_the_end_change_nothing(rig: Rig) -> None:
    run = await rig.started()
    step_id = await run.proceed()
    await rig.call("POST", f"{run.path}/cancel")
    assert (await run.complete_step(step_id, 1)).json() == {"decision": "execution_terminal"}
    assert (await run.submit()).json() == {"decision": "execution_terminal", "resources": []}
    assert (await rig.call("GET", f"{run.path}/steps/{step_id}")).json()["status"] == "cancelled"


@pytest.mark.parametrize("step_id", [UNKNOWN_STEP, "x", UNKNOWN_STEP.upper(), "%61" * 64, "a" * 65])
async def test_an_unknown_step_is_not_found_however_it_is_spelled(rig: Rig, step_id: str) -> None:
    run = await rig.started()
    for response in (
        await run.complete_step(step_id, 1),
        await run.fail_step(step_id, "x"),
        await rig.call("GET", f"{run.path}/steps/{step_id}"),
        await run.send("GET", f"{run.path}/steps/{step_id}"),
    ):
        assert (response.status_code, response.content) == (404, b'{"code":"not_found","message":"step not found"}')


async def test_a_step_under_another_execution_is_not_found(rig: Rig) -> None:
    run, other = await rig.started(), await rig.started()
    step_id = await run.proceed()
    for response in (
        await other.complete_step(step_id, 1),
        await other.fail_step(step_id, "x"),
        await rig.call("GET", f"{other.path}/steps/{step_id}"),
    ):
        assert (response.status_code, response.json()["message"]) == (404, "step not found")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"kind": "tool", "target": "t"}, "kind"),
        ({"kind": "", "target": "t"}, "kind"),
        ({"target": "t"}, "kind"),
        ({"kind": "local"}, "target"),
        ({"kind": "local", "target": 5}, "target"),
        ({"kind": "local", "target": "a" * 1025}, "target"),
        ({"kind": "local", "target": "t", "idempotency": "once"}, "idempotency"),
        ({"kind": "local", "target": "t", "settle": [{"step_id": "x"}]}, "settle[0]"),
    ],
)
async def test_a_malformed_submission_is_invalid_and_named(rig: Rig, body: Any, path: str) -> None:
    run = await rig.started()
    response = await run.send("POST", f"{run.path}/steps", body)
    assert (response.status_code, response.json()["details"]) == (400, {"path": path})


async def test_steps_are_listed_by_first_submission_filtered_and_paged(rig: Rig) -> None:
    run = await rig.started()
    ids = [await run.proceed(str(number)) for number in range(5)]
    await run.complete_step(ids[1], 1)
    await run.fail_step(ids[3], "x")

    async def listed(query: str) -> tuple[list[int], str | None]:
        response = await rig.call("GET", f"{run.path}/steps?{query}")
        assert response.status_code == 200, response.text
        found = [ids.index(step["step_id"]) for step in response.json()]
        return found, response.headers.get("rebuno-next-cursor")

    assert await listed("") == ([0, 1, 2, 3, 4], None)
    assert await listed("status=&limit=&cursor=") == ([0, 1, 2, 3, 4], None)
    assert await listed("status=terminal") == ([1, 3], None)
    assert await listed("status=succeeded") == ([1], None)
    assert await listed("status=executing") == ([0, 2, 4], None)
    assert await listed("status=denied") == ([], None)
    assert await listed("limit=5") == ([0, 1, 2, 3, 4], None)
    found: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        page, cursor = await listed(f"limit=2&cursor={cursor}")
        found += page
        assert len(page) <= 2
    assert found == [0, 1, 2, 3, 4]
    page, cursor = await listed("status=executing&limit=2")
    assert page == [0, 2]
    assert cursor is not None
    assert await listed(f"status=executing&limit=2&cursor={cursor}") == ([4], None)
    for query in ("status=done", "limit=0", "limit=x", "cursor=x", "cursor=-1"):
        assert (await rig.call("GET", f"{run.path}/steps?{query}")).status_code == 400, query


async def test_a_list_of_more_steps_than_one_read_is_whole(rig: Rig) -> None:
    run = await rig.started()
    responses = await asyncio.gather(*(run.submit(str(number)) for number in range(300)))
    assert {response.json()["decision"] for response in responses} == {"proceed"}
    steps = (await rig.call("GET", f"{run.path}/steps")).json()
    assert len({step["step_id"] for step in steps}) == 300
    last = (await rig.call("GET", f"{run.path}/steps?cursor=299")).json()
    assert [step["step_id"] for step in last] == [steps[299]["step_id"]]


async def test_an_entry_above_the_limit_of_the_log_is_too_large_and_leaves_no_trace(
    nats_url: str, redis_url: str, fresh_nats: Client, fresh_redis: Redis
) -> None:
    async with rig_on_servers(nats_url, redis_url, entry_bytes_max=20_000) as rig:
        await rig.register()
        run = await rig.started()
        step_id = await run.proceed()
        count = len(await rig.events(run.execution_id))
        # Well below the limit as it is sent; as the text of a message each `<` takes seven bytes.
        response = await run.fail_step(step_id, ["<" * 3000])
        assert (response.status_code, response.json()["code"]) == (413, "payload_too_large")
        assert len(await rig.events(run.execution_id)) == count
        assert (await run.fail_step(step_id, ["<" * 100])).json() == {"decision": "recorded"}
