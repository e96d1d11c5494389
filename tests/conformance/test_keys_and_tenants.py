"""K21 to K25: whose keys and signatures reach what, what a scope opens, and how a key lives and ends."""

import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.conformance.harness.agent import Agent
from tests.conformance.harness.answers import accepted, envelope, path_of
from tests.conformance.harness.calls import NEXT_CURSOR, Call, json_bytes
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.routes import ROUTES, UNKNOWN_ID, UNKNOWN_STEP, Scene
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

TENANT = "Rebuno-Tenant"
EVERYWHERE_SECONDS = 1.0
SCOPES = (
    *("executions:read", "executions:write", "executions:erase", "approvals:decide", "approvals:assert"),
    *("agents:admin", "policies:admin", "steps:delegate", "audit:read", "tenant:admin"),
)
_EXECUTION = f"/v0/executions/{UNKNOWN_ID}"
# Every bearer route of section 3 that this part of the product has, and the scopes that open it.
OPENED_BY: dict[tuple[str, str], set[str]] = {
    ("POST", "/v0/executions"): {"executions:write"},
    ("GET", "/v0/executions"): {"executions:read"},
    ("GET", _EXECUTION): {"executions:read"},
    ("GET", f"{_EXECUTION}/events"): {"executions:read"},
    ("POST", f"{_EXECUTION}/cancel"): {"executions:write"},
    ("GET", f"{_EXECUTION}/steps"): {"executions:read"},
    ("GET", f"{_EXECUTION}/steps/{UNKNOWN_STEP}"): {"executions:read"},
    ("POST", "/v0/agents"): {"agents:admin"},
    ("GET", "/v0/agents"): {"agents:admin"},
    ("GET", "/v0/agents/nobody"): {"agents:admin"},
    ("DELETE", "/v0/agents/nobody"): {"agents:admin"},
    ("POST", "/v0/policies/nobody"): {"policies:admin"},
    ("GET", "/v0/policies/nobody"): {"policies:admin"},
    ("GET", "/v0/approvals"): {"executions:read", "approvals:decide"},
    ("GET", f"/v0/approvals/{UNKNOWN_ID}"): {"executions:read", "approvals:decide"},
    ("POST", f"/v0/approvals/{UNKNOWN_ID}/grant"): {"approvals:decide"},
    ("POST", f"/v0/approvals/{UNKNOWN_ID}/deny"): {"approvals:decide"},
    ("POST", "/v0/keys"): {"tenant:admin", "operator"},
    ("GET", "/v0/keys"): {"tenant:admin", "operator"},
    ("DELETE", f"/v0/keys/{UNKNOWN_ID}"): {"tenant:admin", "operator"},
    ("POST", "/v0/tenants"): {"operator"},
    ("GET", "/v0/tenants"): {"operator"},
    ("GET", "/metrics"): {"operator"},
}
DENY, ALLOW = "default_action: deny\nrules: []\n", "default_action: allow\nrules: []\n"
ASK = "rules: [{id: ask, then: {decision: require_approval}}]"


@pytest_asyncio.fixture
async def operator(kernel: Kernel, stack: Stack) -> Kernel:
    """The shared kernel with the operator's key."""
    return kernel.holding(stack.operator_key)


async def _key(operator: Kernel, *scopes: str, tenant: str = "default", **members: Any) -> dict[str, Any]:
    body = {"name": "test", "scopes": scopes or SCOPES, "tenant": tenant} | members
    return accepted(await operator.post("/v0/keys", body), 201)


async def _tenant(operator: Kernel) -> Kernel:
    """A new tenant, reached with a key of its own that has every scope but operator."""
    tenant = f"tenant-{secrets.token_hex(6)}"
    accepted(await operator.post("/v0/tenants", {"id": tenant}), 201)
    return operator.holding((await _key(operator, tenant=tenant))["key"])


async def _name_of(tenant: Kernel) -> str:
    return accepted(await tenant.get("/v0/keys"))[0]["tenant"]


def _in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def _same(known: httpx.Response, unknown: httpx.Response) -> int:
    assert (known.status_code, known.content) == (unknown.status_code, unknown.content), known.request.url
    return known.status_code


# ---------------------------------------------------------------- two tenants


