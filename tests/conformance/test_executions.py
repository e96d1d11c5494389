"""K26 to K28: creating an execution, once however often it is asked for."""

import asyncio
import re
from typing import Any

import pytest

from tests.conformance.harness.answers import accepted, details, envelope, path_of
from tests.conformance.harness.calls import KEY, REPLAYED
from tests.conformance.harness.kernel import Kernel


async def _count(kernel: Kernel, agent_id: str) -> int:
    return len(accepted(await kernel.get("/v0/executions", agent_id=agent_id, limit=200))["executions"])


async def test_k26_a_created_execution_is_running_and_its_first_events_say_how(kernel: Kernel) -> None:
    agent = await kernel.agent()

    execution = await agent.create({"topic": "rivers"})

    assert execution["status"] == "running"
    assert execution["agent_id"] == agent.id
    assert execution["input"] == {"topic": "rivers"}
    assert execution["output"] is None
    assert execution["created_by"] == "api"
    assert {"completed_at", "deadline_at"}.isdisjoint(execution)
    events = await kernel.events(execution["id"])
    assert [(event["event_seq"], event["type"]) for event in events[:3]] == [
        (1, "execution.created"),
        (2, "execution.started"),
        (3, "dispatch.queued"),
    ]
    created, started, queued = (event["payload"] for event in events[:3])
    assert created == {"execution_id": execution["id"], "status": "pending"}
    assert started == {"execution_id": execution["id"], "status": "running"}
    assert queued.keys() == {"dispatch_id", "execution_id", "status", "attempt"}
    assert (queued["status"], queued["attempt"]) == ("pending", 0)
    assert {event["execution_id"] for event in events} == {execution["id"]}
    delivery = await agent.delivery(execution["id"])
    assert delivery.dispatch_id == queued["dispatch_id"]


