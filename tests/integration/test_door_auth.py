"""Credentials and ownership through the door, on memory adapters and a real projector."""

import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from msgspec import UNSET

from kernel.door.routes import ROUTES, Route
from schemas.control import AgentPut
from schemas.ids import new_uuid7
from tests.support.door import API_KEY, SECRET, WEBHOOK_URL, MemoryRig, Rig, Run, rig_in_memory

UNKNOWN_ID = "0199aaaa-0000-7000-8000-0000000000ff"
NOT_FOUND = b'{"code":"not_found","message":"execution not found"}'
OTHER_SECRET = "the-secret-of-somebody-else"
BEARER_ROUTES = [route for route in ROUTES if route.is_built and route.access == "bearer"]


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[MemoryRig]:
    async with rig_in_memory() as rig:
        await rig.register()
        yield rig


async def put_agent(rig: Rig, tenant: str, agent_id: str, secret: str, *, require_v1: bool = False) -> None:
    """Register an agent of any tenant, as a key of that tenant will do."""
    sealed = rig.control.sealer.seal(secret.encode(), tenant=tenant, agent_id=agent_id, field="secret")
    entry = AgentPut(
        id=new_uuid7(),
        at=time.time_ns() // 1000,
        by="test",
        tenant=tenant,
        agent_id=agent_id,
        webhook_url=WEBHOOK_URL,
        secret=sealed,
        require_v1=require_v1 or UNSET,
    )
    await rig.control.submit(entry, timeout_seconds=5)


def unauthorized(response: httpx.Response) -> bytes:
    assert response.status_code == 401, response.text
    assert response.json()["code"] == "unauthorized"
    return response.content


# ---------------------------------------------------------------- bearer


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        b"Basic " + API_KEY.encode(),
        API_KEY.encode(),
        b"Bearer " + API_KEY.encode() + b" ",
        b"Bearer " + API_KEY.upper().encode(),
        b"Bearer " + API_KEY[:-1].encode(),
        b"Bearer " + API_KEY.encode() + b"x",
        b"Bearer \xe9\xff\x00",
        b"Bearer " + b"k" * 100_000,
        b"bearer\xa0" + API_KEY.encode(),
    ],
)
async def test_whatever_is_wrong_with_a_key_is_one_answer(rig: Rig, authorization: bytes | None) -> None:
    headers = [] if authorization is None else [(b"authorization", authorization)]
    plain = await rig.client.get("/v0/executions", headers=[(b"authorization", b"Bearer no")])
    response = await rig.client.get("/v0/executions", headers=headers)
    assert unauthorized(response) == unauthorized(plain)


async def test_two_keys_in_one_request_are_none(rig: Rig) -> None:
    key = b"Bearer " + API_KEY.encode()
    unauthorized(await rig.client.get("/v0/executions", headers=[(b"authorization", key), (b"authorization", key)]))


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
async def test_the_scheme_is_read_in_any_case(rig: Rig, scheme: str) -> None:
    response = await rig.client.get("/v0/executions", headers={"authorization": f"{scheme} {API_KEY}"})
    assert response.status_code == 200


@pytest.mark.parametrize("route", BEARER_ROUTES, ids=lambda route: route.operation)
async def test_a_signature_opens_no_bearer_route(rig: Rig, route: Route) -> None:
    run = await rig.started()
    names = {
        "execution_id": run.execution_id,
        "agent_id": "agent",
        "approval_id": run.execution_id,
        "key_id": run.execution_id,
    }
    target = route.path.format_map(names)
    unauthorized(await run.send(route.method, target, b"{}"))


async def test_the_api_key_has_every_scope_but_operator(rig: Rig) -> None:
    assert (await rig.call("GET", "/metrics")).json()["code"] == "forbidden"
    assert (await rig.client.get("/metrics")).status_code == 401