async def test_k21_signatures_of_one_agent_id_reach_their_own_tenant_alone(kernel: Kernel, operator: Kernel) -> None:
    other = await _tenant(operator)
    mine = await kernel.agent()
    theirs = await other.agent(agent_id=mine.id)
    scenes = [await Scene.of(kernel, mine), await Scene.of(other, theirs)]
    before = [await each.kernel.trace(each.execution_id) for each in scenes]

    for scene, stranger in ((scenes[0], theirs), (scenes[1], mine)):
        for route in ROUTES:
            if route.is_agents and route.has_execution:
                foreign = await kernel.send(scene.call(route, agent=stranger))
                unknown = await kernel.send(scene.call(route, agent=stranger, execution_id=UNKNOWN_ID))
                assert _same(foreign, unknown) == 404, route.name
    assert [await each.kernel.trace(each.execution_id) for each in scenes] == before
    for scene in scenes:
        accepted(await scene.lease.heartbeat(), 204)
        assert (await scene.lease.decide("again"))["decision"] == "proceed"


async def test_k21_rebuno_tenant_names_the_only_tenant_to_try(kernel: Kernel, operator: Kernel) -> None:
    other = await _tenant(operator)
    mine = await kernel.agent()
    theirs = await other.agent(agent_id=mine.id)
    names = {"default": mine, await _name_of(other): theirs}
    scene = await Scene.of(kernel, mine)
    heartbeat = next(route for route in ROUTES if route.name == "heartbeat")

    for tenant in (*names, "nowhere", ""):
        for agent in (mine, theirs):
            call = scene.call(heartbeat, agent=agent).with_headers({TENANT: tenant})
            is_its_own = names.get(tenant) is agent
            expected = 401 if not is_its_own else 204 if agent is mine else 404
            assert (await kernel.send(call)).status_code == expected, tenant


async def test_k21_without_an_execution_in_the_path_the_ninth_tenant_has_to_be_named(
    kernel: Kernel, operator: Kernel
) -> None:
    first = await kernel.agent()
    agents = [first]
    for _ in range(8):
        agents.append(await (await _tenant(operator)).agent(agent_id=first.id))

    def described(agent: Agent, text: str) -> Call:
        call = Call("PUT", f"/v0/agents/{agent.id}/metadata", body=json_bytes({"description": text}))
        return call.signed(agent.id, agent.secret)

    for number, agent in enumerate(agents[:8]):
        accepted(await kernel.send(described(agent, str(number))), 204)
    envelope(await kernel.send(described(agents[8], "8")), 401, "unauthorized")
    ninth = await _name_of(agents[8].kernel)
    accepted(await kernel.send(described(agents[8], "8").with_headers({TENANT: ninth})), 204)
    for number, agent in enumerate(agents):
        assert accepted(await agent.kernel.get(f"/v0/agents/{agent.id}"))["description"] == str(number)
    # On a route with an execution its owner is tried first, whichever number it has.
    lease = await agents[8].start()
    accepted(await lease.heartbeat(), 204)


async def test_k22_another_tenants_key_meets_every_id_as_an_unknown_one(kernel: Kernel, operator: Kernel) -> None:
    other = await _tenant(operator)
    scene = await Scene.of(kernel)
    agent_id, key = scene.agent.id, await _key(operator, "audit:read")
    accepted(await kernel.post(f"/v0/policies/{agent_id}", {"bundle": ALLOW}), 204)
    mine, unknown = f"/v0/executions/{scene.execution_id}", f"/v0/executions/{UNKNOWN_ID}"
    asked = await _approval(kernel)
    before = await kernel.trace(scene.execution_id), await kernel.trace(asked["execution_id"])
    pairs = [("GET", f"{mine}{part}", f"{unknown}{part}", None) for part in ("", "/events", "/steps")]
    pairs += [
        ("POST", f"{mine}/cancel", f"{unknown}/cancel", {}),
        ("GET", f"{mine}/steps/{scene.step_id}", f"{unknown}/steps/{UNKNOWN_STEP}", None),
        ("GET", f"/v0/agents/{agent_id}", "/v0/agents/nobody", None),
        ("DELETE", f"/v0/agents/{agent_id}", "/v0/agents/nobody", None),
        ("GET", f"/v0/policies/{agent_id}", "/v0/policies/nobody", None),
        ("POST", f"/v0/policies/{agent_id}", "/v0/policies/nobody", {"bundle": DENY}),
        ("DELETE", f"/v0/keys/{key['id']}", f"/v0/keys/{UNKNOWN_ID}", None),
        *(
            (method, f"/v0/approvals/{asked['id']}{part}", f"/v0/approvals/{UNKNOWN_ID}{part}", None)
            for method, part in (("GET", ""), ("POST", "/grant"), ("POST", "/deny"))
        ),
    ]

    for method, known_target, unknown_target, body in pairs:
        options = () if body is None else (body,)
        known = await other.request(method, known_target, *options)
        assert _same(known, await other.request(method, unknown_target, *options)) == 404
    created = await other.create(agent_id)
    assert _same(created, await other.create("nobody-of-this-name")) == 404

    assert (await kernel.trace(scene.execution_id), await kernel.trace(asked["execution_id"])) == before
    assert accepted(await kernel.get(f"/v0/approvals/{asked['id']}")) == asked
    assert accepted(await kernel.get(f"/v0/policies/{agent_id}"))["bundle"] == ALLOW
    await _assert_lists_hide(other, scene, key["id"])


