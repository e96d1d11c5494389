"""Of two faults in one request the one that the contract checks first is answered, pair by pair, on every route."""

from collections.abc import AsyncIterator
from itertools import combinations
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from nats.aio.client import Client
from redis.asyncio import Redis

from kernel.door.routes import ROUTES, Route
from tests.support.approvals import ask
from tests.support.door import API_KEY, OPERATOR_KEY, Rig, Run, rig_on_servers

BODY_BYTES_MAX = 4096
UNKNOWN_ID = "0199aaaa-0000-7000-8000-0000000000ff"
STATUS = {"too_large": 413, "unauthorized": 401, "invalid": 400, "unknown": 404, "ended": 409}
"""Faults in the order in which they are checked, each with its answer."""

BODIES: dict[str, Any] = {
    "create_execution": {"agent_id": "agent"},
    "submit_step": {"kind": "tool_call", "target": "t"},
    "complete_step": {"result": 1},
    "fail_step": {"error": "x"},
    "publish_delta": {"seq": 0, "data": "x"},
    "complete_execution": {"output": 1},
    "fail_execution": {"error": "x"},
    "register_agent": {"id": "agent", "webhook_url": "http://8.8.8.8/", "secret": "s" * 16},
    "describe_agent": {"description": "d"},
    "load_policy": {"bundle": "default_action: deny"},
    "create_key": {"name": "ci", "scopes": ["audit:read"]},
    "put_tenant": {"id": "acme"},
}
GUARDED = [route for route in ROUTES if route.is_built and route.access != "open" and route.operation != "metrics"]
LISTS = frozenset(
    {"list_executions", "list_events", "list_steps", "list_agents", "list_approvals", "list_keys", "list_tenants"}
)
DECISIONS = frozenset({"grant_approval", "deny_approval"})
ENDED_ANSWERS = DECISIONS | {"cancel_execution", "complete_execution", "fail_execution", "heartbeat"}
"""Routes that refuse once the execution, and its approval, has ended; the others answer 200 then."""


@pytest_asyncio.fixture
async def rig(nats_url: str, redis_url: str, fresh_nats: Client, fresh_redis: Redis) -> AsyncIterator[Rig]:
    async with rig_on_servers(nats_url, redis_url, body_bytes_max=BODY_BYTES_MAX) as rig:
        yield rig


def faults_of(route: Route) -> list[str]:
    """Return the faults that a request to this route can have, in the order of their checks."""
    found = ["too_large", "unauthorized"]
    has_something_to_check = (
        route.operation in LISTS | BODIES.keys()
        or route.is_leased
        or "{execution_id}" in route.path
        or "{approval_id}" in route.path
        or "{key_id}" in route.path
    )
    if has_something_to_check:
        found.append("invalid")
    if "{" in route.path or route.operation == "create_execution":
        found.append("unknown")
    if route.operation in ENDED_ANSWERS:
        found.append("ended")
    return found


class Requests:
    """Makes a request to a route with any set of faults."""

    def __init__(self, rig: Rig, live: Run, ended: Run, step_id: str) -> None:
        self.rig = rig
        self.live = live
        self.ended = ended
        self.step_id = step_id
        self.approvals: dict[str, str] = {}
        """By execution, where the route needs one."""

    async def ask(self) -> None:
        for run in (self.live, self.ended):
            self.approvals[run.execution_id] = (await ask(run)).approval_id

    async def send(self, route: Route, faults: set[str]) -> httpx.Response:
        run = self.ended if "ended" in faults else self.live
        target = self.target(route, run, faults)
        body = self.body(route, faults)
        headers = self.credential(route, run, target, body, is_good="unauthorized" not in faults)
        if "invalid" in faults and route.is_leased:
            # Signed as sent, so that the credential stays good.
            lease = msgspec.structs.replace(run.lease, dispatch_id="no-uuid")
            headers = run.headers(route.method, target, body, lease=lease)
            headers = headers if "unauthorized" not in faults else headers | {"rebuno-signature": "v1=" + "0" * 64}
        return await self.rig.client.request(route.method, target, content=body, headers=headers)

    def target(self, route: Route, run: Run, faults: set[str]) -> str:
        execution_id = UNKNOWN_ID if "unknown" in faults else run.execution_id
        agent_id = "nobody" if "unknown" in faults else "agent"
        approval_id = self.approvals.get(execution_id, UNKNOWN_ID)
        names = {"execution_id": execution_id, "step_id": self.step_id, "agent_id": agent_id}
        path = route.path.format_map(names | {"approval_id": approval_id, "key_id": execution_id})
        if "invalid" not in faults:
            return path
        if route.operation in LISTS:
            return f"{path}?limit=0"
        if route.is_leased:
            return path
        return path.replace(execution_id, "no-uuid").replace(approval_id, "no-uuid")

    def body(self, route: Route, faults: set[str]) -> bytes:
        if "too_large" in faults:
            return b" " * (BODY_BYTES_MAX + 1)
        body = BODIES.get(route.operation)
        if body is None:
            return b""
        if "invalid" in faults:
            return b"no JSON"
        if route.operation == "create_execution" and "unknown" in faults:
            return b'{"agent_id":"nobody"}'
        return msgspec.json.encode(body)

    def credential(self, route: Route, run: Run, target: str, body: bytes, *, is_good: bool) -> dict[str, str]:
        if route.access != "agent":
            key = OPERATOR_KEY if route.scopes == ("operator",) else API_KEY
            return {"authorization": f"Bearer {key if is_good else 'wrong'}"}
        headers = run.headers(route.method, target, body)
        return headers if is_good else headers | {"rebuno-signature": "v1=" + "0" * 64}


@pytest.mark.parametrize("route", GUARDED, ids=lambda route: route.operation)
async def test_the_fault_that_is_checked_first_is_answered(rig: Rig, route: Route) -> None:
    await rig.register()
    live, ended = await rig.started(), await rig.started()
    step_id = await live.proceed()
    requests = Requests(rig, live, ended, step_id)
    if "{approval_id}" in route.path:
        await requests.ask()
    assert (await ended.complete()).status_code == 204
    faults = faults_of(route)
    for fault in faults:
        response = await requests.send(route, {fault})
        assert response.status_code == STATUS[fault], (fault, response.text)
    for first, second in combinations(faults, 2):
        response = await requests.send(route, {first, second})
        assert response.status_code == STATUS[first], (first, second, response.text)
        assert response.json()["code"], (first, second)
    if "unknown" in faults and "{execution_id}" in route.path:
        # None of it left a trace.
        assert (await rig.event_types(live.execution_id))[-1] in ("step.executing", "execution.cancelled")
