"""Every route of the table, asked by those who may not: one tenant meets another's ids as it meets unknown ones, and no
credential that is missing, ended or too narrow learns which ids exist.
"""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from kernel.door.routes import ROUTES, Route
from schemas.entries import Lease
from schemas.ids import uuid7_from
from schemas.scopes import SCOPES
from tests.support.approvals import Asked, ask
from tests.support.door import API_KEY, OPERATOR_KEY, Rig, Run, rig_in_memory
from tests.support.tenancy import make_key, make_tenant

STRANGER_SECRET = "a secret of the stranger's agent"
NEIGHBOUR_SECRET = "a secret of another agent of the tenant"
UNKNOWN = {
    "execution_id": uuid7_from(1, b"\1" * 10),
    "approval_id": uuid7_from(1, b"\2" * 10),
    "key_id": uuid7_from(1, b"\3" * 10),
    "step_id": "f" * 64,
    "agent_id": "nobody",
}
BODIES: dict[str, Any] = {
    "create_execution": {"agent_id": "{agent_id}"},
    "submit_step": {"kind": "local", "target": "t"},
    "fail_step": {"error": "x"},
    "publish_delta": {"seq": 0, "data": "x"},
    "fail_execution": {"error": "x"},
    "register_agent": {"id": "{agent_id}", "webhook_url": "http://8.8.8.8/", "secret": "s" * 16},
    "load_policy": {"bundle": "default_action: deny"},
    "create_key": {"name": "x", "scopes": ["audit:read"], "tenant": "default"},
    "put_tenant": {"id": "default", "quotas": {"live_executions": 1}},
}
MAKES_ITS_OWN = frozenset({"register_agent", "describe_agent"})
"""What it makes or changes belongs to whoever asks, so that there is nothing of another's to meet."""
GUARDED = [route for route in ROUTES if route.is_built and route.access != "open"]
WITH_IDS = [route for route in GUARDED if "{" in route.path or route.operation == "create_execution"]
LISTS = [
    route for route in GUARDED if route.method == "GET" and "{" not in route.path and "operator" not in route.scopes
]
SIGNED = [route for route in GUARDED if route.access in ("agent", "either") and "{execution_id}" in route.path]


class Owner:
    """What the tenant `default` has: a run at work, one that waits for an approval, a policy and a key."""

    def __init__(self, rig: Rig, run: Run, step_id: str, asked: Asked, key_id: str) -> None:
        self.rig = rig
        self.run = run
        self.names = {
            "execution_id": run.execution_id,
            "step_id": step_id,
            "approval_id": asked.approval_id,
            "agent_id": "agent",
            "key_id": key_id,
        }

    def call(self, route: Route, names: dict[str, str]) -> tuple[str, bytes]:
        """Target and body of a request that would be accepted from its owner."""
        target = route.path.format_map(names)
        if route.method in ("GET", "DELETE"):
            return target, b""
        body = BODIES.get(route.operation, {})
        filled = {name: value.format_map(names) if isinstance(value, str) else value for name, value in body.items()}
        return target, msgspec.json.encode(filled)

    async def by_key(self, route: Route, names: dict[str, str], key: str | None) -> httpx.Response:
        target, body = self.call(route, names)
        headers = self._lease(route) | ({} if key is None else {"authorization": f"Bearer {key}"})
        return await self.rig.client.request(route.method, target, content=body, headers=headers)

    async def by_signature(self, route: Route, names: dict[str, str], agent_id: str, secret: str) -> httpx.Response:
        target, body = self.call(route, names)
        run = Run(self.rig, "", self.run.lease, agent_id=agent_id, secret=secret)
        return await run.send(route.method, target, body)

    def _lease(self, route: Route) -> dict[str, str]:
        lease: Lease = self.run.lease
        named = {"rebuno-dispatch-id": lease.dispatch_id, "rebuno-dispatch-attempt": str(lease.attempt)}
        return named if route.is_leased else {}

    async def trace(self) -> tuple[Any, ...]:
        """All that the owner can read, and how much is in the log and in the control stream."""
        path = f"/v0/executions/{self.names['execution_id']}"
        targets = (path, f"{path}/steps", f"{path}/events", "/v0/executions", "/v0/approvals?status=all")
        targets += ("/v0/agents", "/v0/policies/agent", "/v0/keys")
        read = [(await self.rig.call("GET", target)).json() for target in targets]
        states = [await self.rig.log.state(shard) for shard in range(self.rig.settings.shards)]
        return (*read, [state.last_seq for state in states])