async def test_k26_times_are_rfc_3339_in_utc_with_microseconds(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()
    step_id = await lease.done()
    accepted(await lease.complete_execution(), 204)
    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"

    execution = await kernel.execution(lease.execution_id)
    step = await kernel.step(lease.execution_id, step_id)
    agent = accepted(await kernel.get(f"/v0/agents/{lease.agent.id}"))
    events = await kernel.events(lease.execution_id)

    times = [execution[name] for name in ("created_at", "updated_at", "completed_at")]
    times += [step[name] for name in ("started_at", "completed_at")]
    times += [agent[name] for name in ("registered_at", "updated_at")]
    times += [event["occurred_at"] for event in events]
    assert [time for time in times if not re.fullmatch(pattern, time)] == []
    assert [event["occurred_at"] for event in events] == sorted(event["occurred_at"] for event in events)


async def test_k27_an_execution_without_input_has_a_null_one(kernel: Kernel) -> None:
    agent = await kernel.agent()

    for execution in (await agent.create(), await agent.create(None)):
        assert execution["input"] is None
        assert (await kernel.execution(execution["id"]))["input"] is None


@pytest.mark.parametrize("agent_id", ["", "nobody-of-this-name", "a b", "é", "x" * 129, "\x00"])
async def test_k27_an_unknown_or_empty_agent_is_404(kernel: Kernel, agent_id: str) -> None:
    response = await kernel.create(agent_id)

    assert envelope(response, 404, "not_found")["message"] == "agent not found"


@pytest.mark.parametrize("body", [{}, {"input": 1}, {"agent_id": 7}, {"agent_id": None}, {"agent_id": ["a"]}])
async def test_k27_an_agent_that_is_not_named_is_400(kernel: Kernel, body: Any) -> None:
    assert path_of(await kernel.post("/v0/executions", body)) == "agent_id"


@pytest.mark.parametrize("way", ["header", "field", "both"])
async def test_k28_a_repeat_with_the_key_is_the_same_execution(kernel: Kernel, way: str) -> None:
    agent = await kernel.agent()
    key = f"key-of-{agent.id}"

    async def create(given: Any) -> Any:
        headers = {KEY: key} if way != "field" else None
        more = {"idempotency_key": key} if way != "header" else {}
        return await kernel.create(agent.id, given, headers=headers, **more)

    first = await create({"a": 1, "b": 2})
    repeated = await create({"b": 2, "a": 1})
    another = await create({"a": 1, "b": 3})

    assert REPLAYED not in first.headers
    assert repeated.headers[REPLAYED] == "true"
    assert accepted(repeated, 201)["id"] == accepted(first, 201)["id"]
    envelope(another, 409, "conflict")
    assert await _count(kernel, agent.id) == 1
    echoed = (await kernel.execution(first.json()["id"])).get("idempotency_key", "")
    assert echoed == ("" if way == "header" else key)


async def test_k28_the_header_and_the_field_are_one_key(kernel: Kernel) -> None:
    agent = await kernel.agent()

    first = await kernel.create(agent.id, 1, headers={KEY: f"key-of-{agent.id}"})
    repeated = await kernel.create(agent.id, 1, idempotency_key=f"key-of-{agent.id}")
    differing = await kernel.create(
        agent.id, 1, headers={KEY: f"key-of-{agent.id}"}, idempotency_key=f"other-key-of-{agent.id}"
    )

    assert accepted(repeated, 201)["id"] == accepted(first, 201)["id"]
    assert path_of(differing) is not None
    assert await _count(kernel, agent.id) == 1


async def test_k28_a_repeat_shows_the_execution_as_it_stands_now(kernel: Kernel) -> None:
    agent = await kernel.agent()
    created = await kernel.create(agent.id, headers={KEY: f"key-of-{agent.id}"})
    lease = await agent.lease(created.json()["id"])
    accepted(await lease.complete_execution({"done": True}), 204)
    before = await kernel.events(lease.execution_id)

    repeated = await kernel.create(agent.id, headers={KEY: f"key-of-{agent.id}"})

    assert repeated.headers[REPLAYED] == "true"
    assert accepted(repeated, 201) == await kernel.execution(lease.execution_id)
    assert repeated.json()["status"] == "completed"
    assert await kernel.events(lease.execution_id) == before
    assert len(agent.endpoint.deliveries) == 1


async def test_k28_ten_at_once_make_one_execution(kernel: Kernel) -> None:
    agent = await kernel.agent()

    responses = await asyncio.gather(
        *(kernel.create(agent.id, 1, headers={KEY: f"key-of-{agent.id}"}) for _ in range(5)),
        *(kernel.create(agent.id, 1, idempotency_key=f"key-of-{agent.id}") for _ in range(5)),
    )

    assert len({accepted(response, 201)["id"] for response in responses}) == 1
    assert sum(REPLAYED not in response.headers for response in responses) == 1
    assert await _count(kernel, agent.id) == 1


async def test_k28_ten_at_once_without_a_key_make_ten(kernel: Kernel) -> None:
    agent = await kernel.agent()

    responses = await asyncio.gather(*(kernel.create(agent.id, 1) for _ in range(10)))

    assert len({accepted(response, 201)["id"] for response in responses}) == 10


async def test_k28_a_refused_create_binds_no_key(kernel: Kernel) -> None:
    agent = await kernel.agent()

    envelope(await kernel.create("nobody-of-this-name", headers={KEY: f"key-of-{agent.id}"}), 404)
    created = await kernel.create(agent.id, headers={KEY: f"key-of-{agent.id}"})

    assert accepted(created, 201)["status"] == "running"
    assert REPLAYED not in created.headers


@pytest.mark.parametrize("key", ["🙂" * 255, "\x00\n\t é", "x" * 255, " ", "e\u0301"])
async def test_k28_the_field_may_be_any_255_characters(kernel: Kernel, key: str) -> None:
    agent = await kernel.agent()
    key = f"{agent.id}{key}"[-255:] if len(key) < 255 else key[: 255 - len(agent.id)] + agent.id

    first = await kernel.create(agent.id, 1, idempotency_key=key)
    repeated = await kernel.create(agent.id, 1, idempotency_key=key)

    assert accepted(first, 201)["idempotency_key"] == key
    assert accepted(repeated, 201)["id"] == first.json()["id"]
    assert (await kernel.execution(first.json()["id"]))["idempotency_key"] == key


async def test_k28_a_key_that_is_too_long_or_not_visible_ascii_is_400(kernel: Kernel) -> None:
    agent = await kernel.agent()
    longest = f"{agent.id}{'~' * 255}"[:255]

    accepted(await kernel.create(agent.id, headers={KEY: longest}), 201)
    for header in (longest + "~", "a b", "a\tb"):
        details(await kernel.create(agent.id, headers={KEY: header}), 400, "validation_error")
    assert path_of(await kernel.create(agent.id, idempotency_key="🙂" * 256)) == "idempotency_key"
    for wrong in (7, ["k"], {}, True):
        assert path_of(await kernel.create(agent.id, idempotency_key=wrong)) == "idempotency_key"
    assert await _count(kernel, agent.id) == 1
