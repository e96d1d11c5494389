"""From the text of a bundle to a bundle that decides. Whatever is wrong is found here, with its line and field.

Nothing that cannot be fully understood is loaded, and no bundle that is loaded can be slow.
"""

from typing import Literal, assert_never, get_args

from kernel.domain.errors import Invalid
from kernel.domain.policy import predicates
from kernel.domain.policy.arguments import path_of
from kernel.domain.policy.bundle import Action, ApprovalRule, Bundle, Decision, RateLimit, Rule, Then, When
from kernel.domain.policy.document import Items, Place, read_document
from kernel.domain.policy.globs import Glob, any_glob, compile_glob
from kernel.domain.policy.limits import (
    APPROVERS_MAX,
    BUNDLE_BYTES_MAX,
    GLOB_WILD_CHARS_MAX,
    GLOBS_MAX,
    NAME_CHARS_MAX,
    NODES_MAX,
    PATH_CHARS_MAX,
    PREDICATES_MAX,
    REGEXES_MAX,
    RULES_MAX,
    TEXT_CHARS_MAX,
)
from kernel.domain.policy.predicates import OPERATORS, Operator, Predicate, Test
from kernel.domain.policy.reading import boolean, count, duration_ms, fields, items, members, number, text, word
from kernel.domain.policy.regexes import Regex, compile_regex
from schemas.entries import StepKind

_ACTIONS: tuple[Action, ...] = get_args(Action)
_DECISIONS: tuple[Decision, ...] = get_args(Decision)
_KINDS: tuple[StepKind, ...] = get_args(StepKind)
_SCOPES: tuple[Literal["execution", "agent", "global"], ...] = ("execution", "agent", "global")


def load_bundle(source: str) -> Bundle:
    """Return the bundle that a YAML or JSON text is, compiled, or raise BundleInvalid."""
    return _Loading().bundle(read_document(source))


