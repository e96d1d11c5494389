"""The door about itself, and what it refuses before any handler: unknown routes, methods, a door that closes."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from kernel.door.routes import ROUTES, Route
from kernel.log.limits import LogLimits
from kernel.ports import LogState
from tests.support.door import OPERATOR_KEY, MemoryRig, rig_in_memory
from tests.support.wait import loop_turns, wait_until_async

UNKNOWN_ID = "0199aaaa-0000-7000-8000-0000000000ff"


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[MemoryRig]:
    async with rig_in_memory() as rig:
        await rig.register()
        yield rig


async def test_health_and_readiness_need_no_credential(rig: MemoryRig) -> None:
    health = await rig.client.get("/v0/health")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    ready = await rig.client.get("/v0/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    assert ready.headers["content-type"] == "application/json; charset=utf-8"


async def test_the_document_and_its_page_are_open(rig: MemoryRig) -> None:
    document = await rig.client.get("/v0/openapi.json")
    assert document.json()["openapi"].startswith("3.1")
    page = await rig.client.get("/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")


@pytest.mark.parametrize("path", ["/", "/v0", "/v0/", "/v0/executions/", "/v0/health/", "/docs/", "/v0/nothing", "/x"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_an_unknown_route_is_not_found_with_any_method(rig: MemoryRig, path: str, method: str) -> None:
    response = await rig.client.request(method, path)
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert "location" not in response.headers


@pytest.mark.parametrize("route", [route for route in ROUTES if route.is_built], ids=lambda route: route.operation)
async def test_another_method_is_told_which_are_allowed(rig: MemoryRig, route: Route) -> None:
    path = re.sub(r"{\w+}", UNKNOWN_ID, route.path)
    response = await rig.client.request("PATCH", path)
    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")
    assert route.method in response.headers["allow"].split(", ")


@pytest.mark.parametrize("part", ["previous", "fork", "suspend", "resources"])
async def test_routes_to_come_are_not_found(rig: MemoryRig, part: str) -> None:
    run = await rig.started()
    for method in ("GET", "POST"):
        response = await run.send(method, f"{run.path}/{part}", b"{}" if method == "POST" else None)
        assert (response.status_code, response.json()["code"]) == (404, "not_found")


async def test_metrics_have_a_bounded_number_of_series() -> None:
    async with rig_in_memory(mode="dev", api_key="") as rig:
        await rig.register()
        await rig.create()
        before = (await rig.client.get("/metrics")).text.splitlines()
        for number in range(300):
            await rig.client.get(f"/v0/{number}")
            await rig.client.request(f"M{number}", f"/v0/executions/{number}")
        response = await rig.client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        after = response.text.splitlines()
        assert 'stepwell_requests_total{operation="create_execution",status="2xx"} 1' in after
        assert 'stepwell_requests_total{operation="unknown",status="4xx"} 600' in after
        assert len(after) <= len(before) + 4


# ---------------------------------------------------------------- readiness


async def test_a_door_is_not_ready_without_its_view_its_log_or_control(rig: MemoryRig) -> None:
    async def is_unready() -> bool:
        response = await rig.client.get("/v0/ready")
        return (response.status_code, response.json()) == (503, {"status": "unavailable"})

    async def is_ready() -> bool:
        return (await rig.client.get("/v0/ready")).status_code == 200

    rig.memory_view.is_unavailable = True
    await wait_until_async(is_unready, "the door to notice that the view is away")
    rig.memory_view.is_unavailable = False
    await wait_until_async(is_ready, "the door to be ready again")
    rig.memory_log.go_offline()
    assert await is_unready()
    rig.memory_log.come_back()
    await wait_until_async(is_ready, "the door to be ready again")


async def test_a_door_whose_clock_is_off_is_not_ready() -> None:
    async with rig_in_memory() as rig:
        await rig.register()
        state = rig.memory_log.state

        async def later(shard: int) -> LogState:
            found = await state(shard)
            return replace(found, broker_time=found.broker_time + 1_500_000)

        rig.memory_log.state = later
        await wait_until_async(lambda: not rig.door.is_ready(), "the door to notice its clock")
        ready = await rig.client.get("/v0/ready")
        assert ready.json()["status"] == "unavailable"
        assert "1.5 s from the clock of NATS" in ready.json()["reason"]
        last_seq = (await state(0)).last_seq + (await state(1)).last_seq
        async with asyncio.timeout(2):
            refused = await rig.call("POST", "/v0/executions", json={"agent_id": "agent"})
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert (await state(0)).last_seq + (await state(1)).last_seq == last_seq


async def test_a_door_whose_log_acknowledges_nothing_says_what_to_do_and_is_well_again_by_itself() -> None:
    limits = LogLimits(silence_of_acknowledgements_seconds=0.5, silence_probe_seconds=0.1)
    async with rig_in_memory(limits=limits, budget_seconds=2.0, shards=1, mode="dev", api_key="") as rig:
        await rig.register()
        rig.memory_log.fail_writes = True
        unknown = await rig.call("POST", "/v0/executions", json={"agent_id": "agent"})
        assert unknown.status_code == 504
        ready = await rig.client.get("/v0/ready")
        assert ready.status_code == 503
        assert "STEPWELL_0" in ready.json()["reason"]
        assert "restart it" in ready.json()["reason"]
        assert "stepwell_log_silent_shards 1" in (await rig.call("GET", "/metrics")).text
        async with asyncio.timeout(1):
            refused = await rig.call("POST", "/v0/executions", json={"agent_id": "agent"})
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")

        rig.memory_log.fail_writes = False
        await wait_until_async(rig.door.is_ready, "the door to be ready without anybody asking")
        assert (await rig.call("GET", "/v0/executions")).json()["executions"] == []
        await rig.create()
        # What it found out by is one entry, and nothing to anybody.
        assert (await rig.memory_log.state(0)).last_seq == 2
        assert len((await rig.call("GET", "/v0/executions")).json()["executions"]) == 1


async def test_without_a_projector_a_read_waits_and_then_says_why() -> None:
    async with rig_in_memory(projects=False, budget_seconds=0.5) as rig:
        response = await rig.call("GET", f"/v0/executions/{UNKNOWN_ID}")
        assert (response.status_code, response.json()["details"]) == (503, {"reason": "rebuilding"})
        assert response.headers["retry-after"] == "1"


async def test_a_credential_and_a_malformed_request_are_refused_while_everything_is_away() -> None:
    async with rig_in_memory(budget_seconds=1.0) as rig:
        await rig.register()
        run = await rig.started()
        rig.memory_view.is_unavailable = True
        other = f"/v0/executions/{UNKNOWN_ID}"
        assert (await rig.client.get(other)).status_code == 401
        assert (await run.send("POST", f"{other}/steps", b"no JSON")).status_code == 400
        unavailable = await run.send("POST", f"{other}/steps", {"kind": "local", "target": "t"})
        assert (unavailable.status_code, unavailable.json()["details"]) == (503, {"reason": "view_unavailable"})
        run.secret = "wrong"
        assert (await run.send("POST", f"{other}/steps", b"no JSON")).status_code == 401


async def test_more_requests_than_a_door_keeps_open_are_refused_at_once() -> None:
    async with rig_in_memory(projects=False, requests_open_max=2, budget_seconds=3.0) as rig:
        waiting = [asyncio.create_task(rig.call("GET", f"/v0/executions/{UNKNOWN_ID}")) for _ in range(2)]
        await loop_turns()
        async with asyncio.timeout(1):
            refused = await rig.call("GET", f"/v0/executions/{UNKNOWN_ID}")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (await rig.client.get("/v0/health")).status_code == 200
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert (await rig.call("GET", "/v0/agents")).status_code == 200


async def test_a_tenant_that_has_its_share_of_requests_open_leaves_room_for_others() -> None:
    async with rig_in_memory(projects=False, requests_open_share_max=2, budget_seconds=3.0) as rig:
        await rig.call("POST", "/v0/tenants", key=OPERATOR_KEY, json={"id": "quiet"})
        body = {"name": "test", "tenant": "quiet", "scopes": ["agents:admin"]}
        key = (await rig.call("POST", "/v0/keys", key=OPERATOR_KEY, json=body)).json()["key"]
        waiting = [asyncio.create_task(rig.call("GET", f"/v0/executions/{UNKNOWN_ID}")) for _ in range(2)]
        await loop_turns()
        refused = await rig.call("GET", "/v0/agents")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert (await rig.call("GET", "/v0/agents", key=key)).status_code == 200
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert (await rig.call("GET", "/v0/agents")).status_code == 200


# ---------------------------------------------------------------- shutdown


async def test_a_closing_door_refuses_what_is_new_and_answers_what_is_open() -> None:
    async with rig_in_memory(budget_seconds=5.0) as rig:
        await rig.register()
        run = await rig.started()
        last = (await rig.events(run.execution_id))[-1]["event_seq"]
        waiting = asyncio.create_task(rig.call("GET", f"{run.path}/events?after_seq={last}&wait=1"))
        await loop_turns()
        draining = asyncio.create_task(rig.door.drain())
        await loop_turns()
        refused = await rig.call("GET", run.path)
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert refused.headers["retry-after"] == "1"
        assert (await rig.client.get("/v0/health")).status_code == 200
        assert (await rig.client.get("/v0/ready")).status_code == 503
        assert (await rig.client.get("/v0/nothing")).status_code == 404
        assert not draining.done()
        assert (await waiting).status_code == 200
        await asyncio.wait_for(draining, 5)


async def test_what_is_still_open_at_the_end_of_the_drain_is_told_what_is_known_of_it() -> None:
    async with rig_in_memory(projects=False, drain_seconds=0.2) as rig:
        await rig.register()
        # Without a projector nothing is ever answered.
        sent = asyncio.create_task(rig.call("POST", "/v0/executions", json={"agent_id": "agent"}))
        read = asyncio.create_task(rig.call("GET", "/v0/executions"))
        await loop_turns()
        rig.memory_log.go_offline()
        unsent = asyncio.create_task(rig.call("POST", "/v0/executions", json={"agent_id": "agent"}))
        await loop_turns()
        await asyncio.wait_for(rig.door.drain(), 5)
        assert ((await sent).status_code, (await sent).json()["code"]) == (504, "outcome_unknown")
        assert (await unsent).status_code == 503
        assert (await read).status_code == 503
        for response in (await sent, await unsent, await read):
            assert response.headers["retry-after"] == "1"
