"""A bundle as it decides: everything compiled once, rules in the order in which they are tried."""

from collections.abc import Callable
from typing import Literal

import msgspec

from kernel.domain.policy.predicates import Predicate
from schemas.entries import RateTerms, StepKind

Action = Literal["allow", "deny"]
Decision = Literal["allow", "deny", "require_approval"]


class When(msgspec.Struct, frozen=True):
    """The parts of a condition; None, or no predicate, holds always."""

    target: Callable[[str], bool] | None = None
    targets: Callable[[str], bool] | None = None
    agent_id: str | None = None
    agent_ids: frozenset[str] | None = None
    step_kind: StepKind | None = None
    is_about_call: bool = False
    """Whether it has more of the call's own parts than `target`, which most rules have alone."""
    predicates: tuple[Predicate, ...] = ()


class RateLimit(msgspec.Struct, frozen=True):
    """The token bucket of a rule."""

    max_calls: int
    window_ms: int
    per_what: Literal["execution", "agent", "global"]
    on_limiter_error: Literal["allow", "deny"]

    def terms(self) -> RateTerms:
        """Return it as an entry carries it."""
        return RateTerms(
            max_calls=self.max_calls, window_ms=self.window_ms, per=self.per_what, on_error=self.on_limiter_error
        )


class ApprovalRule(msgspec.Struct, frozen=True):
    """What a rule asks of an approval; no approvers: whoever may decide at all; no timeout: the door's default."""

    approvers: tuple[str, ...]
    timeout_ms: int | None
    message: str
    separate_requester: bool


class Then(msgspec.Struct, frozen=True):
    """What follows from a rule."""

    decision: Decision
    reason: str = ""
    approval: ApprovalRule | None = None
    rate_limit: RateLimit | None = None
    token_budget: int = 0
    """Tokens of an execution from which on an `llm_call` is denied; 0 without a budget."""


class Rule(msgspec.Struct, frozen=True):
    """One rule."""

    id: str
    priority: int
    when: When
    then: Then


class Bundle(msgspec.Struct, frozen=True):
    """The policy of an agent."""

    default_action: Action
    rules: tuple[Rule, ...]
    """By priority, the lowest first; no two are equal."""


class BrokenBundle(msgspec.Struct, frozen=True):
    """A stored bundle that cannot be compiled, by a build that no longer takes it: everything is denied."""


BROKEN = BrokenBundle()
