"""The policy language: bundles of rules, how they are loaded, and the verdict on a new step. Pure."""

from kernel.domain.policy.bundle import BROKEN, BrokenBundle, Bundle
from kernel.domain.policy.evaluation import LOCAL, NO_POLICY, PERMISSIVE, Call, Passed, evaluate, explain
from kernel.domain.policy.loading import load_bundle

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