async def test_in_dev_everybody_may_do_everything_and_signatures_are_still_checked() -> None:
    async with rig_in_memory(mode="dev", api_key="") as rig:
        await rig.register(secret="s")
        created = await rig.client.post("/v0/executions", json={"agent_id": "agent"}, headers={"authorization": "x"})
        assert (created.status_code, created.json()["created_by"]) == (201, "dev")
        assert (await rig.client.get("/metrics")).status_code == 200
        run = Run(rig, created.json()["id"], await rig.claim(created.json()["id"]), secret="wrong")
        unauthorized(await run.submit())
        unauthorized(await run.send("GET", run.path))
        run.secret = "s"
        await run.proceed()


# ---------------------------------------------------------------- signatures


@pytest.mark.parametrize("scheme", ["v1", "sha256"])
async def test_both_schemes_are_accepted_and_a_changed_body_is_not(rig: Rig, scheme: str) -> None:
    run = await rig.started()
    assert (await run.submit(scheme=scheme)).json()["decision"] == "proceed"
    count = len(await rig.events(run.execution_id))
    body = b'{"kind":"local","target":"t"}'
    headers = run.headers("POST", f"{run.path}/steps", body, scheme=scheme)
    changed = body.replace(b'"t"', b'"u"')
    unauthorized(await rig.client.post(f"{run.path}/steps", content=changed, headers=headers))
    assert len(await rig.events(run.execution_id)) == count


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "GET"},
        {"target": "/v0/executions/other/steps"},
        {"query": "?x=1"},
        {"rebuno-timestamp": "1700000000"},
        {"rebuno-dispatch-id": UNKNOWN_ID},
        {"rebuno-dispatch-attempt": "2"},
    ],
)
async def test_v1_covers_the_whole_request(rig: Rig, changes: dict[str, str]) -> None:
    run = await rig.started()
    target = f"{run.path}/steps"
    body = b'{"kind":"local","target":"t"}'
    headers = run.headers(changes.get("method", "POST"), changes.get("target", target), body)
    headers |= {name: value for name, value in changes.items() if name.startswith("rebuno-")}
    unauthorized(await rig.client.post(target + changes.get("query", ""), content=body, headers=headers))


async def test_the_target_is_signed_as_received(rig: Rig) -> None:
    run = await rig.started()
    for query in ("?limit=1", "?status=%65xecuting&x=a%20b&x=%2F", "?"):
        target = f"{run.path}/steps{query}"
        response = await run.send("GET", target)
        assert response.status_code == 200, (query, response.text)


async def test_a_public_prefix_is_tried_in_front_of_the_target() -> None:
    async with rig_in_memory(public_prefixes=("/kernel", "/a/b")) as rig:
        await rig.register()
        run = await rig.started()
        body = b'{"kind":"local","target":"t"}'
        for prefix, status in (("", 200), ("/kernel", 200), ("/a/b", 200), ("/other", 401)):
            headers = run.headers("POST", f"{prefix}{run.path}/steps", body)
            response = await rig.client.post(f"{run.path}/steps", content=body, headers=headers)
            assert response.status_code == status, prefix


@pytest.mark.parametrize(
    ("offset", "status"), [(0, 200), (-299, 200), (299, 200), (-302, 401), (302, 401), (None, 401)]
)
async def test_a_timestamp_may_be_five_minutes_off_either_way(rig: Rig, offset: int | None, status: int) -> None:
    run = await rig.started()
    target, body = f"{run.path}/steps", b'{"kind":"local","target":"t"}'
    timestamp = "" if offset is None else str(int(time.time()) + offset)
    headers = run.headers("POST", target, body, timestamp=timestamp)
    assert (await rig.client.post(target, content=body, headers=headers)).status_code == status


@pytest.mark.parametrize("timestamp", ["-1", "1.5e9", "0x10", "١٢٣", " ", "9" * 40, "now"])
async def test_a_timestamp_that_is_not_decimal_is_unauthorized(rig: Rig, timestamp: str) -> None:
    run = await rig.started()
    target, body = f"{run.path}/steps", b"{}"
    signed = run.headers("POST", target, body, timestamp=timestamp)
    headers = [(name.encode(), value.encode()) for name, value in signed.items()]
    unauthorized(await rig.client.post(target, content=body, headers=headers))