class _Loading:
    """One loading, with counts of what all rules together may have only so many of."""

    def __init__(self) -> None:
        self._globs = 0
        self._wild_chars = 0
        self._regexes = 0
        self._predicates = 0

    def bundle(self, root: Place) -> Bundle:
        known = fields(root, "default_action", "rules")
        default: Action = word(known["default_action"], _ACTIONS) if "default_action" in known else "deny"
        rules: list[Rule] = []
        ids: dict[str, int] = {}
        priorities: dict[int, str] = {}
        for place in self._rule_places(known.get("rules")):
            rule = self._rule(place)
            given = members(place).values
            if rule.id in ids:
                given["id"].refuse(f"a second rule of this id; the first is on line {ids[rule.id]}")
            if rule.priority in priorities:
                # An absent priority is 0, so that the rule as a whole may be what to point at.
                given.get("priority", place).refuse(
                    f"priority {rule.priority} is that of the rule {priorities[rule.priority]} as well; "
                    "give each rule its own (an absent one is 0)"
                )
            ids[rule.id] = given["id"].node.line
            priorities[rule.priority] = rule.id
            rules.append(rule)
        return Bundle(default, tuple(sorted(rules, key=lambda rule: rule.priority)))

    def _rule_places(self, place: Place | None) -> tuple[Place, ...]:
        # The one list that may be empty: the default action alone is a policy.
        is_empty = place is None or (isinstance(place.node, Items) and not place.node.items)
        return () if place is None or is_empty else items(place, "rules", RULES_MAX)

    def _rule(self, place: Place) -> Rule:
        known = fields(place, "id", "priority", "when", "then")
        for name in ("id", "then"):
            if name not in known:
                place.refuse(f"the rule has no `{name}`")
        then = self._then(known["then"])
        return Rule(
            id=text(known["id"], NAME_CHARS_MAX, chars_min=1),
            priority=count(known["priority"], at_least=0) if "priority" in known else 0,
            when=self._when(known["when"], is_allow=then.decision == "allow") if "when" in known else When(),
            then=then,
        )

    # ------------------------------------------------------------ when

    def _when(self, place: Place, *, is_allow: bool) -> When:
        known = fields(place, "target", "targets", "agent_id", "agent_ids", "step_kind", "arguments")
        targets = items(known["targets"], "globs", GLOBS_MAX) if "targets" in known else None
        agents = items(known["agent_ids"], "agent ids", NODES_MAX) if "agent_ids" in known else None
        return When(
            target=self._glob(known["target"]).matches if "target" in known else None,
            targets=None if targets is None else any_glob([self._glob(target) for target in targets]),
            agent_id=text(known["agent_id"], NAME_CHARS_MAX) if "agent_id" in known else None,
            agent_ids=None if agents is None else frozenset(text(agent, NAME_CHARS_MAX) for agent in agents),
            step_kind=word(known["step_kind"], _KINDS) if "step_kind" in known else None,
            is_about_call=not known.keys().isdisjoint(("targets", "agent_id", "agent_ids", "step_kind")),
            predicates=self._arguments(known["arguments"], is_allow=is_allow) if "arguments" in known else (),
        )

    def _glob(self, place: Place) -> Glob:
        pattern = text(place, BUNDLE_BYTES_MAX)
        try:
            glob = compile_glob(pattern)
        except Invalid as error:
            place.refuse(error.reason)
        self._globs += 1
        self._wild_chars += glob.wild_chars
        if self._globs > GLOBS_MAX:
            place.refuse(f"the bundle has more than {GLOBS_MAX} globs")
        if self._wild_chars > GLOB_WILD_CHARS_MAX:
            place.refuse(f"the globs of the bundle have more than {GLOB_WILD_CHARS_MAX} characters around ? and [ ]")
        return glob

    def _arguments(self, place: Place, *, is_allow: bool) -> tuple[Predicate, ...]:
        found: list[Predicate] = []
        for path, operators in self._some(place, "path: {operator: operand}").items():
            if len(path) > PATH_CHARS_MAX:
                operators.refuse(f"the path is longer than {PATH_CHARS_MAX} characters")
            compiled = path_of(path)
            self._some(operators, "operator: operand")
            operands = fields(operators, *OPERATORS)
            for operator in OPERATORS:
                operand = operands.get(operator)
                if operand is not None:
                    test = self._test(operator, operand, is_allow=is_allow)
                    name = f"arguments.{path}.{operator}"
                    found.append(Predicate(path=compiled, test=test, is_allow=is_allow, name=name))
        self._predicates += len(found)
        if self._predicates > PREDICATES_MAX:
            place.refuse(f"the bundle has more than {PREDICATES_MAX} operators on arguments")
        return tuple(found)

    def _some(self, place: Place, what: str) -> dict[str, Place]:
        found = members(place).values
        if not found:
            place.refuse(f"it is empty; write {what}, or leave the key out")
        return found

    def _test(self, operator: Operator, operand: Place, *, is_allow: bool) -> Test:
        match operator:
            case "equals":
                return predicates.equals(operand.plain)
            case "not_equals":
                return predicates.equals_none([operand.plain], is_allow=is_allow)
            case "one_of":
                return predicates.equals_any([item.plain for item in items(operand, "values", NODES_MAX)])
            case "not_one_of":
                values = [item.plain for item in items(operand, "values", NODES_MAX)]
                return predicates.equals_none(values, is_allow=is_allow)
            case "contains":
                return predicates.contains(text(operand, BUNDLE_BYTES_MAX))
            case "regex":
                return predicates.matches(self._regex(operand))
            case "exists":
                return predicates.exists(boolean(operand))
            case "gt" | "gte" | "lt" | "lte":
                return predicates.ordered(operator, number(operand), is_allow=is_allow)
            case _:
                assert_never(operator)

    def _regex(self, place: Place) -> Regex:
        pattern = text(place, BUNDLE_BYTES_MAX)
        try:
            regex = compile_regex(pattern)
        except Invalid as error:
            place.refuse(error.reason)
        self._regexes += 1
        if self._regexes > REGEXES_MAX:
            place.refuse(f"the bundle has more than {REGEXES_MAX} regexes")
        return regex

    # ------------------------------------------------------------ then

    def _then(self, place: Place) -> Then:
        known = fields(place, "decision", "reason", "approval_config", "rate_limit", "token_budget")
        if "decision" not in known:
            place.refuse(f"`decision` is missing: one of {', '.join(_DECISIONS)}")
        decision: Decision = word(known["decision"], _DECISIONS)
        approval = self._approval(known["approval_config"]) if "approval_config" in known else None
        return Then(
            decision=decision,
            reason=text(known["reason"], TEXT_CHARS_MAX) if "reason" in known else "",
            approval=approval,
            rate_limit=self._rate_limit(known["rate_limit"]) if "rate_limit" in known else None,
            token_budget=self._token_budget(known["token_budget"]) if "token_budget" in known else 0,
        )

    def _approval(self, place: Place) -> ApprovalRule:
        known = fields(place, "approvers", "timeout", "message", "separate_requester")
        approvers = items(known["approvers"], "approvers", APPROVERS_MAX) if "approvers" in known else ()
        return ApprovalRule(
            approvers=tuple(text(approver, NAME_CHARS_MAX, chars_min=1) for approver in approvers),
            timeout_ms=duration_ms(known["timeout"]) if "timeout" in known else None,
            message=text(known["message"], TEXT_CHARS_MAX) if "message" in known else "",
            separate_requester="separate_requester" in known and boolean(known["separate_requester"]),
        )

    def _rate_limit(self, place: Place) -> RateLimit:
        known = fields(place, "max_calls", "window", "per_what", "on_limiter_error")
        for name in ("max_calls", "window"):
            if name not in known:
                place.refuse(f"the rate limit has no `{name}`")
        return RateLimit(
            max_calls=count(known["max_calls"], at_least=1),
            window_ms=duration_ms(known["window"]),
            per_what=word(known["per_what"], _SCOPES) if "per_what" in known else "execution",
            on_limiter_error=word(known["on_limiter_error"], _ACTIONS) if "on_limiter_error" in known else "allow",
        )

    def _token_budget(self, place: Place) -> int:
        known = fields(place, "max_total_tokens")
        if "max_total_tokens" not in known:
            place.refuse("the token budget has no `max_total_tokens`")
        return count(known["max_total_tokens"], at_least=1)
