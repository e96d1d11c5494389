"""Bundles made of rules, agents that have them, and the calls that find out which rule decides."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

import httpx
from msgspec import UNSET

from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.calls import json_bytes
from tests.conformance.harness.kernel import Kernel

AT_ONCE = 8
ROW = "row"
"""The argument that picks a rule of a bundle with a rule for each row of a table."""
ALLOW, DENY, ASK = "allow", "deny", "require_approval"


def rule(rule_id: str, decision: str, *, when: Any = UNSET, priority: int = 0, **then: Any) -> dict[str, Any]:
    """A rule; `then` are further members of its consequence, such as `reason`."""
    found = {"id": rule_id, "priority": priority, "then": {"decision": decision} | then}
    return found if when is UNSET else found | {"when": when}


def bundle(*rules: dict[str, Any], default: str = DENY) -> str:
    return json.dumps({"default_action": default, "rules": rules}, ensure_ascii=False)


async def load(agent: Agent, text: str) -> int:
    """Load a bundle, and return the version that it got."""
    target = f"/v0/policies/{agent.id}"
    accepted(await agent.kernel.post(target, {"bundle": text}), 204)
    return accepted(await agent.kernel.get(target))["policy_version"]


async def governed(kernel: Kernel, *rules: dict[str, Any], default: str = DENY) -> Agent:
    """An agent of the test's own with a bundle of these rules."""
    agent = await kernel.agent()
    await load(agent, bundle(*rules, default=default))
    return agent


def short(decision: dict[str, Any]) -> tuple[str, str, str | None]:
    """Decision, rule and reason of a StepDecision; None where it gives no reason."""
    return decision["decision"], decision.get("rule_id", ""), decision.get("reason")


async def submit_text(lease: Lease, args: str, *, target: str = "tool") -> httpx.Response:
    """Submit a step whose args are this JSON text to the letter."""
    head = json_bytes({"kind": "tool_call", "target": target})[:-1]
    return await lease.request("/steps", head + f',"args":{args}}}'.encode())


# ---------------------------------------------------------------- a rule for each row of a table


def row_rule(number: int, decision: str, *, when: Any = UNSET, arguments: Any = UNSET) -> dict[str, Any]:
    """The rule of a row: it is asked only about calls that name the row."""
    picked: dict[str, Any] = {ROW: {"equals": number}} | ({} if arguments is UNSET else arguments)
    whole = ({} if when is UNSET else when) | {"arguments": picked}
    return rule(f"row-{number}", decision, when=whole, priority=number)


def row_args(number: int, args: str) -> str:
    """The JSON text of an object with the row's number in front of its members."""
    assert args.startswith("{")
    separator = "" if args == "{}" else ","
    return f'{{"{ROW}":{number}{separator}{args[1:]}'


async def rows_that_match(lease: Lease, calls: Sequence[tuple[str, str]]) -> list[bool]:
    """Submit a call (target, args) for each row, and return which were decided by the rule of their row."""
    waiting = asyncio.Semaphore(AT_ONCE)

    async def is_match(number: int, target: str, args: str) -> bool:
        async with waiting:
            answer = await submit_text(lease, row_args(number, args), target=target)
        decision = accepted(answer)
        assert decision["rule_id"] in {f"row-{number}", "default"}, (target, args, decision)
        return decision["rule_id"] != "default"

    return list(await asyncio.gather(*(is_match(at, target, args) for at, (target, args) in enumerate(calls))))


async def each_blocks(agent: Agent, calls: Iterable[tuple[int, str]]) -> list[int]:
    """Submit each call (row, args) in an execution of its own, and return the rows that were not blocked by theirs."""
    waiting = asyncio.Semaphore(AT_ONCE)

    async def failure(number: int, args: str) -> list[int]:
        async with waiting:
            decision = accepted(await submit_text(await agent.start(), row_args(number, args)))
        return [] if (decision["decision"], decision.get("rule_id")) == ("blocked", f"row-{number}") else [number]

    found = await asyncio.gather(*(failure(number, args) for number, args in calls))
    return [number for each in found for number in each]
