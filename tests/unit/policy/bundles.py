"""What the tests of policy write again and again: a bundle of few rules, and a call."""

import json

from kernel.domain.json_values import read_value
from kernel.domain.policy import BrokenBundle, Bundle, load_bundle
from kernel.domain.policy.evaluation import Call, evaluate
from schemas.entries import StepKind, Verdict

AGENT = "researcher"


def call(target: str = "t", args: str = "null", *, kind: StepKind = "tool_call", agent_id: str = AGENT) -> Call:
    """Return a call; `args` is the JSON text that a client sends."""
    return Call(agent_id=agent_id, kind=kind, target=target, args=read_value(args.encode()).plain)


def one_rule(when: object, *, decision: str = "deny") -> Bundle:
    """Return a bundle of one rule; whatever it does not match is allowed, or denied, as the rule does not."""
    default = "deny" if decision == "allow" else "allow"
    rule = {"id": "rule", "when": when, "then": {"decision": decision}}
    return load_bundle(json.dumps({"default_action": default, "rules": [rule]}))


def judged(bundle: Bundle | BrokenBundle | None, asked: Call) -> Verdict:
    """Return the verdict of version 7 of a bundle, where a call without a bundle is denied."""
    return evaluate(bundle, asked, version=7, no_policy="deny")


def is_matched(bundle: Bundle, asked: Call) -> bool:
    """Whether the one rule of a bundle decided."""
    return judged(bundle, asked).rule_id == "rule"


def holds(predicate: object, args: str, *, decision: str = "deny") -> bool:
    """Whether a predicate on the member `x` holds in a rule of this decision."""
    return is_matched(one_rule({"arguments": {"x": predicate}}, decision=decision), call(args=args))
