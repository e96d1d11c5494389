"""K81, K87 to K90: which rule decides, what is not loadable, what holds without a bundle, and bundles that change."""

import secrets
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.harness.agent import Agent
from tests.conformance.harness.answers import accepted, details, envelope
from tests.conformance.harness.approvals import Approval
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.policy import ALLOW, ASK, DENY, bundle, governed, load, rule, short
from tests.conformance.harness.stacks import SETTINGS, Mode, Stacks
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

EVERYWHERE_SECONDS = 1.0
NO_POLICY = ("denied", "no_policy", "no_policy")


async def decided(agent: Agent, *targets: str, kind: str = "tool_call") -> list[tuple[str, str, str | None]]:
    """Decision, rule and reason of these calls, in a fresh execution."""
    lease = await agent.start()
    return [short(await lease.decide(target, kind=kind)) for target in targets]


# ---------------------------------------------------------------- which rule


async def test_k81_the_rule_that_matches_decides_and_its_id_and_version_are_on_the_event(kernel: Kernel) -> None:
    agent = await kernel.agent()
    text = bundle(
        rule("reads", ALLOW, when={"target": "fs.read*"}),
        rule("no-reason", DENY, when={"target": "fs.write"}, priority=1),
        rule("a-reason", DENY, when={"target": "rm"}, priority=2, reason="not on a Friday, é"),
        rule("asks", ASK, when={"target": "pay"}, priority=3),
    )
    version = await load(agent, text)
    lease = await agent.start()
    wanted = {
        "fs.read": ("proceed", "reads", None),
        "other": ("denied", "default", "policy_denied"),
        "fs.write": ("denied", "no-reason", "policy_denied"),
        "rm": ("denied", "a-reason", "not on a Friday, é"),
        "pay": ("blocked", "asks", None),
    }
    events = {"proceed": "step.allowed", "denied": "step.denied", "blocked": "step.awaiting_approval"}

    for target, (decision, rule_id, reason) in wanted.items():
        answer = await lease.decide(target)
        assert short(answer) == (decision, rule_id, reason), target
        found = await kernel.events(lease.execution_id)
        judged = [
            each["payload"]
            for each in found
            if each["type"] == events[decision] and each["payload"]["step_id"] == answer["step_id"]
        ]
        assert [(each["rule_id"], each["policy_version"]) for each in judged] == [(rule_id, version)], target
        step = await kernel.step(lease.execution_id, answer["step_id"])
        assert (step["error"] or {}).get("reason") == reason


async def test_k81_the_lowest_priority_is_tried_first_and_every_part_must_hold(kernel: Kernel) -> None:
    agent = await kernel.agent()
    name = agent.id
    parts = {"target": "x*", "targets": ["*y", "*z"], "agent_id": name, "agent_ids": ["other", name]}
    parts |= {"step_kind": "llm_call", "arguments": {"n": {"gte": 1, "lt": 3}, "s": {"exists": True}}}
    text = bundle(
        rule("late", ALLOW, priority=9),
        rule("others", DENY, when={"agent_id": f"{name}-"}, priority=1),
        rule("all-parts", DENY, when=parts, priority=2),
        rule("cased", DENY, when={"agent_ids": [name.upper()]}, priority=3),
        rule("empty", DENY, when={}, priority=10),
        default=DENY,
    )
    await load(agent, text)
    lease = await agent.start()
    args = {"n": 2, "s": None}

    async def rule_of(target: Any = "xy", args: Any = args, kind: Any = "llm_call") -> str:
        return (await lease.decide(target, args, kind=kind))["rule_id"]

    assert await rule_of() == "all-parts"
    for other in ({"target": "ay"}, {"target": "xa"}, {"kind": "tool_call"}, {"args": {"n": 3, "s": 1}}):
        assert await rule_of(**other) == "late", other
    for missing in ({"n": 2}, {"s": 1}, {"n": 0, "s": 1}):
        assert await rule_of(args=missing) == "late", missing


async def test_k81_a_bundle_without_rules_is_its_default(kernel: Kernel) -> None:
    agent = await kernel.agent()
    for text, wanted in (
        ("rules: []", ("denied", "default", "policy_denied")),
        ("{}", ("denied", "default", "policy_denied")),
        ("default_action: allow", ("proceed", "default", None)),
    ):
        await load(agent, text)
        assert await decided(agent, "tool") == [wanted]


# ---------------------------------------------------------------- what is not loadable