async def test_whatever_is_wrong_with_a_signature_is_one_answer(rig: Rig) -> None:
    run = await rig.started()
    target, body = f"{run.path}/steps", b'{"kind":"local","target":"t"}'
    good = run.headers("POST", target, body)
    hex_part = good["rebuno-signature"].removeprefix("v1=")
    broken: list[dict[str, Any]] = [
        {"rebuno-agent-id": "nobody"},
        {"rebuno-agent-id": ""},
        {"rebuno-agent-id": b"\xe9\xff"},
        {"rebuno-signature": ""},
        {"rebuno-signature": b"\xe9" * 67},
        {"rebuno-signature": "v2=" + hex_part},
        {"rebuno-signature": "v1=" + hex_part.upper()},
        {"rebuno-signature": "v1=" + hex_part[:-1]},
        {"rebuno-signature": "v1=" + hex_part + "0"},
        {"rebuno-signature": hex_part},
        {"rebuno-signature": "sha256=" + hex_part},
        {"rebuno-signature": "v1=" + "a" * 100_000},
        {"rebuno-tenant": "nowhere"},
        {"rebuno-tenant": b"\xe9"},
        {"rebuno-delegation": "x.y"},
    ]
    answers = {unauthorized(await rig.client.post(target, content=body, headers=good | changes)) for changes in broken}
    for missing in ("rebuno-agent-id", "rebuno-signature", "rebuno-timestamp"):
        headers = {name: value for name, value in good.items() if name != missing}
        answers.add(unauthorized(await rig.client.post(target, content=body, headers=headers)))
    answers.add(unauthorized(await rig.client.post(target, content=body)))
    twice = [(name.encode(), value.encode()) for name, value in [*good.items(), ("rebuno-signature", "v1=0")]]
    answers.add(unauthorized(await rig.client.post(target, content=body, headers=twice)))
    assert len(answers) == 1
    assert (await rig.client.post(target, content=body, headers=good)).status_code == 200


async def test_an_agent_that_requires_v1_refuses_the_older_scheme(rig: Rig) -> None:
    run = await rig.started()
    await rig.register(require_v1=True)
    unauthorized(await run.submit(scheme="sha256"))
    assert (await run.submit()).status_code == 200
    await rig.register(require_v1=False)
    assert (await run.submit(scheme="sha256")).status_code == 200


async def test_while_an_agent_has_a_next_secret_either_signs(rig: Rig) -> None:
    run = await rig.started()
    await rig.register(next_secret=OTHER_SECRET)
    for secret in (SECRET, OTHER_SECRET):
        run.secret = secret
        assert (await run.submit()).status_code == 200
    await rig.register(secret=OTHER_SECRET)
    run.secret = SECRET
    unauthorized(await run.submit())


async def test_on_either_route_a_signature_never_falls_back_to_the_bearer(rig: Rig) -> None:
    run = await rig.started()
    for target in (run.path, f"{run.path}/steps"):
        assert (await rig.call("GET", target)).status_code == 200
        assert (await run.send("GET", target)).status_code == 200
        unauthorized(await rig.client.get(target))
        unauthorized(await rig.call("GET", target, headers={"rebuno-agent-id": "agent"}))
        unauthorized(await rig.call("GET", target, headers={"rebuno-signature": "v1=" + "0" * 64}))
    unauthorized(await rig.call("POST", f"{run.path}/steps", content=b'{"kind":"local","target":"t"}'))


# ---------------------------------------------------------------- ownership