@pytest_asyncio.fixture
async def owner() -> AsyncIterator[Owner]:
    async with rig_in_memory() as rig:
        yield await owner_of(rig)


async def owner_of(rig: Rig) -> Owner:
    """Let the tenant `default` have what others will try, and make the tenant `acme`."""
    await rig.register()
    await rig.register("neighbour", secret=NEIGHBOUR_SECRET)
    await rig.call("POST", "/v0/policies/agent", json={"bundle": "default_action: allow"})
    run = await rig.started()
    step_id = await run.proceed()
    asked = await ask(await rig.started())
    key_id = (await make_key(rig, "audit:read"))["id"]
    await make_tenant(rig)
    return Owner(rig, run, step_id, asked, key_id)


async def strangers_agent(rig: Rig, key: str) -> None:
    body = {"id": "agent", "webhook_url": "http://8.8.8.8/", "secret": STRANGER_SECRET}
    assert (await rig.call("POST", "/v0/agents", key=key, json=body)).status_code == 201


def same(known: httpx.Response, unknown: httpx.Response) -> tuple[int, bytes]:
    """Assert that nothing tells the two apart, and return what they are."""
    shown = f"{known.request.method} {known.request.url}: {known.text} / {unknown.text}"
    assert (known.status_code, known.content) == (unknown.status_code, unknown.content), shown
    assert dict(known.headers) == dict(unknown.headers), shown
    return known.status_code, known.content


# ---------------------------------------------------------------- the walk


@pytest.mark.parametrize("route", WITH_IDS, ids=lambda route: route.operation)
async def test_another_tenants_key_meets_every_id_as_an_unknown_one(owner: Owner, route: Route) -> None:
    key = (await make_key(owner.rig, tenant="acme"))["key"]
    before = await owner.trace()

    known = await owner.by_key(route, owner.names, key)
    status, _ = same(known, await owner.by_key(route, UNKNOWN, key))

    assert status == (401 if route.access == "agent" else 404)
    # Ids of the two, mixed: a part that is one's own opens nothing of the other.
    for name in re.findall(r"{(\w+)}", route.path):
        mixed = await owner.by_key(route, UNKNOWN | {name: owner.names[name]}, key)
        assert mixed.status_code == status
    assert await owner.trace() == before


@pytest.mark.parametrize("route", LISTS, ids=lambda route: route.operation)
async def test_another_tenants_lists_show_nothing_of_it(owner: Owner, route: Route) -> None:
    key = (await make_key(owner.rig, tenant="acme"))["key"]
    queries = ["", f"?execution_id={owner.names['execution_id']}", "?agent_id=agent", "?tenant=default"]
    queries += [f"?cursor={cursor}" for cursor in (owner.names["execution_id"], owner.names["approval_id"])]
    if route.operation == "list_approvals":
        queries.append("?status=all")

    for query in queries:
        route_with_query = msgspec.structs.replace(route, path=route.path + query)
        response = await owner.by_key(route_with_query, owner.names, key)
        assert response.status_code in (200, 400), query
        for hidden in (*owner.names.values(), "neighbour"):
            # The word stands in no answer but as the id of an agent.
            assert f'"{hidden}"' not in response.text, (query, response.text)
        assert "rebuno-next-cursor" not in response.headers


@pytest.mark.parametrize("route", SIGNED, ids=lambda route: route.operation)
async def test_a_signature_of_another_tenant_or_agent_meets_every_id_as_an_unknown_one(
    owner: Owner, route: Route
) -> None:
    await strangers_agent(owner.rig, (await make_key(owner.rig, tenant="acme"))["key"])
    before = await owner.trace()

    for agent_id, secret in (("agent", STRANGER_SECRET), ("neighbour", NEIGHBOUR_SECRET)):
        known = await owner.by_signature(route, owner.names, agent_id, secret)
        assert same(known, await owner.by_signature(route, UNKNOWN, agent_id, secret))[0] == 404

    assert await owner.trace() == before


