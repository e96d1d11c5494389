"""K90, K123 to K125: policies as they are kept, rotation of secrets, changes that hold everywhere soon, start-up."""

import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.calls import SIGNATURE, sha256_signature
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.stacks import SETTINGS
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

EVERYWHERE_SECONDS = 1.0
DENY, ALLOW = "default_action: deny\nrules: []\n", "default_action: allow\nrules: []\n"

# ---------------------------------------------------------------- policies and secrets


async def test_k90_a_bundle_is_kept_as_sent_and_stays_when_the_agent_is_registered_again(kernel: Kernel) -> None:
    agent = await kernel.agent()
    target = f"/v0/policies/{agent.id}"
    assert accepted(await kernel.get(target)) == {"agent_id": agent.id, "bundle": "", "policy_version": 0}

    versions: list[int] = []
    for bundle in (DENY, ALLOW):
        accepted(await kernel.post(target, {"bundle": bundle}), 204)
        found = accepted(await kernel.get(target))
        assert found["bundle"] == bundle
        versions.append(found["policy_version"])
    assert 0 < versions[0] < versions[1]

    accepted(await kernel.post("/v0/agents", {"id": agent.id, "webhook_url": agent.endpoint.url}))
    accepted(await kernel.post("/v0/agents", {"id": agent.id, "webhook_url": agent.endpoint.url, "secret": "s" * 16}))
    assert accepted(await kernel.get(target)) == {
        "agent_id": agent.id,
        "bundle": ALLOW,
        "policy_version": versions[1],
    }
    assert accepted(await kernel.get(f"/v0/agents/{agent.id}"))["policy_version"] == versions[1]
    accepted(await kernel.post(target, {"bundle": ""}), 204)
    assert accepted(await kernel.get(target))["policy_version"] == 0


async def test_k123_both_secrets_verify_until_the_next_one_is_promoted(kernel: Kernel) -> None:
    agent = await kernel.agent()
    old, new = agent.secret, f"new-{agent.secret}"
    body = {"id": agent.id, "webhook_url": agent.endpoint.url}
    accepted(await kernel.post("/v0/agents", body | {"next_secret": new}))
    lease = await agent.start()

    for secret in (old, new):
        for scheme in ("v1", "sha256"):
            assert await _heartbeat(lease, secret, scheme) == 204
    assert await _heartbeat(lease, f"{old}-not", "v1") == 401
    assert await _signer_of_webhook(agent, lease.execution_id, old, new) == old

    accepted(await kernel.post("/v0/agents", body | {"secret": new}))
    assert await _heartbeat(lease, new, "v1") == 204
    for scheme in ("v1", "sha256"):
        assert await _heartbeat(lease, old, scheme) == 401
    agent.secret = new
    later = await agent.start()
    assert await _signer_of_webhook(agent, later.execution_id, old, new) == new


async def _heartbeat(lease: Lease, secret: str, scheme: str) -> int:
    call = lease.call("/heartbeat").without_headers(SIGNATURE)
    return (await lease.kernel.send(call.signed(lease.agent.id, secret, scheme=scheme))).status_code


async def _signer_of_webhook(agent: Agent, execution_id: str, *candidates: str) -> str:
    delivery = await agent.delivery(execution_id)
    found = [each for each in candidates if sha256_signature(each, delivery.raw_body) == _signature(delivery.headers)]
    assert len(found) == 1
    return found[0]


def _signature(headers: dict[str, str]) -> str:
    return headers["rebuno-signature"]


# ---------------------------------------------------------------- everywhere within a second


@pytest.fixture
def doors(new_stack: Callable[..., Stack]) -> Stack:
    """Two doors that share nothing but the servers."""
    return new_stack(processes="apart", doors=2, settings=SETTINGS)


