"""Which rule decides, and what its verdict carries."""

import pytest

from kernel.domain.policy import BROKEN, LOCAL, NO_POLICY, PERMISSIVE, Passed, explain, load_bundle
from kernel.domain.policy.evaluation import evaluate
from schemas.entries import ApprovalTerms, RateTerms, StepKind, Verdict
from tests.unit.policy.bundles import AGENT, call, is_matched, judged, one_rule

KINDS: tuple[StepKind, ...] = ("tool_call", "llm_call", "local")


def verdict(then: str, *, kind: StepKind = "tool_call") -> Verdict:
    return judged(load_bundle(f"rules: [{{id: r, then: {{{then}}}}}]"), call(kind=kind))


def test_the_lowest_priority_is_tried_first_wherever_it_stands():
    bundle = load_bundle("""
        rules:
        - {id: third, priority: 30, then: {decision: deny}}
        - {id: second, priority: 20, when: {target: "fs.*"}, then: {decision: allow}}
        - {id: first, when: {target: fs.rm}, then: {decision: deny, reason: never}}
    """)
    assert judged(bundle, call("fs.rm")) == Verdict("deny", "first", 7, reason="never")
    assert judged(bundle, call("fs.read")) == Verdict("allow", "second", 7)
    assert judged(bundle, call("web")) == Verdict("deny", "third", 7, reason="policy_denied")


@pytest.mark.parametrize(
    ("when", "matching", "others"),
    [
        ({}, [call()], []),
        ({"target": "a*"}, [call("ab")], [call("b")]),
        ({"targets": ["a", "b*"]}, [call("a"), call("bc")], [call("c")]),
        ({"target": "a*", "targets": ["*b", "*c"]}, [call("ab")], [call("a"), call("b"), call("ad")]),
        ({"agent_id": AGENT}, [call()], [call(agent_id="other"), call(agent_id="Researcher")]),
        ({"agent_ids": ["x", AGENT]}, [call()], [call(agent_id="y")]),
        ({"agent_id": AGENT, "agent_ids": ["x"]}, [], [call(), call(agent_id="x")]),
        ({"step_kind": "llm_call"}, [call(kind="llm_call")], [call(), call(kind="local")]),
        ({"target": "a", "arguments": {"x": {"equals": 1}}}, [call("a", '{"x":1}')], [call("a"), call("b", '{"x":1}')]),
        (
            {"arguments": {"x": {"exists": True}, "y": {"exists": True}}},
            [call(args='{"x":1,"y":1}')],
            [call(args='{"x":1}')],
        ),
    ],
)
def test_all_parts_of_a_condition_must_hold(when: object, matching: list, others: list):
    bundle = one_rule(when)
    assert all(is_matched(bundle, each) for each in matching)
    assert not any(is_matched(bundle, each) for each in others)


def test_where_no_rule_matches_the_default_action_decides():
    for text in ("rules: []", "{default_action: deny}"):
        assert judged(load_bundle(text), call()) == Verdict("deny", "default", 7, reason="policy_denied")
    assert judged(load_bundle("default_action: allow"), call()) == Verdict("allow", "default", 7)


def test_a_local_step_is_allowed_unless_a_rule_names_it():
    assert judged(load_bundle("default_action: deny"), call(kind="local")) == Verdict("allow", "local", 7)
    assert judged(None, call(kind="local")) == LOCAL
    assert judged(one_rule({"step_kind": "local"}), call(kind="local")).decision == "deny"


def test_without_a_bundle_the_setting_decides():
    for kind in ("tool_call", "llm_call"):
        assert evaluate(None, call(kind=kind), version=0, no_policy="allow") == PERMISSIVE
        assert evaluate(None, call(kind=kind), version=0, no_policy="deny") == NO_POLICY
    assert (NO_POLICY.decision, NO_POLICY.rule_id, NO_POLICY.reason) == ("deny", "no_policy", "no_policy")


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_bundle_that_cannot_be_compiled_denies_everything(kind: StepKind):
    assert judged(BROKEN, call(kind=kind)) == Verdict("deny", "bundle-error", 7, reason="policy_bundle_invalid")


def test_an_approval_carries_its_terms():
    asked = "{approvers: [a, b], timeout: 1m30s, message: ok?, separate_requester: true}"
    assert verdict(f"decision: require_approval, approval_config: {asked}").approval == ApprovalTerms(
        ("a", "b"), 90_000, "ok?", separate_requester=True
    )
    assert verdict("decision: require_approval").approval == ApprovalTerms(timeout_ms=900_000)
    assert verdict("decision: require_approval, approval_config: {}").approval == ApprovalTerms(timeout_ms=900_000)
    assert verdict("decision: deny, approval_config: {approvers: [a]}").approval is None


def test_an_approval_whose_rule_names_no_time_has_the_one_that_is_handed_in():
    for config in ("", ", approval_config: {approvers: [a]}", ", approval_config: {timeout: 90s}"):
        bundle = load_bundle(f"rules: [{{id: rule, then: {{decision: require_approval{config}}}}}]")

        found = evaluate(bundle, call(), version=7, no_policy="deny", approval_timeout_ms=5_000).approval

        assert found is not None
        assert found.timeout_ms == (90_000 if "timeout" in config else 5_000)


@pytest.mark.parametrize("decision", ["allow", "deny", "require_approval"])
def test_a_rate_limit_is_carried_whatever_the_decision(decision: str):
    limit = "rate_limit: {max_calls: 3, window: 1h, per_what: global, on_limiter_error: deny}"
    assert verdict(f"decision: {decision}, {limit}").rate_limit == RateTerms(3, 3_600_000, "global", "deny")


@pytest.mark.parametrize(("window", "milliseconds"), [("0.5", 500), ("1.1s", 1100), ("0.01ms", 1), ("1.2ms", 2)])
def test_a_window_is_whole_milliseconds_rounded_up(window: str, milliseconds: int):
    found = verdict(f"decision: allow, rate_limit: {{max_calls: 1, window: {window}}}")
    assert found.rate_limit == RateTerms(1, milliseconds, "execution", "allow")


def test_a_token_budget_is_carried_for_calls_of_a_model_alone():
    then = "decision: allow, token_budget: {max_total_tokens: 5000}"
    assert [verdict(then, kind=kind).token_budget_max for kind in KINDS] == [0, 5000, 0]


def test_an_explanation_names_what_did_not_hold_and_decides_alike():
    bundle = load_bundle("""
        rules:
        - {id: a, priority: 1, when: {target: x}, then: {decision: deny}}
        - {id: b, priority: 2, when: {targets: [x]}, then: {decision: deny}}
        - {id: c, priority: 3, when: {agent_id: x}, then: {decision: deny}}
        - {id: d, priority: 4, when: {agent_ids: [x]}, then: {decision: deny}}
        - {id: e, priority: 5, when: {step_kind: local}, then: {decision: deny}}
        - {id: f, priority: 6, when: {arguments: {n: {exists: true, gt: 5}}}, then: {decision: deny}}
        - {id: g, priority: 7, when: {arguments: {n: {gt: 1}}}, then: {decision: allow}}
        - {id: h, priority: 8, then: {decision: deny}}
    """)
    asked = call(args='{"n":3}')
    passed: list[Passed] = []
    found = explain(bundle, asked, version=7, no_policy="deny", passed=passed)
    assert found == judged(bundle, asked) == Verdict("allow", "g", 7)
    parts = ["target", "targets", "agent_id", "agent_ids", "step_kind", "arguments.n.gt"]
    assert passed == [Passed(rule_id, part) for rule_id, part in zip("abcdef", parts, strict=True)]
