"""Numbers as exact decimals, compared by their digits: no float, and no exponent is ever written out."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

Spend = Callable[[int], None]
"""Takes steps from the work of a verdict; it may raise Undetermined."""

_CHEAP_CHARS = 64
_EXPONENT_DIGITS_MAX = 4_000
_FAR_AWAY = 10**_EXPONENT_DIGITS_MAX


class Number(NamedTuple):
    """`sign` times 0.`digits` times ten to `position`; zero is (0, 0, ""). Equal numbers are equal tuples."""

    sign: int
    position: int
    digits: str


ZERO = Number(0, 0, "")


def number_of(literal: str) -> Number:
    """Return the number that a JSON or YAML decimal literal means.

    An exponent of more than 4,000 digits counts as 4,000 digits' worth. No such literal is in a bundle, and one that a
    client may send is next to zero, so every comparison with a bundle's number comes out right.
    """
    mantissa, _, exponent = literal.lstrip("+-").lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    significant = digits.lstrip("0")
    if not significant:
        return ZERO
    position = len(whole) - (len(digits) - len(significant)) + _exponent(exponent)
    return Number(-1 if literal[0] == "-" else 1, position, significant.rstrip("0"))


def _exponent(text: str) -> int:
    digits = text.lstrip("+-").lstrip("0")
    size = int(digits or "0") if len(digits) <= _EXPONENT_DIGITS_MAX else _FAR_AWAY
    return -size if text.startswith("-") else size


def compare(left: Number, right: Number) -> int:
    """Return a number below, at or above 0, as the left one is smaller than, equal to or larger than the right."""
    if left == right:
        return 0
    # Of two positive numbers the larger tuple is the larger number, of two negative ones it is the smaller.
    is_larger = (left > right) is (left[0] >= 0 or left[0] != right[0])
    return 1 if is_larger else -1


def literal_of(value: object) -> str | None:
    """Return the literal of a number in a tree that `json_values` read, None where the value is no number."""
    # A bool is an int in Python and not in JSON.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return bytes(value).decode() if isinstance(value, msgspec.Raw) else None


def number_in(value: object, spend: Spend) -> Number | None:
    """Return the number that a value is, None where it is none."""
    literal = literal_of(value)
    if literal is None:
        return None
    if len(literal) > _CHEAP_CHARS:
        # A literal may be as long as a body, and every rule may ask for it.
        spend(len(literal))
    return number_of(literal)
