"""The verdict on a new step. It is made at the door, before the entry, and stamped into it.

The live decision and the dry run are one function, so that they cannot differ.
"""

from typing import Literal, assert_never

import msgspec

from kernel.domain.canonical import Plain
from kernel.domain.policy.arguments import Arguments, Undetermined
from kernel.domain.policy.bundle import BrokenBundle, Bundle, Rule, When
from schemas.entries import ApprovalTerms, StepKind, Verdict

LOCAL = Verdict(decision="allow", rule_id="local", policy_version=0)
PERMISSIVE = Verdict(decision="allow", rule_id="permissive", policy_version=0)
NO_POLICY = Verdict(decision="deny", rule_id="no_policy", policy_version=0, reason="no_policy")

APPROVAL_TIMEOUT_MS = 15 * 60 * 1000
"""Of an approval whose rule names no time, where nobody set another."""

_DENIED = "policy_denied"


class Call(msgspec.Struct, frozen=True):
    """The step that is to be judged. `args` is the tree that `json_values` read, None where there are none."""

    agent_id: str
    kind: StepKind
    target: str
    args: Plain = None


class Passed(msgspec.Struct, frozen=True):
    """A rule that did not match, and the first part of its `when` that does not hold."""

    rule_id: str
    part: str


def evaluate(
    bundle: Bundle | BrokenBundle | None,
    call: Call,
    *,
    version: int,
    no_policy: Literal["allow", "deny"],
    approval_timeout_ms: int = APPROVAL_TIMEOUT_MS,
) -> Verdict:
    """Return the verdict of an agent's bundle. `no_policy` is what holds without one; `version` is the bundle's.

    `approval_timeout_ms` is how long an approval waits whose rule names no time.
    """
    return explain(bundle, call, version=version, no_policy=no_policy, approval_timeout_ms=approval_timeout_ms)


def explain(
    bundle: Bundle | BrokenBundle | None,
    call: Call,
    *,
    version: int,
    no_policy: Literal["allow", "deny"],
    approval_timeout_ms: int = APPROVAL_TIMEOUT_MS,
    passed: list[Passed] | None = None,
) -> Verdict:
    """Return the verdict, and add to `passed` the rules that were tried before it in their order."""
    match bundle:
        case Bundle():
            return _by_rules(bundle, call, version, approval_timeout_ms, passed)
        case BrokenBundle():
            # One of its rules may have denied even a local step.
            return Verdict("deny", "bundle-error", version, reason="policy_bundle_invalid")
        case None:
            if call.kind == "local":
                return LOCAL
            return PERMISSIVE if no_policy == "allow" else NO_POLICY
        case _:
            assert_never(bundle)


def _by_rules(
    bundle: Bundle, call: Call, version: int, approval_timeout_ms: int, passed: list[Passed] | None
) -> Verdict:
    arguments = Arguments(call.args)
    target = call.target
    for rule in bundle.rules:
        when = rule.when
        matches = when.target
        # The part that most rules fail is looked at before anything else.
        if matches is not None and not matches(target):
            part = "target"
        else:
            part = _mismatch_of_call(when, call) if when.is_about_call else ""
            if not part and when.predicates:
                part = _mismatch_of_arguments(when, arguments)
        if not part:
            return _verdict(rule, call, version, approval_timeout_ms)
        if passed is not None:
            passed.append(Passed(rule.id, part))
    if call.kind == "local":
        return Verdict("allow", LOCAL.rule_id, version)
    if bundle.default_action == "allow":
        return Verdict("allow", "default", version)
    return Verdict("deny", "default", version, reason=_DENIED)


def _mismatch_of_arguments(when: When, arguments: Arguments) -> str:
    """Return the name of the first predicate that does not hold, the empty string where all do."""
    for predicate in when.predicates:
        path = predicate.path
        try:
            holds = predicate.test(arguments.at(path), arguments, path)
        except Undetermined:
            # In doubt, what keeps the call from going through.
            holds = not predicate.is_allow
        if not holds:
            return predicate.name
    return ""


def _mismatch_of_call(when: When, call: Call) -> str:
    """Return the name of the first other part of the call that does not hold, the empty string where all do."""
    if when.step_kind is not None and call.kind != when.step_kind:
        return "step_kind"
    if when.targets is not None and not when.targets(call.target):
        return "targets"
    if when.agent_id is not None and call.agent_id != when.agent_id:
        return "agent_id"
    if when.agent_ids is not None and call.agent_id not in when.agent_ids:
        return "agent_ids"
    return ""


def _verdict(rule: Rule, call: Call, version: int, approval_timeout_ms: int) -> Verdict:
    then = rule.then
    return Verdict(
        decision=then.decision,
        rule_id=rule.id,
        policy_version=version,
        reason=(then.reason or _DENIED) if then.decision == "deny" else "",
        approval=_approval(rule, approval_timeout_ms) if then.decision == "require_approval" else None,
        rate_limit=None if then.rate_limit is None else then.rate_limit.terms(),
        token_budget_max=then.token_budget if call.kind == "llm_call" else 0,
    )


def _approval(rule: Rule, approval_timeout_ms: int) -> ApprovalTerms:
    asked = rule.then.approval
    if asked is None:
        return ApprovalTerms(timeout_ms=approval_timeout_ms)
    return ApprovalTerms(
        approvers=asked.approvers,
        timeout_ms=approval_timeout_ms if asked.timeout_ms is None else asked.timeout_ms,
        message=asked.message,
        separate_requester=asked.separate_requester,
    )
