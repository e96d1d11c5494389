"""The operators on arguments, as the truth table of the contract has them.

What a rule cannot tell must never let a call through: where it is not certain that the operator's claim holds, an
allow rule does not match, and a deny or require_approval rule does, as far as the table says so.
"""

from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from kernel.domain.canonical import Plain
from kernel.domain.policy.arguments import MISSING, Arguments, Found, Path, Undetermined
from kernel.domain.policy.equality import Equality, equality, json_type, one_of
from kernel.domain.policy.limits import REGEX_SUBJECT_BYTES_MAX
from kernel.domain.policy.numbers import Number, compare
from kernel.domain.policy.regexes import Regex

Operator = Literal[
    "equals", "not_equals", "one_of", "not_one_of", "contains", "regex", "exists", "gt", "gte", "lt", "lte"
]  # fmt: skip - in the order of the contract
OPERATORS: tuple[Operator, ...] = get_args(Operator)
Order = Literal["gt", "gte", "lt", "lte"]

Test: TypeAlias = Callable[[Found, Arguments, Path], bool]
"""Whether the predicate holds for what a path found; it may raise Undetermined."""


class Predicate(msgspec.Struct, frozen=True):
    """One operator at one path of the arguments."""

    path: Path
    test: Test
    is_allow: bool
    """Whether it stands in an allow rule, which needs to be certain."""
    name: str
    """How the dry run names it."""


# ---------------------------------------------------------------- the operators


def equals(operand: Plain) -> Test:
    """Return the test of `equals`. A missing value equals nothing, null only null."""
    return _when_equal(equality(operand))


def equals_any(operands: list[Plain]) -> Test:
    """Return the test of `one_of`."""
    return _when_equal(one_of(operands))


def equals_none(operands: list[Plain], *, is_allow: bool) -> Test:
    """Return the test of `not_one_of`, and with one operand of `not_equals`.

    An allow rule is satisfied only by a value of a type that the operands have: leaving an argument out, or sending
    it in another type, is no way through.
    """
    is_equal = one_of(operands)
    types = frozenset(json_type(operand) for operand in operands)

    def test(found: Found, arguments: Arguments, path: Path) -> bool:
        if found is MISSING:
            return not is_allow
        if is_allow and json_type(found) not in types:
            return False
        return not is_equal(found, arguments.spend)

    return test


def contains(operand: str) -> Test:
    """Return the test of `contains`, on the text of the value."""
    wanted = operand.encode()

    def test(found: Found, arguments: Arguments, path: Path) -> bool:
        if found is MISSING:
            return False
        text = arguments.text(path, found)
        arguments.spend(len(text))
        return wanted in text

    return test


def matches(regex: Regex) -> Test:
    """Return the test of `regex`, anywhere in the text of the value."""

    is_in, program = regex.is_in, regex.program

    def test(found: Found, arguments: Arguments, path: Path) -> bool:
        if found is MISSING:
            return False
        text = arguments.text(path, found)
        if len(text) > REGEX_SUBJECT_BYTES_MAX:
            raise Undetermined
        arguments.spend(len(text) * program)
        return is_in(text)

    return test


def exists(operand: bool) -> Test:
    """Return the test of `exists`; null exists."""
    return lambda found, arguments, path: (found is not MISSING) is operand


def ordered(order: Order, operand: Number, *, is_allow: bool) -> Test:
    """Return the test of a comparison. What is no number satisfies no allow rule and every other."""
    holds = _comparison(_ORDERS[order], operand)

    def test(found: Found, arguments: Arguments, path: Path) -> bool:
        if found is MISSING:
            return False
        number = arguments.number(path, found)
        return not is_allow if number is None else holds(number, operand)

    return test


_Comparison = Callable[[Any, Any], bool]

_ORDERS: dict[Order, _Comparison] = {"gt": gt, "gte": ge, "lt": lt, "lte": le}


def _comparison(order: _Comparison, operand: Number) -> Callable[[Number, Number], bool]:
    """Return the comparison with an operand. Beside one that is not negative, tuples are ordered as their numbers."""
    if operand.sign >= 0:
        return order
    return lambda number, operand: order(compare(number, operand), 0)


def _when_equal(is_equal: Equality) -> Test:
    return lambda found, arguments, path: found is not MISSING and is_equal(found, arguments.spend)
