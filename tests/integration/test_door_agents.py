"""Agents through the door: register, rotate, read, delete, describe."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.door import SECRET, WEBHOOK_URL, Rig, Run, rig_in_memory

OTHER_SECRET = "the-secret-of-somebody-else"


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    async with rig_in_memory() as rig:
        yield rig


def body(**members: Any) -> dict[str, Any]:
    return {"id": "a", "webhook_url": WEBHOOK_URL, "secret": SECRET, **members}


async def test_a_new_agent_is_201_a_changed_one_200_and_no_answer_has_the_secret(rig: Rig) -> None:
    created = await rig.call("POST", "/v0/agents", json=body(require_v1=True, max_concurrency=3))
    assert created.status_code == 201
    changed = await rig.call("POST", "/v0/agents", json={"id": "a", "webhook_url": "http://8.8.4.4/x"})
    assert changed.status_code == 200
    agent = changed.json()
    assert (agent["webhook_url"], agent["require_v1"], agent["max_concurrency"]) == ("http://8.8.4.4/x", True, 3)
    assert agent["registered_at"] == created.json()["registered_at"] <= agent["updated_at"]
    assert (agent["policy_version"], agent["description"], agent["input_schema"]) == (0, None, None)
    for path in ("/v0/agents", "/v0/agents/a"):
        response = await rig.call("GET", path)
        assert SECRET not in response.text
        assert response.json() in (agent, [agent])


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"id": ""}, "id"),
        ({"id": "a b"}, "id"),
        ({"id": "é"}, "id"),
        ({"id": "a" * 129}, "id"),
        ({"id": 1}, "id"),
        ({"webhook_url": None}, "webhook_url"),
        ({"webhook_url": ""}, "webhook_url"),
        ({"webhook_url": "ftp://8.8.8.8/"}, "webhook_url"),
        ({"webhook_url": "http://127.0.0.1/"}, "webhook_url"),
        ({"secret": ""}, "secret"),
        ({"secret": "s" * 15}, "secret"),
        ({"secret": 16}, "secret"),
        ({"secret": None}, "secret"),
        ({"next_secret": "s" * 15}, "next_secret"),
        ({"require_v1": "yes"}, "require_v1"),
        ({"require_v1": None}, "require_v1"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": 1.5}, "max_concurrency"),
        ({"max_concurrency": True}, "max_concurrency"),
        ({"max_concurrency": 10**30}, "max_concurrency"),
    ],
)
async def test_a_malformed_agent_is_refused_by_member(rig: Rig, members: dict[str, Any], path: str) -> None:
    response = await rig.call("POST", "/v0/agents", json=body(**members))
    assert (response.status_code, response.json()["details"]) == (400, {"path": path})
    assert (await rig.call("GET", "/v0/agents")).json() == []


async def test_a_new_agent_needs_a_secret_and_a_url(rig: Rig) -> None:
    for missing in ("id", "webhook_url", "secret"):
        members = {name: value for name, value in body().items() if name != missing}
        response = await rig.call("POST", "/v0/agents", json=members)
        assert (response.status_code, response.json()["details"]) == (400, {"path": missing})


async def test_a_secret_has_sixteen_bytes_not_characters(rig: Rig) -> None:
    assert (await rig.call("POST", "/v0/agents", json=body(secret="é" * 8))).status_code == 201


async def test_dev_takes_any_secret_and_loopback_and_nothing_else_that_is_not_public() -> None:
    async with rig_in_memory(mode="dev", api_key="") as rig:
        members = body(secret="s", webhook_url="http://127.0.0.1:9000/hook")
        assert (await rig.call("POST", "/v0/agents", json=members)).status_code == 201
        assert (await rig.call("POST", "/v0/agents", json=body(webhook_url="http://10.0.0.1/"))).status_code == 400


async def test_agents_are_paged_by_id(rig: Rig) -> None:
    ids = ["B", "a.1", "a:2", "b", "c-3"]
    for agent_id in reversed(ids):
        await rig.register(agent_id)
    assert [agent["id"] for agent in (await rig.call("GET", "/v0/agents")).json()] == ids
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        response = await rig.call("GET", "/v0/agents", params={"limit": "2", "cursor": cursor})
        found += [agent["id"] for agent in response.json()]
        cursor = response.headers.get("rebuno-next-cursor")
    assert found == ids
    for query in ("limit=0", "limit=x", "cursor=%20", "cursor=%C3%A9"):
        assert (await rig.call("GET", f"/v0/agents?{query}")).status_code == 400, query


async def test_an_agent_id_may_be_escaped_in_a_path(rig: Rig) -> None:
    await rig.register("a:b")
    for path in ("/v0/agents/a:b", "/v0/agents/a%3Ab", "/v0/agents/%61%3ab"):
        assert (await rig.call("GET", path)).json()["id"] == "a:b", path
    for path in ("/v0/agents/a", "/v0/agents/%FF", "/v0/agents/a%2Fb", "/v0/agents/%"):
        response = await rig.call("GET", path)
        assert (response.status_code, response.json()["message"]) == (404, "agent not found"), path


async def test_an_agent_with_live_executions_stays(rig: Rig) -> None:
    await rig.register()
    execution_id = await rig.create()
    refused = await rig.call("DELETE", "/v0/agents/agent")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    await rig.call("POST", f"/v0/executions/{execution_id}/cancel")
    deleted = await rig.call("DELETE", "/v0/agents/agent")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert (await rig.call("DELETE", "/v0/agents/agent")).status_code == 404
    assert (await rig.call("POST", "/v0/executions", json={"agent_id": "agent"})).status_code == 404
    # What has ended stays readable.
    assert (await rig.call("GET", f"/v0/executions/{execution_id}")).status_code == 200


async def test_an_agent_describes_itself_and_nobody_else(rig: Rig) -> None:
    await rig.register()
    await rig.register("other", secret=OTHER_SECRET)
    run = Run(rig, "", await _any_lease(rig))
    described = {"description": "does things", "input_schema": {"b": 1.0, "a": 2}, "output_schema": {}}
    assert (await run.send("PUT", "/v0/agents/agent/metadata", described)).status_code == 204
    agent = (await rig.call("GET", "/v0/agents/agent")).json()
    assert {name: agent[name] for name in described} == described
    foreign = await run.send("PUT", "/v0/agents/other/metadata", described)
    assert (foreign.status_code, foreign.json()["message"]) == (404, "agent not found")
    # The policy, the URL and the rest stay; the three members are replaced together.
    assert (await run.send("PUT", "/v0/agents/agent/metadata", {"description": ""})).status_code == 204
    agent = (await rig.call("GET", "/v0/agents/agent")).json()
    assert (agent["description"], agent["input_schema"], agent["output_schema"]) == (None, None, None)
    assert agent["webhook_url"] == WEBHOOK_URL


@pytest.mark.parametrize(
    "members", [{"description": 1}, {"input_schema": 1}, {"input_schema": []}, {"output_schema": "x"}]
)
async def test_malformed_metadata_is_refused_by_member(rig: Rig, members: dict[str, Any]) -> None:
    await rig.register()
    run = Run(rig, "", await _any_lease(rig))
    response = await run.send("PUT", "/v0/agents/agent/metadata", members)
    assert (response.status_code, response.json()["details"]) == (400, {"path": next(iter(members))})


async def test_metadata_too_large_for_the_control_stream_is_413(rig: Rig) -> None:
    await rig.register()
    run = Run(rig, "", await _any_lease(rig))
    response = await run.send("PUT", "/v0/agents/agent/metadata", {"description": "x" * 2_000_000})
    assert (response.status_code, response.json()["code"]) == (413, "payload_too_large")


async def _any_lease(rig: Rig) -> Any:
    """A lease to sign with on routes that do not look at it."""
    return (await rig.started()).lease
