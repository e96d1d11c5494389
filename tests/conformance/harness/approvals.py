"""Agents whose policy wants an approval for a call, and what a test does with the approvals that come of it."""

import json
import secrets
from collections.abc import Iterable
from typing import Any

import httpx
from msgspec import UNSET

from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.calls import KEY, JsonOrUnset
from tests.conformance.harness.kernel import Kernel, connected

TARGET = "transfer"
RULE = "ask-first"
WINNER = ("status", "decided_by", "decided_at")


def bundle_of(**config: Any) -> str:
    """A bundle that allows everything, and `TARGET` after an approval as the configuration says."""
    then = {"decision": "require_approval", "approval_config": config}
    rule = {"id": RULE, "when": {"target": TARGET}, "then": then}
    return json.dumps({"default_action": "allow", "rules": [rule]})


async def asking_agent(kernel: Kernel, **config: Any) -> Agent:
    """An agent of the test's own, whose `TARGET` has to be approved; `config` is the rule's `approval_config`."""
    agent = await kernel.agent()
    accepted(await kernel.post(f"/v0/policies/{agent.id}", {"bundle": bundle_of(**config)}), 204)
    return agent


class Approval:
    """An approval that a submission asked for."""

    def __init__(self, lease: Lease, decision: dict[str, Any]) -> None:
        self.lease = lease
        self.kernel = lease.kernel
        self.execution_id = lease.execution_id
        self.decision = decision
        self.id: str = decision["approval_id"]
        self.step_id: str = decision["step_id"]
        self.path = f"/v0/approvals/{self.id}"

    async def read(self) -> dict[str, Any]:
        return accepted(await self.kernel.get(self.path))

    async def decide(
        self, verb: str, body: JsonOrUnset = UNSET, *, key: str | None = None, by: Kernel | None = None
    ) -> httpx.Response:
        """`grant` or `deny` it, with the key of the test or of another access."""
        headers = {} if key is None else {KEY: key}
        return await (by or self.kernel).post(f"{self.path}/{verb}", body, headers=headers)

    async def grant(self, body: JsonOrUnset = UNSET, **options: Any) -> httpx.Response:
        return await self.decide("grant", body, **options)

    async def deny(self, body: JsonOrUnset = UNSET, **options: Any) -> httpx.Response:
        return await self.decide("deny", body, **options)

    async def next_lease(self, *, deadline_seconds: float = 10.0) -> Lease:
        """The lease of the dispatch that follows the decision: the agent's next webhook for the execution."""
        endpoint = self.lease.agent.endpoint
        number = 1 + next(
            at
            for at, each in enumerate(endpoint.of(self.execution_id), start=1)
            if (each.dispatch_id, each.attempt) == (self.lease.dispatch_id, self.lease.attempt)
        )
        lease = await self.lease.agent.lease(self.execution_id, number=number, deadline_seconds=deadline_seconds)
        assert lease.dispatch_id != self.lease.dispatch_id
        assert lease.attempt == 1
        return lease

    async def trace(self) -> tuple[Any, ...]:
        """Everything that a refused decision must leave as it was."""
        return (await self.read(), *await self.kernel.trace(self.execution_id))


async def blocked(lease: Lease, args: JsonOrUnset = UNSET, **options: Any) -> Approval:
    """Submit the call that has to be approved, under a lease."""
    decision = await lease.decide(TARGET, args, **options)
    assert decision["decision"] == "blocked", decision
    return Approval(lease, decision)


async def asked(kernel: Kernel, **config: Any) -> Approval:
    """A fresh execution that waits for an approval; no event comes by itself but the one of its timeout."""
    agent = await asking_agent(kernel, **config)
    return await blocked(await agent.acknowledged())


async def principal(kernel: Kernel, *scopes: str, name: str = "") -> tuple[str, Kernel]:
    """A key of the test's own with these scopes: its principal's name, and the access that it gives."""
    name = name or f"person-{secrets.token_hex(4)}"
    made = accepted(await kernel.post("/v0/keys", {"name": name, "scopes": list(scopes)}), 201)
    access = await kernel.also(connected(kernel.url, made["key"]))
    return name, access


def in_short(events: Iterable[dict[str, Any]], *members: str) -> list[tuple[Any, ...]]:
    """Type and some members of the payload of every event; None where a payload has no such member."""
    return [(event["type"], *(event["payload"].get(member) for member in members)) for event in events]