_FIRST = "rules:\n- {id: a, then: {decision: allow}}\n"


def _when(part: str) -> str:
    return f"{_FIRST}- id: b\n  priority: 1\n  then: {{decision: deny}}\n  when: {{{part}}}\n"


def _then(part: str) -> str:
    return f"{_FIRST}- id: b\n  priority: 1\n  then: {{decision: deny, {part}}}\n"


# A bundle, and the line and the field that the refusal names.
UNLOADABLE = [
    ("rules: [", 1, "rules"),
    ("rules: []\n---\nrules: []\n", 2, "rules"),
    ("default_action: &a deny\n", 1, "default_action"),
    ("rules:\n- *a\n", 2, "rules[0]"),
    ("rules: !!seq []\n", 1, "rules"),
    ("default_action: deny\ndefault_action: deny\n", 2, "default_action"),
    ('{"rules": [],\n "rules": []}', 2, "rules"),
    ("rules:\n- id: r\n  then: {decision: deny,\n    decision: allow}\n", 4, "rules[0].then.decision"),
    (_when("target: a, target: b"), 6, "rules[1].when.target"),
    ("rule: []\n", 1, "rule"),
    ("default_action: maybe\n", 1, "default_action"),
    ("default_action: require_approval\n", 1, "default_action"),
    ("rules:\n- then: {decision: deny}\n", 2, "rules[0]"),
    (_FIRST + "- id: a\n  priority: 1\n  then: {decision: deny}\n", 3, "rules[1].id"),
    (_FIRST + "- id: b\n  then: {decision: deny}\n  priority: 0\n", 5, "rules[1].priority"),
    (_FIRST + "- id: b\n  priority: -1\n  then: {decision: deny}\n", 4, "rules[1].priority"),
    (_FIRST + "- id: b\n  priority: 1\n  then: {decision: block}\n", 5, "rules[1].then.decision"),
    (_FIRST + "- id: b\n  priority: 1\n  then: {}\n", 5, "rules[1].then"),
    (_FIRST + "- id: b\n  prio: 1\n  then: {decision: deny}\n", 4, "rules[1].prio"),
    (_when("targt: x"), 6, "rules[1].when.targt"),
    (_when("target: 1"), 6, "rules[1].when.target"),
    (_when("target: '[z-a]'"), 6, "rules[1].when.target"),
    (_when("targets: []"), 6, "rules[1].when.targets"),
    (_when("agent_ids: []"), 6, "rules[1].when.agent_ids"),
    (_when("step_kind: tool"), 6, "rules[1].when.step_kind"),
    (_when("arguments: {}"), 6, "rules[1].when.arguments"),
    (_when("arguments: {x: {}}"), 6, "rules[1].when.arguments.x"),
    (_when("arguments: {x: {eq: 1}}"), 6, "rules[1].when.arguments.x.eq"),
    (_when("arguments: {x: {one_of: []}}"), 6, "rules[1].when.arguments.x.one_of"),
    (_when("arguments: {x: {not_one_of: a}}"), 6, "rules[1].when.arguments.x.not_one_of"),
    (_when("arguments: {x: {gt: '1'}}"), 6, "rules[1].when.arguments.x.gt"),
    (_when("arguments: {x: {lte: null}}"), 6, "rules[1].when.arguments.x.lte"),
    (_when("arguments: {x: {exists: yes}}"), 6, "rules[1].when.arguments.x.exists"),
    (_when("arguments: {x: {contains: 1}}"), 6, "rules[1].when.arguments.x.contains"),
    (_when("arguments: {x: {regex: '(?=a)'}}"), 6, "rules[1].when.arguments.x.regex"),
    (_then("reasons: x"), 5, "rules[1].then.reasons"),
    (_then("approval_config: {timeout: soon}"), 5, "rules[1].then.approval_config.timeout"),
    (_then("approval_config: {timeout: 1:30}"), 5, "rules[1].then.approval_config.timeout"),
    (_then("approval_config: {timeout: 0s}"), 5, "rules[1].then.approval_config.timeout"),
    (_then("approval_config: {approvers: []}"), 5, "rules[1].then.approval_config.approvers"),
    (_then("approval_config: {separate_requester: yes}"), 5, "rules[1].then.approval_config.separate_requester"),
    (_then("rate_limit: {max_calls: 1}"), 5, "rules[1].then.rate_limit"),
    (_then("rate_limit: {max_calls: 0, window: 1s}"), 5, "rules[1].then.rate_limit.max_calls"),
    (_then("rate_limit: {max_calls: 1, window: 0}"), 5, "rules[1].then.rate_limit.window"),
    (_then("rate_limit: {max_calls: 1, window: 1d}"), 5, "rules[1].then.rate_limit.window"),
    (_then("rate_limit: {max_calls: 1, window: 1s, per_what: all}"), 5, "rules[1].then.rate_limit.per_what"),
    (
        _then("rate_limit: {max_calls: 1, window: 1, on_limiter_error: x}"),
        5,
        "rules[1].then.rate_limit.on_limiter_error",
    ),
    (_then("token_budget: {max_total_tokens: 0}"), 5, "rules[1].then.token_budget.max_total_tokens"),
]


