"""Create, list, get, cancel and end executions through the door, on NATS and Valkey."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from nats.aio.client import Client
from redis.asyncio import Redis

from kernel.domain.identity import shard_of, shard_of_create_key
from tests.support.door import Rig, rig_on_servers

UNKNOWN_ID = "0199aaaa-0000-7000-8000-0000000000ff"


@pytest_asyncio.fixture
async def rig(nats_url: str, redis_url: str, fresh_nats: Client, fresh_redis: Redis) -> AsyncIterator[Rig]:
    async with rig_on_servers(nats_url, redis_url) as rig:
        await rig.register()
        yield rig


# ---------------------------------------------------------------- create


async def test_a_created_execution_runs_at_once(rig: Rig) -> None:
    response = await rig.call("POST", "/v0/executions", json={"agent_id": "agent", "input": {"b": 1, "a": [1.0]}})
    assert response.status_code == 201
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    found = response.json()
    assert (found["status"], found["created_by"], found["agent_id"]) == ("running", "api", "agent")
    assert b'"input":{"b":1,"a":[1.0]}' in response.content
    assert "deadline_at" not in found
    events = await rig.events(found["id"])
    assert [event["type"] for event in events] == ["execution.created", "execution.started", "dispatch.queued"]
    assert [event["event_seq"] for event in events] == [1, 2, 3]
    assert events[2]["payload"]["attempt"] == 0


async def test_a_configured_deadline_is_shown_and_never_passes_the_maximum_life(
    nats_url: str, redis_url: str, fresh_nats: Client, fresh_redis: Redis
) -> None:
    async with rig_on_servers(nats_url, redis_url, deadline_seconds=500.0, life_seconds=100.0) as rig:
        await rig.register()
        created = (await rig.call("POST", "/v0/executions", json={"agent_id": "agent"})).json()
        header = await rig.header(created["id"])
        assert header.deadline_at == header.life_ends_at == header.created_at + 100_000_000
        first = (await rig.events(created["id"]))[0]
        assert created["deadline_at"] == first["payload"]["deadline_at"]


async def test_an_absent_input_is_null(rig: Rig) -> None:
    response = await rig.call("POST", "/v0/executions", json={"agent_id": "agent"})
    assert response.json()["input"] is None


@pytest.mark.parametrize("agent_id", ["", "nobody", "é", "a b", "a" * 500])
async def test_an_unknown_agent_is_not_found(rig: Rig, agent_id: str) -> None:
    response = await rig.call("POST", "/v0/executions", json={"agent_id": agent_id})
    assert (response.status_code, response.json()) == (404, {"code": "not_found", "message": "agent not found"})


@pytest.mark.parametrize("body", [{}, {"agent_id": None}, {"agent_id": 1}, {"agent_id": ["agent"]}])
async def test_an_agent_id_that_is_missing_or_no_string_is_invalid(rig: Rig, body: Any) -> None:
    response = await rig.call("POST", "/v0/executions", json=body)
    assert (response.status_code, response.json()["details"]) == (400, {"path": "agent_id"})


async def test_one_key_and_body_is_one_execution_wherever_the_key_stands(rig: Rig) -> None:
    # Given
    first = await rig.call(
        "POST", "/v0/executions", json={"agent_id": "agent", "input": 1}, headers={"idempotency-key": "k"}
    )
    # When
    again = await rig.call(
        "POST", "/v0/executions", content=b'{"input": 1, "agent_id": "agent", "idempotency_key": "k"}'
    )
    # Then
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    # Only what the body says is echoed, and this execution was made with the header.
    assert again.json()["idempotency_key"] == ""
    other = await rig.call("POST", "/v0/executions", json={"agent_id": "agent", "input": 2, "idempotency_key": "k"})
    assert (other.status_code, other.json()["code"]) == (409, "conflict")


async def test_a_repeated_create_answers_the_execution_as_it_stands_now(rig: Rig) -> None:
    body = {"agent_id": "agent", "idempotency_key": "k"}
    created = (await rig.call("POST", "/v0/executions", json=body)).json()
    assert created["idempotency_key"] == "k"
    await rig.call("POST", f"/v0/executions/{created['id']}/cancel")
    again = await rig.call("POST", "/v0/executions", json=body)
    assert (again.status_code, again.json()["status"]) == (201, "cancelled")


async def test_ten_creates_with_one_key_at_once_make_one_execution(rig: Rig) -> None:
    body = {"agent_id": "agent", "idempotency_key": "ключ 🙂"}
    responses = await asyncio.gather(*(rig.call("POST", "/v0/executions", json=body) for _ in range(10)))
    assert {response.status_code for response in responses} == {201}
    assert len({response.json()["id"] for response in responses}) == 1
    assert sum("idempotent-replayed" not in response.headers for response in responses) == 1
    listed = (await rig.call("GET", "/v0/executions")).json()
    assert len(listed["executions"]) == 1


async def test_a_keyed_create_lies_in_the_shard_of_its_key(rig: Rig) -> None:
    for number in range(8):
        created = await rig.create(idempotency_key=f"k{number}")
        shards = rig.settings.shards
        assert shard_of(created, shards) == shard_of_create_key("default", f"k{number}", shards)


async def test_creates_without_a_key_are_never_taken_for_one_another(rig: Rig) -> None:
    assert await rig.create(input=1) != await rig.create(input=1)


@pytest.mark.parametrize("header", [{"idempotency-key": "j"}, {"idempotency-key": ""}, {"idempotency-key": "a b"}])
async def test_a_key_that_differs_or_is_malformed_is_invalid(rig: Rig, header: dict[str, str]) -> None:
    body = {"agent_id": "agent", "idempotency_key": "k"}
    response = await rig.call("POST", "/v0/executions", json=body, headers=header)
    assert response.status_code == 400


async def test_members_of_a_later_stage_are_refused_by_name_and_empty_ones_accepted(rig: Rig) -> None:
    for name in ("session", "concurrency_key", "parent_execution_id", "spawned_by"):
        response = await rig.call("POST", "/v0/executions", json={"agent_id": "agent", name: "x"})
        assert (response.status_code, response.json()["details"]) == (400, {"path": name})
    empty = {"session": "", "concurrency_key": "", "parent_execution_id": None, "spawned_by": None, "other": {"x": 1}}
    await rig.create(**empty)


# ---------------------------------------------------------------- get, cancel, end


@pytest.mark.parametrize("part", ["", "/events", "/steps", f"/steps/{'ab' * 32}"])
async def test_an_unknown_execution_is_not_found_and_a_malformed_id_is_invalid(rig: Rig, part: str) -> None:
    unknown = await rig.call("GET", f"/v0/executions/{UNKNOWN_ID}{part}")
    assert unknown.status_code == 404
    assert unknown.content == b'{"code":"not_found","message":"execution not found"}'
    malformed = await rig.call("GET", f"/v0/executions/{UNKNOWN_ID[:-1]}{part}")
    assert malformed.status_code == 400


async def test_an_id_in_upper_case_is_the_same_id(rig: Rig) -> None:
    execution_id = await rig.create()
    response = await rig.call("GET", f"/v0/executions/{execution_id.upper()}")
    assert response.json()["id"] == execution_id


async def test_cancel_closes_the_open_steps_and_answers_once(rig: Rig) -> None:
    run = await rig.started()
    step_id = await run.proceed()
    cancelled = await rig.call("POST", f"{run.path}/cancel")
    assert (cancelled.status_code, cancelled.content) == (204, b"")
    assert "content-type" not in cancelled.headers
    assert (await rig.event_types(run.execution_id))[-2:] == ["execution.cancelled", "step.cancelled"]
    step = (await rig.call("GET", f"{run.path}/steps/{step_id}")).json()
    assert (step["status"], step["error"]) == ("cancelled", {"reason": "execution_cancelled"})
    assert step["completed_at"]
    execution = (await rig.call("GET", run.path)).json()
    assert (execution["status"], execution["failure_reason"]) == ("cancelled", "client_cancelled")
    again = await rig.call("POST", f"{run.path}/cancel", content=b"{}")
    assert (again.status_code, again.json()["code"]) == (409, "execution_terminal")
    assert again.json()["details"] == {"status": "cancelled"}


async def test_an_agent_ends_its_execution_with_any_output(rig: Rig) -> None:
    run = await rig.started()
    assert (
        await run.send("POST", f"{run.path}/complete", b'{"output":{"z":1e2,"a":null},"state":7}')
    ).status_code == 204
    response = await rig.call("GET", run.path)
    assert b'"output":{"z":1e2,"a":null}' in response.content
    assert response.json()["status"] == "completed"
    late = await run.fail("late")
    assert (late.status_code, late.json()["details"]) == (409, {"status": "completed"})


async def test_the_text_of_a_failure_is_kept_verbatim(rig: Rig) -> None:
    run = await rig.started()
    text = 'agent_error: "\\\n\u0000 é 🙂 </script>'
    assert (await run.fail(1)).status_code == 400
    assert (await run.fail(text)).status_code == 204
    execution = (await rig.call("GET", run.path)).json()
    assert (execution["status"], execution["failure_reason"]) == ("failed", text)
    assert (await rig.events(run.execution_id))[-1]["payload"]["reason"] == text


async def test_an_end_repeated_with_its_key_is_answered_again(rig: Rig) -> None:
    run = await rig.started()
    key = {"idempotency-key": "end"}
    assert (await run.complete(1, headers=key)).status_code == 204
    again = await run.complete(1, headers=key)
    assert (again.status_code, again.headers["idempotent-replayed"]) == (204, "true")
    assert (await run.complete(2, headers=key)).json()["code"] == "conflict"


async def test_an_execution_may_be_completed_without_a_body(rig: Rig) -> None:
    run = await rig.started()
    assert (await run.send("POST", f"{run.path}/complete")).status_code == 204
    assert (await rig.call("GET", run.path)).json()["output"] is None


# ---------------------------------------------------------------- list


async def pages(rig: Rig, query: str) -> list[str]:
    """Return the ids of all pages."""
    found: list[str] = []
    cursor = ""
    while True:
        page = (await rig.call("GET", f"/v0/executions?{query}&cursor={cursor}")).json()
        found += [execution["id"] for execution in page["executions"]]
        if "next_cursor" not in page:
            return found
        cursor = page["next_cursor"]
        assert cursor == found[-1]


async def test_a_list_merges_the_shards_newest_first(rig: Rig) -> None:
    created = [await rig.create(input=number) for number in range(7)]
    newest_first = sorted(created, reverse=True)
    for limit in (1, 2, 3, 6, 7, 8):
        assert await pages(rig, f"limit={limit}") == newest_first
    page = (await rig.call("GET", "/v0/executions?limit=7")).json()
    assert "next_cursor" not in page


async def test_a_list_while_others_create_has_no_gap_and_no_repeat(rig: Rig) -> None:
    created = [await rig.create() for _ in range(6)]
    first = (await rig.call("GET", "/v0/executions?limit=3")).json()
    await rig.create()
    rest = await pages(rig, f"limit=2&x={first['next_cursor']}")
    second = (await rig.call("GET", f"/v0/executions?limit=200&cursor={first['next_cursor']}")).json()
    seen = [execution["id"] for page in (first, second) for execution in page["executions"]]
    assert seen == sorted(created, reverse=True)
    assert len(rest) == 7


async def test_filters_hold_alone_and_together(rig: Rig) -> None:
    await rig.register("other")
    first = (await rig.call("POST", "/v0/executions", json={"agent_id": "agent"})).json()
    second = (await rig.call("POST", "/v0/executions", json={"agent_id": "other"})).json()
    third = (await rig.call("POST", "/v0/executions", json={"agent_id": "agent"})).json()
    await rig.call("POST", f"/v0/executions/{first['id']}/cancel")
    ids = [first["id"], second["id"], third["id"]]

    async def listed(query: str) -> set[int]:
        page = (await rig.call("GET", f"/v0/executions?{query}")).json()
        return {ids.index(execution["id"]) for execution in page["executions"]}

    assert await listed("agent_id=agent") == {0, 2}
    assert await listed("agent_id=nobody") == await listed("agent_id=%22%7B%20") == set()
    assert await listed("agent_id=&status=") == {0, 1, 2}
    assert await listed("status=cancelled") == {0}
    assert await listed("status=running&agent_id=agent") == {2}
    assert await listed(f"created_after={second['created_at']}") == {1, 2}
    assert await listed(f"created_before={second['created_at']}") == {0}
    assert await listed(f"created_after={first['created_at']}&created_before={third['created_at']}") == {0, 1}
    assert await listed("created_before=1969-01-01T00:00:00Z") == set()
    assert await listed("created_after=1969-01-01T00:00:00Z") == {0, 1, 2}


@pytest.mark.parametrize(
    "query",
    ["status=ended", "limit=0", "limit=x", "cursor=x", "created_after=now", "created_before=1", "agent_id=%ff"],
)
async def test_a_malformed_query_is_invalid(rig: Rig, query: str) -> None:
    response = await rig.call("GET", f"/v0/executions?{query}")
    assert (response.status_code, response.json()["code"]) == (400, "validation_error")


async def test_an_empty_list_is_empty(rig: Rig) -> None:
    assert (await rig.call("GET", "/v0/executions?limit=")).json() == {"executions": []}


# ---------------------------------------------------------------- events


async def test_events_are_paged_by_their_numbers(rig: Rig) -> None:
    run = await rig.started()
    await run.proceed()
    everything = await rig.events(run.execution_id)
    assert [event["event_seq"] for event in everything] == list(range(1, len(everything) + 1))
    found: list[Any] = []
    after = "0"
    while after:
        response = await rig.call("GET", f"{run.path}/events?after_seq={after}&limit=2")
        found += response.json()
        after = response.headers.get("rebuno-next-cursor", "")
        assert not after or after == str(found[-1]["event_seq"])
    assert found == everything
    beyond = await rig.call("GET", f"{run.path}/events?after_seq=999999999999999999999")
    assert beyond.json() == []


@pytest.mark.parametrize("query", ["after_seq=-1", "after_seq=x", "limit=0", "wait=26", "wait=x", "wait=-1"])
async def test_a_malformed_event_query_is_invalid(rig: Rig, query: str) -> None:
    execution_id = await rig.create()
    assert (await rig.call("GET", f"/v0/executions/{execution_id}/events?{query}")).status_code == 400


async def test_a_waiting_reader_is_answered_as_soon_as_something_happens(rig: Rig) -> None:
    run = await rig.started()
    last = (await rig.events(run.execution_id))[-1]["event_seq"]
    waiting = asyncio.create_task(rig.call("GET", f"{run.path}/events?after_seq={last}&wait=20"))
    await asyncio.wait((waiting,), timeout=0.1)
    assert not waiting.done()
    await run.proceed()
    async with asyncio.timeout(5):
        events = (await waiting).json()
    assert events[0]["event_seq"] == last + 1


async def test_a_reader_whose_wait_is_over_gets_nothing(rig: Rig) -> None:
    execution_id = await rig.create()
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    response = await rig.call("GET", f"/v0/executions/{execution_id}/events?after_seq=3&wait=0.3")
    assert response.json() == []
    assert 0.25 <= loop.time() - started_at <= 5


async def test_nobody_waits_for_an_execution_that_has_ended(rig: Rig) -> None:
    execution_id = await rig.create()
    await rig.call("POST", f"/v0/executions/{execution_id}/cancel")
    last = (await rig.events(execution_id))[-1]["event_seq"]
    async with asyncio.timeout(5):
        response = await rig.call("GET", f"/v0/executions/{execution_id}/events?after_seq={last}&wait=25")
    assert response.json() == []


async def test_a_waiting_reader_is_answered_when_the_execution_ends(rig: Rig) -> None:
    run = await rig.started()
    await run.proceed()
    last = (await rig.events(run.execution_id))[-1]["event_seq"]
    waiting = asyncio.create_task(rig.call("GET", f"{run.path}/events?after_seq={last}&wait=20"))
    await asyncio.wait((waiting,), timeout=0.05)
    await rig.call("POST", f"{run.path}/cancel")
    async with asyncio.timeout(5):
        assert (await waiting).json()[0]["type"] == "execution.cancelled"
