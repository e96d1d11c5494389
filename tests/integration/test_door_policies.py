"""Policies through the door: stored and read as sent, for the agents of the caller's tenant alone."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kernel.domain.policy.limits import BUNDLE_BYTES_MAX
from tests.support.door import API_KEY, MemoryRig, Rig, rig_in_memory
from tests.support.tenancy import make_key, make_tenant

DENY = "default_action: deny\n# a remark, é and all\nrules: []\n"
ALLOW = "default_action: allow\n"
NOT_FOUND = b'{"code":"not_found","message":"agent not found"}'


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[MemoryRig]:
    async with rig_in_memory() as rig:
        await rig.register()
        yield rig


async def load(rig: Rig, bundle: Any, agent_id: str = "agent", *, key: str = API_KEY) -> Any:
    return await rig.call("POST", f"/v0/policies/{agent_id}", key=key, json={"bundle": bundle})


async def policy(rig: Rig, agent_id: str = "agent", *, key: str = API_KEY) -> Any:
    response = await rig.call("GET", f"/v0/policies/{agent_id}", key=key)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_bundle_reads_back_as_it_was_sent_under_versions_that_grow(rig: Rig) -> None:
    assert await policy(rig) == {"agent_id": "agent", "bundle": "", "policy_version": 0}
    versions: list[int] = []
    for bundle in (DENY, ALLOW, DENY):
        response = await load(rig, bundle)
        assert (response.status_code, response.content) == (204, b"")
        found = await policy(rig)
        assert found["bundle"] == bundle
        versions.append(found["policy_version"])
        assert (await rig.call("GET", "/v0/agents/agent")).json()["policy_version"] == versions[-1]
    assert versions == sorted(set(versions))
    assert versions[0] > 0


async def test_the_empty_bundle_removes_the_policy(rig: Rig) -> None:
    await load(rig, DENY)
    for _ in range(2):
        assert (await load(rig, "")).status_code == 204
        assert await policy(rig) == {"agent_id": "agent", "bundle": "", "policy_version": 0}
    assert (await rig.call("GET", "/v0/agents/agent")).json()["policy_version"] == 0


async def test_an_agent_that_is_registered_again_keeps_its_policy_and_a_deleted_one_loses_it(rig: Rig) -> None:
    await load(rig, DENY)
    before = await policy(rig)
    await rig.register(max_concurrency=3)
    assert await policy(rig) == before

    assert (await rig.call("DELETE", "/v0/agents/agent")).status_code == 204
    assert (await rig.call("GET", "/v0/policies/agent")).content == NOT_FOUND
    await rig.register()
    assert (await policy(rig))["policy_version"] == 0


@pytest.mark.parametrize("bundle", [None, 1, [], {"default_action": "deny"}, "x" * (BUNDLE_BYTES_MAX + 1)])
async def test_what_is_no_text_of_a_bundle_is_refused_and_the_old_one_stays(rig: Rig, bundle: Any) -> None:
    await load(rig, DENY)
    response = await load(rig, bundle)
    assert (response.status_code, response.json()["details"]) == (400, {"path": "bundle"})
    absent = await rig.call("POST", "/v0/policies/agent", json={})
    assert (absent.status_code, absent.json()["details"]) == (400, {"path": "bundle"})
    assert (await policy(rig))["bundle"] == DENY


@pytest.mark.parametrize(
    ("bundle", "line", "field"),
    [
        ("default_action: maybe\n", 1, "default_action"),
        ("rules:\n- id: a\n  then: {decision: allow}\n- id: a\n  then: {decision: deny}\n", 4, "rules[1].id"),
        ("default_action: deny\ndefault_action: allow\n", 2, "default_action"),
        ("rules: [", 1, "rules"),
    ],
)
async def test_a_bundle_that_cannot_be_loaded_is_told_by_line_and_field_and_the_old_one_stays(
    rig: Rig, bundle: str, line: int, field: str
) -> None:
    await load(rig, DENY)
    before = await policy(rig)

    response = await load(rig, bundle)

    assert (response.status_code, response.json()["code"]) == (400, "validation_error")
    assert response.json()["details"] == {"line": line, "field": field}
    assert await policy(rig) == before
    # Whose agent it is for is asked only of a bundle that could be loaded.
    assert (await load(rig, bundle, "nobody")).content == response.content


async def test_the_size_of_a_bundle_is_counted_in_bytes(rig: Rig) -> None:
    start = "default_action: deny  #"
    fits = start + "é" * ((BUNDLE_BYTES_MAX - len(start)) // 2)
    assert (await load(rig, fits + "éé")).json()["details"] == {"path": "bundle"}
    assert (await load(rig, fits)).status_code == 204


async def test_an_unknown_agent_and_one_of_another_tenant_are_one_answer(rig: Rig) -> None:
    await make_tenant(rig)
    await load(rig, DENY)
    foreign = (await make_key(rig, tenant="acme"))["key"]

    for agent_id in ("agent", "nobody", "%FF", "a%2Fb"):
        for response in (
            await load(rig, ALLOW, agent_id, key=foreign),
            await rig.call("GET", f"/v0/policies/{agent_id}", key=foreign),
        ):
            assert (response.status_code, response.content) == (404, NOT_FOUND), agent_id
    assert (await policy(rig))["bundle"] == DENY


async def test_agents_of_one_id_in_two_tenants_have_policies_of_their_own(rig: Rig) -> None:
    await make_tenant(rig)
    key = (await make_key(rig, tenant="acme"))["key"]
    body = {"id": "agent", "webhook_url": "http://8.8.8.8/", "secret": "a secret of acme's agent"}
    assert (await rig.call("POST", "/v0/agents", key=key, json=body)).status_code == 201

    await load(rig, DENY)
    await load(rig, ALLOW, key=key)

    assert (await policy(rig))["bundle"] == DENY
    assert (await policy(rig, key=key))["bundle"] == ALLOW
    await load(rig, "", key=key)
    assert (await policy(rig))["bundle"] == DENY


async def test_an_agent_id_may_be_escaped_in_the_path(rig: Rig) -> None:
    await rig.register("a:b")
    assert (await load(rig, DENY, "a%3Ab")).status_code == 204
    assert (await policy(rig, "a:b"))["agent_id"] == "a:b"