async def test_k87_what_is_not_loadable_is_told_by_line_and_field_and_the_old_bundle_decides(kernel: Kernel) -> None:
    agent = await governed(kernel, rule("old", ALLOW, when={"target": "old"}))
    target = f"/v0/policies/{agent.id}"
    before = accepted(await kernel.get(target))

    for text, line, field in UNLOADABLE:
        answer = await kernel.post(target, {"bundle": text})
        assert details(answer, 400, "validation_error") == {"line": line, "field": field}, text
    assert details(await kernel.post(target, {"bundle": "#" * (256 * 1024 + 1)}), 400) == {"path": "bundle"}

    assert accepted(await kernel.get(target)) == before
    wanted = [("proceed", "old", None), ("denied", "default", "policy_denied")]
    assert await decided(agent, "old", "new") == wanted


async def test_k87_plain_scalars_are_read_as_yaml_1_2_does(kernel: Kernel) -> None:
    agent = await kernel.agent()
    words = ("yes", "on", "1:30", "2026-01-02", "NO")
    operands = "".join(f"\n        - {word}" for word in words)
    head = "rules:\n- id: words\n  then: {decision: allow}\n  when:\n    arguments:\n      x:\n"
    await load(agent, f"{head}       one_of: {operands}\n")
    lease = await agent.start()

    for word in words:
        assert (await lease.decide("tool", {"x": word}))["rule_id"] == "words", word
    for other in (True, False, 90, 1767312000):
        assert (await lease.decide("tool", {"x": other}))["rule_id"] == "default", other


# ---------------------------------------------------------------- local steps, and no bundle


async def test_k88_a_local_step_is_allowed_unless_a_rule_names_it(kernel: Kernel) -> None:
    agent = await governed(
        kernel,
        rule("no-clock", DENY, when={"target": "clock", "step_kind": "local"}),
        rule("asks", ASK, when={"target": "dice"}, priority=1),
    )

    found = await decided(agent, "random", "clock", "dice", kind="local")

    wanted = [("proceed", "local", None), ("denied", "no-clock", "policy_denied"), ("blocked", "asks", None)]
    assert found == wanted
    assert await decided(agent, "random") == [("denied", "default", "policy_denied")]


@pytest.mark.parametrize(
    ("mode", "wanted"), [("dev", ("proceed", "permissive", None)), ("server", NO_POLICY)], ids=["dev", "server"]
)
async def test_k89_without_a_bundle_dev_allows_and_server_denies(
    stacks: Stacks, mode: Mode, wanted: tuple[str, str, str | None]
) -> None:
    stack = stacks.get(mode=mode, STEPWELL_NO_POLICY="")
    async with connected(stack.url, stack.api_key) as kernel:
        agent = await kernel.agent()
        assert await decided(agent, "tool", "other") == [wanted] * 2
        # K88: what needs no permission needs none here either.
        assert await decided(agent, "random", kind="local") == [("proceed", "local", None)]

        await load(agent, bundle(rule("no", DENY, reason="never")))
        assert await decided(agent, "tool") == [("denied", "no", "never")]
        await load(agent, bundle(default=ALLOW))
        assert await decided(agent, "tool") == [("proceed", "default", None)]
        assert await load(agent, "") == 0

        assert await decided(agent, "tool") == [wanted]


