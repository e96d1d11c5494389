"""The verdict on a new step. It is made at the door, before the entry, and stamped into it.

Bundles come later: without one, everything is allowed, and the rule that says so is named.
"""

from schemas.entries import StepKind, Verdict

LOCAL = Verdict(decision="allow", rule_id="local", policy_version=0)
PERMISSIVE = Verdict(decision="allow", rule_id="permissive", policy_version=0)


def evaluate(kind: StepKind) -> Verdict:
    """Return the verdict on a step of this kind where its agent has no bundle."""
    return LOCAL if kind == "local" else PERMISSIVE
