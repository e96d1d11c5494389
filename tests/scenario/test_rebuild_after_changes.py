"""A view that is lost after policies, keys and quotas have changed comes back as it was: a recorded step keeps the rule
and the version that judged it, whatever holds by now.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import redis

from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.approvals import TARGET as ASKED
from tests.conformance.harness.approvals import Approval, blocked
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.policy import ALLOW, ASK, DENY, bundle, load, rule
from tests.conformance.harness.stacks import SETTINGS
from tests.scenario.test_guarantees import settled_dump
from tests.support.stack import Stack

LEASE_SECONDS = 120
TOKENS_MAX = 100
LIMITED, MODEL = "limited", "model"
_HOUR = "1h"
_CONFIG = {"approvers": ["decider"], "timeout": _HOUR, "message": "look at it"}
_LIMIT = rule("limit", ALLOW, when={"target": LIMITED}, priority=1, rate_limit={"max_calls": 1, "window": _HOUR})
_LIMIT_OF_AGENT = rule(
    "shared", ALLOW, when={"target": LIMITED}, rate_limit={"max_calls": 1, "window": _HOUR, "per_what": "agent"}
)
_BUDGET = rule(
    "budget", ALLOW, when={"step_kind": "llm_call"}, priority=2, token_budget={"max_total_tokens": TOKENS_MAX}
)


class Change(msgspec.Struct, frozen=True):
    """A bundle, and what it answers: decision and rule by what is called."""

    bundle: str
    answers: tuple[tuple[str, str, str], ...]


CHANGES = (
    Change(bundle(rule("open", ALLOW)), (("tool", "proceed", "open"),)),
    Change(bundle(rule("shut", DENY, reason="not_today"), default=ALLOW), (("tool", "denied", "shut"),)),
    Change(bundle(rule("ask", ASK, when={"target": ASKED}, approval_config=_CONFIG)), ((ASKED, "granted", "ask"),)),
    Change(bundle(_LIMIT), ((LIMITED, "proceed", "limit"), (LIMITED, "rate_limited", "limit"))),
    Change(bundle(_LIMIT_OF_AGENT), ((LIMITED, "proceed", "shared"), (LIMITED, "rate_limited", "shared"))),
    Change(bundle(_BUDGET), ((MODEL, "proceed", "budget"), (MODEL, "denied", "budget"))),
    Change(bundle(default=DENY), (("tool", "denied", "default"), ("local", "proceed", "local"))),
    Change("", (("tool", "proceed", "permissive"),)),
    Change(bundle(rule("ask-again", ASK, when={"target": ASKED})), ((ASKED, "denied", "ask-again"),)),
    Change(
        bundle(_LIMIT, _BUDGET, rule("ask-last", ASK, when={"target": ASKED}, approval_config=_CONFIG)),
        ((LIMITED, "rate_limited", "limit"), (MODEL, "denied", "budget")),
    ),
)


class Worked(msgspec.Struct, frozen=True):
    """An execution that has lived through all of the changes."""

    lease: Lease
    recorded: list[tuple[str, int]]
    """Rule and policy version of its steps, in their order."""


async def test_a_view_that_is_rebuilt_after_policy_changes_revocations_and_a_quota_change_is_the_same(
    new_stack: Callable[..., Stack],
) -> None:
    stack = new_stack(processes="apart", lease_seconds=LEASE_SECONDS, settings=SETTINGS)
    async with connected(stack.url, stack.api_key, operator_key=stack.operator_key) as kernel:
        operator = kernel.holding(stack.operator_key)
        agent = await kernel.agent()
        creator_id, creator = await _holder(kernel, "creator", "executions:write")
        decider_id, decider = await _holder(kernel, "decider", "approvals:decide")
        created = accepted(await creator.create(agent.id), 201)["id"]
        theirs = await agent.lease(created)

        # Half of the changes, a revocation and a new quota; the other half, and the second revocation.
        worked = Worked(await agent.acknowledged(), [])
        worked = await _through(worked, CHANGES[:5], decider)
        await _revoked(kernel, creator_id, creator)
        quotas = {"live_executions": 1000, "bytes_per_day": 10**9}
        accepted(await operator.post("/v0/tenants", {"id": "default", "quotas": quotas}))
        worked = await _through(worked, CHANGES[5:], decider)
        await _revoked(kernel, decider_id, decider)
        # One execution is left waiting for an approval, under the last policy.
        pending = await blocked(theirs)
        executions = [worked.lease.execution_id, created]
        before = await _read(kernel, operator, agent, executions)
        assert [(step["rule_id"], step["policy_version"]) for step in before[0][1]] == worked.recorded
        dump = await _view(stack)

        with redis.Redis.from_url(stack.valkey.url) as client:
            client.flushall()

        assert await _read(kernel, operator, agent, executions) == before
        assert await _view(stack) == dump
        await _goes_on(worked, pending, decider)


async def _goes_on(worked: Worked, pending: Approval, decider: Kernel) -> None:
    """What was used up is used up, what is pending can be decided, and who was revoked is still nobody."""
    for target, decision in ((LIMITED, "rate_limited"), (MODEL, "denied")):
        assert (await _decide(worked.lease, target, {"after": "the rebuild"}))["decision"] == decision
    assert (await pending.grant(by=decider)).status_code == 401
    assert (await pending.read())["status"] == "pending"
    # The key of the environment is no approver of the rule, and the rule is part of what came back.
    assert (await pending.grant()).status_code == 403


async def _holder(kernel: Kernel, name: str, *scopes: str) -> tuple[str, Kernel]:
    made = accepted(await kernel.post("/v0/keys", {"name": name, "scopes": list(scopes)}), 201)
    return made["id"], kernel.holding(made["key"])


async def _revoked(kernel: Kernel, key_id: str, holder: Kernel) -> None:
    accepted(await kernel.request("DELETE", f"/v0/keys/{key_id}"), 204)
    assert (await holder.get("/v0/approvals")).status_code == 401


async def _through(worked: Worked, changes: tuple[Change, ...], decider: Kernel) -> Worked:
    """Load each bundle and make its calls, each of which is a step of its own."""
    lease, recorded = worked.lease, list(worked.recorded)
    for change in changes:
        version = await load(lease.agent, change.bundle)
        for target, expected, rule_id in change.answers:
            args = {"change": CHANGES.index(change), "call": len(recorded)}
            found = await _decide(lease, target, args)
            assert found["rule_id"] == rule_id
            if expected != "rate_limited":
                recorded.append((rule_id, version))
            if found["decision"] == "blocked":
                lease, found = await _decided(Approval(lease, found), args, expected, decider)
            assert found["decision"] == ("proceed" if expected == "granted" else expected), (target, found)
            if found["decision"] == "proceed":
                usage: dict[str, Any] = {"usage": {"total_tokens": TOKENS_MAX}} if target == MODEL else {}
                accepted(await lease.complete(found["step_id"], {"of": args}, **usage))
    return Worked(lease, recorded)


async def _decide(lease: Lease, target: str, args: Any) -> dict[str, Any]:
    kind = {MODEL: "llm_call", "local": "local"}.get(target, "tool_call")
    return await lease.decide(target, args, kind=kind)


async def _decided(approval: Approval, args: Any, expected: str, decider: Kernel) -> tuple[Lease, dict[str, Any]]:
    """Decide it as expected, and let the dispatch that follows submit the step again."""
    verb = "grant" if expected == "granted" else "deny"
    accepted(await approval.decide(verb, {"rationale": "seen"}, by=decider), 204)
    lease = await approval.next_lease()
    await lease.kernel.wait_for_event(lease.execution_id, "dispatch.acked", count=_dispatches_of(lease))
    return lease, await lease.decide(ASKED, args)


def _dispatches_of(lease: Lease) -> int:
    return len(lease.agent.endpoint.of(lease.execution_id))


async def _read(kernel: Kernel, operator: Kernel, agent: Agent, execution_ids: list[str]) -> list[Any]:
    """What clients read: the executions with their steps and events first, then all that has changed around them."""
    read: list[Any] = [await kernel.trace(each) for each in execution_ids]
    targets = ("/v0/executions", "/v0/approvals?status=all", "/v0/agents", f"/v0/policies/{agent.id}", "/v0/keys")
    read += [accepted(await kernel.get(target)) for target in targets]
    return [*read, accepted(await operator.get("/v0/tenants"))]


async def _view(stack: Stack) -> dict[str, object]:
    """The view, less the buckets of agents and tenants, which are in Redis alone and start full again."""
    dump = await asyncio.wait_for(settled_dump(stack), timeout=30)
    return {key: contents for key, contents in dump.items() if not key.startswith("{t:")}