async def test_k89_what_a_tenant_says_of_agents_without_a_bundle_holds_for_it_alone(
    kernel: Kernel, stack: Stack
) -> None:
    operator = kernel.holding(stack.operator_key)
    tenant = f"tenant-{secrets.token_hex(6)}"
    scopes = ["executions:read", "executions:write", "agents:admin", "policies:admin"]
    accepted(await operator.post("/v0/tenants", {"id": tenant}), 201)
    key = {"name": "test", "scopes": scopes, "tenant": tenant}
    agent = await kernel.holding(accepted(await operator.post("/v0/keys", key), 201)["key"]).agent()
    allowed = ("proceed", "permissive", None)

    for said, wanted in (("deny", NO_POLICY), ("allow", allowed)):
        accepted(await operator.post("/v0/tenants", {"id": tenant, "settings": {"no_policy": said}}))
        assert await decided(agent, "tool") == [wanted]
        assert await decided(await kernel.agent(), "tool") == [allowed]


# ---------------------------------------------------------------- bundles that change


async def test_k90_a_new_bundle_decides_about_new_steps_and_not_about_recorded_ones(kernel: Kernel) -> None:
    asks = rule("asks", ASK, when={"target": "pay"}, priority=1)
    agent = await governed(kernel, rule("first", DENY, when={"target": "denied"}, reason="then"), asks, default=ALLOW)
    lease = await agent.start()
    kept = await lease.decide("denied", {"n": 2}, key="kept")
    open_step = await lease.proceed("open")
    before = await kernel.step(lease.execution_id, open_step)

    await load(agent, bundle(rule("second", DENY, when={"target": "open"}, reason="now"), asks, default=ALLOW))

    assert short(await lease.decide("denied", {"n": 3})) == ("proceed", "default", None)
    assert short(await lease.decide("open", {"n": 1})) == ("denied", "second", "now")
    assert await lease.decide("denied", {"n": 2}, key="kept") == kept
    assert await kernel.step(lease.execution_id, open_step) == before
    # The run after an approval meets what was recorded under the old bundle.
    approval = Approval(lease, await lease.decide("pay"))
    accepted(await approval.grant(), 204)
    again = await approval.next_lease()
    assert await again.decide("denied", {"n": 2}) == kept
    assert (await again.decide("open"))["step_id"] == open_step
    assert short(await again.decide("open", {"n": 2})) == ("denied", "second", "now")


async def test_k90_registering_the_agent_again_keeps_what_decides(kernel: Kernel) -> None:
    agent = await kernel.agent()
    version = await load(agent, bundle(rule("no", DENY, reason="never"), default=ALLOW))

    body = {"id": agent.id, "webhook_url": agent.endpoint.url, "max_concurrency": 3}
    accepted(await kernel.post("/v0/agents", body))

    lease = await agent.start()
    assert short(await lease.decide("tool")) == ("denied", "no", "never")
    denied = await kernel.wait_for_event(lease.execution_id, "step.denied")
    assert denied["payload"]["policy_version"] == version


async def test_k90_an_agent_that_is_made_anew_has_no_bundle(kernel: Kernel) -> None:
    agent = await governed(kernel, rule("no", DENY))
    accepted(await kernel.request("DELETE", f"/v0/agents/{agent.id}"), 204)
    envelope(await kernel.post(f"/v0/policies/{agent.id}", {"bundle": bundle()}), 404, "not_found")

    again = await kernel.agent(agent_id=agent.id)

    assert await decided(again, "tool") == [("proceed", "permissive", None)]


@pytest.mark.alone
async def test_k90_a_bundle_decides_at_once_where_it_was_loaded_and_at_another_door_within_a_second(
    new_stack: Callable[..., Stack],
) -> None:
    doors = new_stack(processes="apart", doors=2, settings=SETTINGS)
    async with (
        connected(doors.urls[0], doors.api_key) as here,
        connected(doors.urls[1], doors.api_key) as there,
    ):
        agent = await here.agent()
        beside = Agent(there, agent.endpoint, agent_id=agent.id, secret=agent.secret, scheme=agent.scheme)
        lease = await agent.start()
        other = beside.lease_of(await agent.delivery(lease.execution_id))

        for number in range(4):
            await load(agent, bundle(rule(f"rule-{number}", DENY), default=ALLOW))
            loaded_at = time.monotonic()
            assert (await lease.decide("here", number))["rule_id"] == f"rule-{number}"

            async def is_there(number: int = number) -> bool:
                return (await other.decide("there", number))["rule_id"] == f"rule-{number}"

            await wait_until_async(is_there, "the other door to know", deadline_seconds=EVERYWHERE_SECONDS)
            assert time.monotonic() - loaded_at <= EVERYWHERE_SECONDS
        await load(agent, "")
        assert (await lease.decide("here", "none"))["rule_id"] == "permissive"