async def _approval(kernel: Kernel) -> dict[str, Any]:
    """An approval that waits, of an agent of its own."""
    agent = await kernel.agent()
    accepted(await kernel.post(f"/v0/policies/{agent.id}", {"bundle": ASK}), 204)
    decision = await (await agent.start()).decide("ask")
    assert decision["decision"] == "blocked"
    return accepted(await kernel.get(f"/v0/approvals/{decision['approval_id']}"))


async def _assert_lists_hide(other: Kernel, scene: Scene, key_id: str) -> None:
    """Its lists are empty, also where they are asked for by another's ids and cursors."""
    empty = {"executions": []}
    for query in ("", f"?agent_id={scene.agent.id}", "?status=running", f"?cursor={UNKNOWN_ID}"):
        assert accepted(await other.get(f"/v0/executions{query}")) == empty
    for query in ("", f"?execution_id={scene.execution_id}", f"?agent_id={scene.agent.id}", "?status=all"):
        assert accepted(await other.get(f"/v0/approvals{query}")) == []
    for query in ("", "?cursor=-", "?limit=1"):
        response = await other.get(f"/v0/agents{query}")
        assert accepted(response) == []
        assert NEXT_CURSOR not in response.headers
    assert key_id not in (await other.get("/v0/keys")).text
    assert key_id not in (await other.get("/v0/keys", tenant="default")).text


# ---------------------------------------------------------------- scopes


@pytest.mark.parametrize("scope", [*SCOPES, "operator"])
async def test_k23_a_scope_opens_exactly_its_routes(kernel: Kernel, operator: Kernel, scope: str) -> None:
    holder = kernel.holding((await _key(operator, scope))["key"])

    for (method, target), scopes in OPENED_BY.items():
        response = await holder.request(method, target, *([{}] if method == "POST" else []))
        shown = f"{method} {target}: {response.status_code}"
        if scope in scopes:
            assert response.status_code in {200, 204, 400, 404}, shown
        else:
            envelope(response, 403, "forbidden")
        assert (await kernel.send(Call(method, target))).status_code == 401, shown


async def test_k23_the_key_of_the_environment_has_every_scope_but_operator(kernel: Kernel) -> None:
    for (method, target), scopes in OPENED_BY.items():
        response = await kernel.request(method, target, *([{}] if method == "POST" else []))
        assert (response.status_code == 403) == (scopes == {"operator"}), target


async def test_k23_only_an_operator_gives_the_scope_operator_or_keys_of_another_tenant(
    kernel: Kernel, operator: Kernel
) -> None:
    other = await _tenant(operator)
    name = await _name_of(other)

    for members in ({"scopes": ["operator"]}, {"scopes": ["audit:read", "operator"]}, {"tenant": name}):
        body = {"name": "x", "scopes": ["audit:read"]} | members
        envelope(await kernel.post("/v0/keys", body), 403, "forbidden")
    assert path_of(await kernel.post("/v0/keys", {"name": "x", "scopes": ["root"]})) == "scopes[0]"
    made = accepted(await operator.post("/v0/keys", {"name": "x", "scopes": ["operator"], "tenant": name}), 201)
    assert made["scopes"] == ["operator"]
    # For a tenant's own administrator a key of that scope is none of its keys.
    envelope(await other.request("DELETE", f"/v0/keys/{made['id']}"), 404, "not_found")
    assert made["id"] not in (await other.get("/v0/keys")).text


