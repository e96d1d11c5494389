"""Typed, deep equality with an operand of a bundle: compiled once, then asked of values that a client sent."""

from collections.abc import Callable

from kernel.domain.canonical import Plain
from kernel.domain.policy.numbers import Number, Spend, literal_of, number_in, number_of

Equality = Callable[[Plain, Spend], bool]


def equality(operand: Plain) -> Equality:
    """Return the test whether a value equals the operand: same JSON type, numbers by value, members in any order."""
    if isinstance(operand, dict):
        return _equals_object({name: equality(member) for name, member in operand.items()})
    if isinstance(operand, list):
        return _equals_array([equality(item) for item in operand])
    literal = literal_of(operand)
    if literal is not None:
        return _equals_number(number_of(literal))
    if isinstance(operand, str):
        return lambda value, spend: isinstance(value, str) and value == operand
    return lambda value, spend: value is operand


def one_of(operands: list[Plain]) -> Equality:
    """Return the test whether a value equals any of the operands, without trying scalars one by one."""
    texts = frozenset(operand for operand in operands if isinstance(operand, str))
    literals = [literal for operand in operands if (literal := literal_of(operand)) is not None]
    numbers = frozenset(number_of(literal) for literal in literals)
    is_rest = [not isinstance(operand, str) and literal_of(operand) is None for operand in operands]
    rest = [equality(operand) for operand, is_kept in zip(operands, is_rest, strict=True) if is_kept]

    def holds(value: Plain, spend: Spend) -> bool:
        if isinstance(value, str):
            return value in texts
        number = number_in(value, spend)
        if number is not None:
            return number in numbers
        return any(equals(value, spend) for equals in rest)

    return holds


def json_type(value: Plain) -> str:
    """Return the JSON type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case dict():
            return "object"
        case list():
            return "array"
        case _:
            return "number"


def _equals_number(wanted: Number) -> Equality:
    return lambda value, spend: number_in(value, spend) == wanted


def _equals_array(items: list[Equality]) -> Equality:
    def equals(value: Plain, spend: Spend) -> bool:
        if not isinstance(value, list) or len(value) != len(items):
            return False
        return all(item(found, spend) for item, found in zip(items, value, strict=True))

    return equals


def _equals_object(members: dict[str, Equality]) -> Equality:
    def equals(value: Plain, spend: Spend) -> bool:
        if not isinstance(value, dict) or value.keys() != members.keys():
            return False
        return all(member(value[name], spend) for name, member in members.items())

    return equals
