"""Without a bundle everything is allowed, and the rule that says so is named."""

import pytest

from kernel.domain.policy import evaluate
from schemas.entries import StepKind


@pytest.mark.parametrize(
    ("kind", "rule_id"), [("local", "local"), ("tool_call", "permissive"), ("llm_call", "permissive")]
)
def test_the_verdict_names_its_rule(kind: StepKind, rule_id: str):
    verdict = evaluate(kind)
    assert (verdict.decision, verdict.rule_id, verdict.policy_version, verdict.reason) == ("allow", rule_id, 0, "")
