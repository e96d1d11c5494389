"""The policy language: bundles of rules, how they are loaded, and the verdict on a new step. Pure."""

from kernel.domain.policy.bundle import BROKEN, BrokenBundle, Bundle
from kernel.domain.policy.evaluation import LOCAL, NO_POLICY, PERMISSIVE, Call, Passed, explain
from kernel.domain.policy.loading import load_bundle
from schemas.entries import StepKind, Verdict

__all__ = [
    "BROKEN",
    "LOCAL",
    "NO_POLICY",
    "PERMISSIVE",
    "BrokenBundle",
    "Bundle",
    "Call",
    "Passed",
    "evaluate",
    "explain",
    "load_bundle",
]


def evaluate(kind: StepKind) -> Verdict:
    """Return the verdict on a step of this kind where its agent has no bundle and none is asked for."""
    return LOCAL if kind == "local" else PERMISSIVE