@pytest.mark.parametrize("route", GUARDED, ids=lambda route: route.operation)
async def test_a_key_without_the_scope_is_refused_alike_for_every_id(owner: Owner, route: Route) -> None:
    others = [scope for scope in SCOPES if scope not in route.scopes]
    narrow = await make_key(owner.rig, *others)
    foreign = await make_key(owner.rig, *others, tenant="acme")
    before = await owner.trace()

    for key in (narrow["key"], foreign["key"]):
        known = await owner.by_key(route, owner.names, key)
        status, body = same(known, await owner.by_key(route, UNKNOWN, key))
        assert status == (401 if route.access == "agent" else 403)
        assert body == (await owner.by_key(route, owner.names, narrow["key"])).content

    assert await owner.trace() == before


@pytest.mark.parametrize("route", GUARDED, ids=lambda route: route.operation)
async def test_a_credential_that_is_missing_or_has_ended_is_one_401(owner: Owner, route: Route) -> None:
    rig = owner.rig
    revoked = await make_key(rig, *SCOPES)
    await rig.call("DELETE", f"/v0/keys/{revoked['id']}", key=OPERATOR_KEY)
    ended_at = (datetime.now(UTC) - timedelta(seconds=1)).isoformat().replace("+00:00", "Z")
    expired = await make_key(rig, *SCOPES, expires_at=ended_at)
    before = await owner.trace()

    answers: set[tuple[int, bytes]] = set()
    for key in (None, "", "sw_" + "A" * 43, revoked["key"], expired["key"]):
        known = await owner.by_key(route, owner.names, key)
        answers.add(same(known, await owner.by_key(route, UNKNOWN, key)))
    answers.add(_status_and_body(await owner.by_signature(route, owner.names, "agent", "not its secret at all")))
    if route.access == "bearer":
        answers.add(_status_and_body(await owner.by_signature(route, owner.names, "agent", owner.run.secret)))

    assert len(answers) == 1
    assert answers.pop()[0] == 401
    # The last key made is in the owner's list, so what is compared is what a stranger could have changed.
    assert await owner.trace() == before


@pytest.mark.parametrize("route", [route for route in GUARDED if route.scopes], ids=lambda route: route.operation)
async def test_each_scope_of_a_route_opens_it(owner: Owner, route: Route) -> None:
    for scope in route.scopes:
        key = (await make_key(owner.rig, scope))["key"]
        response = await owner.by_key(route, UNKNOWN, key)
        # A tenant's own quotas, its keys and its agents may be made; whatever has an id is unknown.
        assert response.status_code in (200, 201, 204, 404), response.text


async def test_an_operator_meets_no_execution_whatever_its_tenant(owner: Owner) -> None:
    for route in GUARDED:
        if "operator" in route.scopes or route.operation in MAKES_ITS_OWN:
            continue
        response = await owner.by_key(route, owner.names, OPERATOR_KEY)
        assert response.status_code in (401, 403), route.operation


async def test_the_tables_of_this_test_cover_every_route_that_has_an_id() -> None:
    named = {name for route in GUARDED for name in re.findall(r"{(\w+)}", route.path)}
    assert named == set(UNKNOWN)
    assert {route.operation for route in WITH_IDS} >= {"get_approval", "read_policy", "revoke_key", "submit_step"}


# ---------------------------------------------------------------- the same effects in two tenants


async def test_equal_effects_under_equal_keys_in_two_tenants_stay_apart(owner: Owner) -> None:
    """A step, an agent id, an Idempotency-Key: what is equal in both is nobody's but its own."""
    rig = owner.rig
    key = (await make_key(rig, tenant="acme"))["key"]
    await strangers_agent(rig, key)
    body = {"agent_id": "agent", "input": {"n": 1}}
    ids: list[str] = []
    for each in (API_KEY, key):
        created = await rig.call(
            "POST", "/v0/executions", key=each, json=body, headers={"idempotency-key": "one-and-the-same"}
        )
        assert created.status_code == 201, created.text
        assert "idempotent-replayed" not in created.headers
        ids.append(created.json()["id"])

    assert ids[0] != ids[1]
    for each, mine, other in ((API_KEY, *ids), (key, *reversed(ids))):
        assert (await rig.call("GET", f"/v0/executions/{mine}", key=each)).status_code == 200
        assert (await rig.call("GET", f"/v0/executions/{other}", key=each)).status_code == 404
        listed = (await rig.call("GET", "/v0/executions?agent_id=agent", key=each)).json()["executions"]
        assert mine in [execution["id"] for execution in listed]
        assert other not in [execution["id"] for execution in listed]


def _status_and_body(response: httpx.Response) -> tuple[int, bytes]:
    return response.status_code, response.content
