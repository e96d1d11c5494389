"""Case P6 for changes: every entry of the control stream names who made it, as the credential says and not the request.

Dropped: the id of the key. The record names principals, as the deciders of the contract are; keys are listed by name.
"""

from typing import Any

import pytest

from kernel.control.state import read_control_entry
from kernel.door.routes import ROUTES
from schemas.control import AnyControlEntry
from tests.support.door import OPERATOR_KEY, WEBHOOK_URL, MemoryRig, Run, rig_in_memory
from tests.support.tenancy import make_key, make_tenant

NAME = "ann of the platform"
SAID = {"by": "somebody else", "principal": "somebody else", "changed_by": "somebody else"}
AGENT = {"id": "agent", "webhook_url": WEBHOOK_URL, "secret": "s" * 16}
CHANGES: dict[str, Any] = {
    "register_agent": AGENT,
    "load_policy": {"bundle": "default_action: deny"},
    "create_key": {"name": "other", "scopes": ["executions:read"]},
    "revoke_key": None,
    "delete_agent": None,
    "put_tenant": {"id": "acme", "quotas": {"live_executions": 1}},
}
READS = frozenset({"GET"})


async def entries_after(rig: MemoryRig, seq: int) -> list[AnyControlEntry]:
    return [read_control_entry(message) for message in await rig.memory_log.read_control(after_seq=seq)]


@pytest.mark.parametrize("operation", CHANGES)
async def test_a_change_is_recorded_under_the_name_of_the_key_that_made_it(operation: str) -> None:
    async with rig_in_memory() as rig:
        await rig.register()
        await make_tenant(rig)
        scopes = ("agents:admin", "policies:admin", "tenant:admin")
        key = (await make_key(rig, *(("operator",) if operation == "put_tenant" else scopes), name=NAME))["key"]
        revoked = (await make_key(rig, "audit:read"))["id"]
        (route,) = [each for each in ROUTES if each.operation == operation]
        target = route.path.format_map({"agent_id": "agent", "key_id": revoked})
        before = await rig.memory_log.control_head()

        body = None if CHANGES[operation] is None else CHANGES[operation] | SAID
        response = await rig.call(route.method, target, key=key, json=body)

        assert response.is_success, response.text
        assert [entry.by for entry in await entries_after(rig, before)] == [NAME]


async def test_an_agents_change_is_recorded_under_its_id_and_one_of_the_environments_key_under_its_principal() -> None:
    async with rig_in_memory() as rig:
        await rig.register()
        run: Run = await rig.started()
        before = await rig.memory_log.control_head()

        assert (await run.send("PUT", "/v0/agents/agent/metadata", {"description": "d"} | SAID)).status_code == 204
        assert (await rig.call("POST", "/v0/agents", json=AGENT | SAID)).status_code == 200
        assert (await rig.call("POST", "/v0/tenants", key=OPERATOR_KEY, json={"id": "t"} | SAID)).status_code == 201

        assert [entry.by for entry in await entries_after(rig, before)] == ["agent", "api", "operator"]


def test_every_route_that_changes_the_control_stream_is_in_the_table() -> None:
    """A new one has to be added to it, and shown to name whoever used it."""
    in_the_log = {route.operation for route in ROUTES if "execution" in route.path or "approval" in route.path}
    changes = {route.operation for route in ROUTES if route.is_built and route.method not in READS} - in_the_log
    assert changes == set(CHANGES) | {"describe_agent"}