# ---------------------------------------------------------------- the life of a key


@pytest.mark.alone
async def test_k24_a_key_is_shown_once_works_and_ends_with_its_revocation(kernel: Kernel, operator: Kernel) -> None:
    made = await _key(operator, "executions:read", "tenant:admin")
    holder = kernel.holding(made["key"])
    accepted(await holder.get("/v0/executions"))
    listed = {key["id"]: key for key in accepted(await holder.get("/v0/keys"))}
    assert "key" not in listed[made["id"]]
    assert made["key"] not in str(listed)

    accepted(await operator.request("DELETE", f"/v0/keys/{made['id']}"), 204)
    revoked_at = time.monotonic()

    async def is_refused() -> bool:
        return (await holder.get("/v0/executions")).status_code == 401

    await wait_until_async(is_refused, "the key to be refused", deadline_seconds=EVERYWHERE_SECONDS)
    assert time.monotonic() - revoked_at <= EVERYWHERE_SECONDS
    unauthorized = envelope(await holder.get("/v0/executions"), 401, "unauthorized")
    assert unauthorized == envelope(await kernel.send(Call("GET", "/v0/executions")), 401, "unauthorized")
    assert made["id"] not in (await operator.get("/v0/keys")).text
    envelope(await operator.request("DELETE", f"/v0/keys/{made['id']}"), 404, "not_found")


@pytest.mark.alone
async def test_k24_an_expired_key_is_refused(kernel: Kernel, operator: Kernel) -> None:
    expired = kernel.holding((await _key(operator, expires_at=_in_seconds(-1)))["key"])
    ending_at = time.monotonic() + 1
    ending = kernel.holding((await _key(operator, expires_at=_in_seconds(1)))["key"])

    envelope(await expired.get("/v0/executions"), 401, "unauthorized")
    accepted(await ending.get("/v0/executions"))

    async def is_refused() -> bool:
        return (await ending.get("/v0/executions")).status_code == 401

    await wait_until_async(is_refused, "the key to expire", deadline_seconds=1 + EVERYWHERE_SECONDS)
    assert time.monotonic() - ending_at <= EVERYWHERE_SECONDS


async def test_k25_no_answer_and_no_log_line_holds_a_secret_or_a_key(
    kernel: Kernel, operator: Kernel, stack: Stack
) -> None:
    agent = await kernel.agent(next_secret="the-next-secret-of-this-agent")
    made = await _key(operator, tenant="default")
    holder = kernel.holding(made["key"])
    lease = await agent.start()
    step_id = await lease.done("tool", result={"n": 1})
    accepted(await kernel.post(f"/v0/policies/{agent.id}", {"bundle": ALLOW}), 204)
    texts: list[str] = []
    for each in (holder, operator, kernel):
        for target in (
            *(target for method, target in OPENED_BY if method == "GET"),
            *(f"/v0/executions/{lease.execution_id}{part}" for part in ("", "/events", "/steps", f"/steps/{step_id}")),
            *(f"/v0/{kind}/{agent.id}" for kind in ("agents", "policies")),
            *("/v0/openapi.json", "/docs", "/v0/ready"),
        ):
            response = await each.get(target)
            texts += [response.text, str(response.headers)]
    registered = {"id": agent.id, "webhook_url": "ftp://x", "secret": agent.secret, "next_secret": agent.secret}
    for body in (registered, registered | {"id": agent.secret + "!"}, registered | {"secret": [agent.secret]}):
        texts.append((await kernel.post("/v0/agents", body)).text)
    texts.append((await kernel.post("/v0/keys", {"name": "x", "scopes": [made["key"]]})).text)
    texts.append((await kernel.send(Call("GET", "/v0/executions").with_bearer(made["key"] + "x"))).text)
    texts += list(stack.logs().values())

    assert agent.id in "".join(texts)
    for hidden in (agent.secret, "the-next-secret-of-this-agent", made["key"], stack.api_key, stack.operator_key):
        assert [text[:200] for text in texts if hidden in text] == []