async def test_another_agent_meets_the_answer_of_an_unknown_id(rig: Rig) -> None:
    await rig.register("other", secret=OTHER_SECRET)
    run = await rig.started()
    step_id = await run.proceed()
    count = len(await rig.events(run.execution_id))
    stranger = Run(rig, run.execution_id, run.lease, agent_id="other", secret=OTHER_SECRET)
    calls = [
        ("POST", "/steps", {"kind": "local", "target": "t"}),
        ("POST", f"/steps/{step_id}/complete", {}),
        ("POST", f"/steps/{step_id}/fail", {"error": "x"}),
        ("POST", "/heartbeat", None),
        ("POST", "/complete", {}),
        ("POST", "/fail", {"error": "x"}),
        ("GET", "", None),
        ("GET", "/steps", None),
        ("GET", f"/steps/{step_id}", None),
    ]
    for method, part, body in calls:
        foreign = await stranger.send(method, run.path + part, body)
        unknown = await stranger.send(method, f"/v0/executions/{UNKNOWN_ID}{part}", body)
        assert (foreign.status_code, foreign.content) == (unknown.status_code, unknown.content) == (404, NOT_FOUND), (
            part
        )
    assert len(await rig.events(run.execution_id)) == count


async def test_an_agent_of_that_name_in_another_tenant_meets_the_answer_of_an_unknown_id(rig: Rig) -> None:
    run = await rig.started()
    await put_agent(rig, "elsewhere", "agent", OTHER_SECRET)
    stranger = Run(rig, run.execution_id, run.lease, secret=OTHER_SECRET)
    for headers in ({}, {"rebuno-tenant": "elsewhere"}):
        response = await stranger.submit(headers=headers)
        assert (response.status_code, response.content) == (404, NOT_FOUND)
    unauthorized(await stranger.submit(headers={"rebuno-tenant": "default"}))
    unauthorized(await run.submit(headers={"rebuno-tenant": "elsewhere"}))
    assert (await run.submit(headers={"rebuno-tenant": "default"})).status_code == 200
    assert (await run.submit(headers={"rebuno-tenant": ""})).status_code == 401


async def test_the_owner_is_found_among_more_tenants_than_are_tried(rig: Rig) -> None:
    for number in range(12):
        await put_agent(rig, f"tenant-{number}", "crowd", f"{OTHER_SECRET}-{number}")
    await rig.register("crowd")
    run = await rig.started("crowd")
    assert (await run.submit()).status_code == 200
    last_tried = Run(rig, run.execution_id, run.lease, agent_id="crowd", secret=f"{OTHER_SECRET}-7")
    assert (await last_tried.submit()).status_code == 404
    never_tried = Run(rig, run.execution_id, run.lease, agent_id="crowd", secret=f"{OTHER_SECRET}-11")
    unauthorized(await never_tried.submit())
    assert (await never_tried.submit(headers={"rebuno-tenant": "tenant-11"})).status_code == 404
    metadata = await never_tried.send("PUT", "/v0/agents/crowd/metadata", {})
    unauthorized(metadata)


async def test_equal_secrets_in_two_tenants_reach_the_execution_of_its_owner(rig: Rig) -> None:
    await put_agent(rig, "elsewhere", "twin", SECRET)
    await rig.register("twin")
    run = await rig.started("twin")
    # The first tenant in order of registration is not the owner's.
    step_id = await run.proceed()
    assert (await run.complete_step(step_id, 1)).json() == {"decision": "recorded"}
    assert (await rig.header(run.execution_id)).step_count == 1
    states = [(shard, await rig.log.state(shard)) for shard in range(rig.settings.shards)]
    messages = [await rig.log.get(shard, seq) for shard, state in states for seq in range(1, state.last_seq + 1)]
    assert {message.tenant for message in messages if message is not None} == {"default"}


async def test_an_agent_that_is_registered_again_owns_its_old_executions(rig: Rig) -> None:
    run = await rig.started()
    assert (await run.complete()).status_code == 204
    assert (await rig.call("DELETE", "/v0/agents/agent")).status_code == 204
    unauthorized(await run.send("GET", run.path))
    await rig.register(secret=OTHER_SECRET)
    run.secret = OTHER_SECRET
    assert (await run.send("GET", run.path)).status_code == 200


async def test_a_damaged_directory_is_no_unknown_execution(rig: MemoryRig) -> None:
    run = await rig.started()
    for number in range(rig.settings.shards):
        rig.memory_view.shard(number).hash("default", run.execution_id).clear()
    response = await rig.call("GET", run.path)
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
