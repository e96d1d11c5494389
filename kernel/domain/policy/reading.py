"""Reading single fields of a bundle: each function returns a value of one form, or refuses with line and field."""

import math
from typing import TypeVar, cast

import msgspec

from kernel.domain.canonical import Plain
from kernel.domain.durations import parse_duration
from kernel.domain.policy.document import Items, Members, Place, Scalar
from kernel.domain.policy.limits import COUNT_MAX, DURATION_SECONDS_MAX
from kernel.domain.policy.numbers import Number, literal_of, number_of

_Word = TypeVar("_Word")


def fields(place: Place, *known: str) -> dict[str, Place]:
    """Return the values of a mapping by key; a key that is not known is refused."""
    found = members(place)
    for key, value in found.values.items():
        if key not in known:
            value.refuse(f"unknown key; known here are {', '.join(known)}", line=found.key_lines[key])
    return found.values


def members(place: Place) -> Members:
    """Return a mapping, whatever its keys."""
    if not isinstance(place.node, Members):
        place.refuse("a mapping is expected, key: value")
    return place.node


def items(place: Place, what: str, count_max: int) -> tuple[Place, ...]:
    """Return the items of a list that has some; `what` says of what."""
    if not isinstance(place.node, Items):
        place.refuse(f"a list of {what} is expected")
    if not place.node.items:
        place.refuse(f"the list is empty; name {what}, or leave the key out")
    if len(place.node.items) > count_max:
        place.refuse(f"more than {count_max} {what}")
    return place.node.items


def text(place: Place, chars_max: int, *, chars_min: int = 0) -> str:
    """Return a string of bounded length. A scalar that means a number or a boolean is none."""
    found = place.plain if isinstance(place.node, Scalar) else None
    if not isinstance(found, str):
        place.refuse("a string is expected; put what is not one in quotes")
    if not chars_min <= len(found) <= chars_max:
        place.refuse(f"a string of {chars_min} to {chars_max} characters is expected")
    return found


def word(place: Place, words: tuple[_Word, ...]) -> _Word:
    """Return one of these words."""
    node = place.node
    if not isinstance(node, Scalar) or node.text not in words:
        place.refuse(f"unknown word; one of {', '.join(map(str, words))} is expected")
    return cast("_Word", node.text)


def boolean(place: Place) -> bool:
    """Return a boolean."""
    found = place.plain if isinstance(place.node, Scalar) else None
    if not isinstance(found, bool):
        place.refuse("true or false is expected, without quotes")
    return found


def number(place: Place) -> Number:
    """Return a number, exactly."""
    literal = literal_of(place.plain) if isinstance(place.node, Scalar) else None
    if literal is None:
        place.refuse("a number is expected, without quotes")
    return number_of(literal)


def count(place: Place, *, at_least: int) -> int:
    """Return a whole number from `at_least` on, spelled as one."""
    found = place.plain if isinstance(place.node, Scalar) else None
    value = _whole(found)
    if value is None or not at_least <= value <= COUNT_MAX:
        place.refuse(f"a whole number from {at_least} to {COUNT_MAX} is expected")
    return value


def duration_ms(place: Place) -> int:
    """Return a duration above zero in milliseconds, rounded up."""
    seconds = parse_duration(place.node.text) if isinstance(place.node, Scalar) else None
    if seconds is None:
        place.refuse("a duration such as 90s, 1h30m or 250ms is expected; a bare number is seconds")
    if not 0 < seconds <= DURATION_SECONDS_MAX:
        place.refuse("a duration above zero, of at most 366 days, is expected")
    return max(1, math.ceil(round(seconds * 1000, 6)))


def _whole(found: Plain) -> int | None:
    if isinstance(found, msgspec.Raw):
        literal = bytes(found).decode()
        return int(literal) if literal.lstrip("+-").isdigit() else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None
