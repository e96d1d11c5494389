"""K126: a gateway acts for an agent, by a token that the agent minted for one attempt."""

import base64
import hashlib
import hmac
import secrets
import time
from typing import Any

import pytest_asyncio

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, envelope
from tests.conformance.harness.calls import AGENT_ID, Call
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.side_by_side import side_by_side
from tests.support.stack import Stack

DELEGATION = "Rebuno-Delegation"
DAY_SECONDS = 24 * 3600
SKEW_SECONDS = 30
MARGIN_SECONDS = 20


def token_of(lease: Lease, *, secret: str = "", expires_in: float = 60, **changes: Any) -> str:
    """Mint a token as the contract says; `changes` are fields that say something else."""
    fields = {
        "agent_id": lease.agent.id,
        "execution_id": lease.execution_id,
        "dispatch_id": lease.dispatch_id,
        "attempt": lease.attempt,
        "expiry": int(time.time() + expires_in),
    } | changes
    text = "\n".join(str(value) for value in fields.values()).encode()
    key = (secret or lease.agent.secret).encode()
    mac = hmac.new(key, b"rebuno-delegation-v1\n" + text, hashlib.sha256).hexdigest()
    return f"{base64.urlsafe_b64encode(text).rstrip(b'=').decode()}.{mac}"


def delegated(lease: Lease, suffix: str, body: Any, token: str, key: str) -> Call:
    """A request under a lease that a gateway makes: no signature, its own key, and the agent's token."""
    call = lease.call(suffix, body).without_headers("Rebuno-Signature", "Rebuno-Timestamp")
    return call.with_bearer(key).with_headers({DELEGATION: token})


@pytest_asyncio.fixture
async def gateway_key(kernel: Kernel, stack: Stack) -> str:
    body = {"name": "gateway", "scopes": ["steps:delegate"], "tenant": "default"}
    return accepted(await kernel.holding(stack.operator_key).post("/v0/keys", body), 201)["key"]


async def test_k126_a_gateway_submits_records_publishes_and_heartbeats(kernel: Kernel, gateway_key: str) -> None:
    lease = await (await kernel.agent()).acknowledged()
    token = token_of(lease)

    async def send(suffix: str, body: Any) -> Any:
        return await kernel.send(delegated(lease, suffix, body, token, gateway_key))

    decision = accepted(await send("/steps", {"kind": "llm_call", "target": "m", "args": {"model": "m"}}))
    assert decision["decision"] == "proceed"
    step = f"/steps/{decision['step_id']}"
    accepted(await send(f"{step}/stream", {"seq": 0, "data": "x"}), 204)
    accepted(await send("/heartbeat", {}), 204)
    assert accepted(await send(f"{step}/complete", {"result": 1})) == {"decision": "recorded"}
    other = accepted(await send("/steps", {"kind": "llm_call", "target": "m"}))
    assert accepted(await send(f"/steps/{other['step_id']}/fail", {"error": "e"})) == {"decision": "recorded"}
    assert [each["status"] for each in await kernel.steps(lease.execution_id)] == ["succeeded", "failed"]


async def test_k126_it_is_accepted_for_steps_and_heartbeats_alone(kernel: Kernel, gateway_key: str) -> None:
    lease = await (await kernel.agent()).acknowledged()
    token = token_of(lease)
    for suffix, body in (("/complete", {}), ("/fail", {"error": "e"})):
        envelope(await kernel.send(delegated(lease, suffix, body, token, gateway_key)), 401, "unauthorized")
    signed = lease.call("/heartbeat").with_headers({DELEGATION: "x.y"})
    # It falls back to nothing: neither the signature beside it, nor the key of a client, is looked at.
    envelope(await kernel.send(signed), 401, "unauthorized")
    envelope(await kernel.send(signed.with_bearer(gateway_key)), 401, "unauthorized")
    assert (await kernel.execution(lease.execution_id))["status"] == "running"


async def test_k126_a_token_that_says_anything_else_is_refused(kernel: Kernel, gateway_key: str) -> None:
    agent = await kernel.agent()
    lease, other = await agent.acknowledged(), await agent.acknowledged()
    stranger = await (await kernel.agent()).acknowledged()
    good = token_of(lease)
    encoded, _, mac = good.partition(".")
    tokens = {
        "altered text": f"A{encoded[1:]}.{mac}",
        "altered mac": f"{encoded}.{'0' * 64}",
        "padded": f"{encoded}={mac}",
        "no mac": encoded,
        "another secret": token_of(lease, secret=secrets.token_hex(16)),
        "another agent's": token_of(lease, secret=stranger.agent.secret, agent_id=stranger.agent.id),
        "another agent": token_of(lease, agent_id=stranger.agent.id),
        "another execution": token_of(lease, execution_id=other.execution_id),
        "another dispatch": token_of(lease, dispatch_id=other.dispatch_id),
        "another attempt": token_of(lease, attempt=2),
        "no attempt": token_of(lease, attempt=""),
        "expired": token_of(lease, expires_in=-SKEW_SECONDS - MARGIN_SECONDS),
        "too far ahead": token_of(lease, expires_in=DAY_SECONDS + SKEW_SECONDS + MARGIN_SECONDS),
    }
    body = {"kind": "llm_call", "target": "m"}
    for what, token in tokens.items():
        response = await kernel.send(delegated(lease, "/steps", body, token, gateway_key))
        assert response.status_code == 401, what
        assert response.json()["code"] == "unauthorized"
    # A good token with the headers of something else.
    for wrong in (other, lease.but(attempt=2), lease.but(dispatch_id=other.dispatch_id), lease.but(attempt=None)):
        envelope(await kernel.send(delegated(wrong, "/steps", body, good, gateway_key)), 401, "unauthorized")
    named = delegated(lease, "/steps", body, good, gateway_key).with_headers({AGENT_ID: stranger.agent.id})
    envelope(await kernel.send(named), 401, "unauthorized")
    assert await kernel.steps(lease.execution_id) == []
    accepted(await kernel.send(delegated(lease, "/steps", body, good, gateway_key)))


async def test_k126_the_key_needs_the_scope(kernel: Kernel, stack: Stack, gateway_key: str) -> None:
    lease = await (await kernel.agent()).acknowledged()
    others = {"name": "x", "scopes": ["executions:write", "tenant:admin"], "tenant": "default"}
    without = accepted(await kernel.holding(stack.operator_key).post("/v0/keys", others), 201)["key"]
    body = {"kind": "llm_call", "target": "m"}
    envelope(await kernel.send(delegated(lease, "/steps", body, token_of(lease), without)), 403, "forbidden")
    envelope(await kernel.send(delegated(lease, "/steps", body, token_of(lease), "nobody's")), 401, "unauthorized")
    tenant = {"id": f"tenant-{secrets.token_hex(6)}"}
    accepted(await kernel.holding(stack.operator_key).post("/v0/tenants", tenant), 201)
    theirs = {"name": "x", "scopes": ["steps:delegate"], "tenant": tenant["id"]}
    foreign = accepted(await kernel.holding(stack.operator_key).post("/v0/keys", theirs), 201)["key"]
    envelope(await kernel.send(delegated(lease, "/steps", body, token_of(lease), foreign)), 401, "unauthorized")


@side_by_side
async def test_k126_a_token_is_dead_with_its_attempt(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).acknowledged()
    token = token_of(lease)
    await lease.expired()
    # The key of the environment has the scope, too.
    call = delegated(lease, "/steps", {"kind": "llm_call", "target": "m"}, token, kernel.api_key)
    envelope(await kernel.send(call), 409, "lease_superseded")