@pytest.mark.alone
async def test_k124_a_change_through_one_door_holds_there_at_once_and_at_the_other_within_a_second(
    doors: Stack,
) -> None:
    async with AsyncExitStack() as closing:
        here, there = [await closing.enter_async_context(connected(url, doors.api_key)) for url in doors.urls]
        operators = [here.holding(doors.operator_key), there.holding(doors.operator_key)]
        tenant = f"tenant-{secrets.token_hex(6)}"
        await _changed(operators, "POST", "/v0/tenants", {"id": tenant, "quotas": {"live_executions": 7}}, _quota_of(7))
        await _changed(operators, "POST", "/v0/tenants", {"id": tenant, "quotas": {"live_executions": 8}}, _quota_of(8))

        key = {"name": "ci", "scopes": ["executions:read"]}
        made = accepted(await operators[0].post("/v0/keys", key | {"tenant": tenant}), 201)
        holders = [here.holding(made["key"]), there.holding(made["key"])]
        await _holds(holders, _answers("/v0/executions", 200))

        agent = await here.agent()
        await _holds([here, there], _answers(f"/v0/agents/{agent.id}", 200))
        for bundle in (DENY, ALLOW, ""):
            target = f"/v0/policies/{agent.id}"
            await _changed([here, there], "POST", target, {"bundle": bundle}, _has_bundle(target, bundle))

        accepted(await operators[0].request("DELETE", f"/v0/keys/{made['id']}"), 204)
        await _holds(holders, _answers("/v0/executions", 401))
        accepted(await here.request("DELETE", f"/v0/agents/{agent.id}"), 204)
        await _holds([here, there], _answers(f"/v0/agents/{agent.id}", 404))


Holds = Callable[[Kernel], Any]


async def _changed(kernels: list[Kernel], method: str, target: str, body: Any, holds: Holds) -> None:
    assert (await kernels[0].request(method, target, body)).status_code in {200, 201, 204}
    await _holds(kernels, holds)


async def _holds(kernels: list[Kernel], holds: Holds) -> None:
    """At the first door now, at the second within a second of now."""
    here, there = kernels
    assert await holds(here)
    await wait_until_async(lambda: holds(there), "the other door to know", deadline_seconds=EVERYWHERE_SECONDS)


def _answers(target: str, status: int) -> Holds:
    async def holds(kernel: Kernel) -> bool:
        return (await kernel.get(target)).status_code == status

    return holds


def _quota_of(number: int) -> Holds:
    async def holds(kernel: Kernel) -> bool:
        tenants = accepted(await kernel.get("/v0/tenants"))
        return [each for each in tenants if each["quotas"] == {"live_executions": number}] != []

    return holds


def _has_bundle(target: str, bundle: str) -> Holds:
    async def holds(kernel: Kernel) -> bool:
        return accepted(await kernel.get(target))["bundle"] == bundle

    return holds


# ---------------------------------------------------------------- start-up


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (("STEPWELL_API_KEY", "STEPWELL_OPERATOR_KEY"), "set STEPWELL_API_KEY"),
        (("STEPWELL_MASTER_KEY",), "STEPWELL_MASTER_KEY .any text of 16 bytes or more"),
    ],
)
@pytest.mark.parametrize("processes", ["one", "apart"])
def test_k125_what_serves_http_does_not_start_without_a_key_or_a_master_key(
    processes: Any, missing: tuple[str, ...], said: str
) -> None:
    with pytest.raises(AssertionError, match=f"(?s)ended with 2 .*stepwell: the start needs .*{said}"):
        Stack.start(processes=processes, settings=dict.fromkeys(missing, "")).stop()


def test_k125_a_key_in_the_record_is_key_enough(new_stack: Callable[..., Stack]) -> None:
    stack = new_stack()
    with httpx.Client(base_url=stack.url, trust_env=False, timeout=30) as client:
        key = {"name": "first", "scopes": ["executions:read"]}
        made = client.post("/v0/keys", json=key, headers={"Authorization": f"Bearer {stack.api_key}"}).json()
        stack.processes["server"].unset("STEPWELL_API_KEY", "STEPWELL_OPERATOR_KEY")

        stack.restart("server")

        for bearer, status in ((made["key"], 200), (stack.api_key, 401)):
            headers = {"Authorization": f"Bearer {bearer}"}
            assert client.get("/v0/executions", headers=headers).status_code == status
