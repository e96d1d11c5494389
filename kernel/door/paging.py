"""Query values of lists, and where a page ends."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from kernel.domain.errors import Invalid
from schemas.bodies import Body

PAGE_BYTES_MAX = 32 * 1024 * 1024
"""A page ends before its body passes this, with one item at the least."""
ITEM_BYTES = 1024
"""What an item is taken to weigh besides its bodies, before it is rendered."""
_ESCAPED_BYTES = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_NO_TIME = "a time as of RFC 3339 is required"
_DIGITS_MAX = 18


def limit_of(query: dict[str, str], *, default: int, maximum: int) -> int:
    """Return the number of items asked for, clamped to the maximum."""
    if "limit" not in query:
        return default
    limit = whole_number(query["limit"], path="limit")
    if limit < 1:
        raise Invalid("an integer of at least 1 is required", path="limit")
    return min(limit, maximum)


def whole_number(text: str, *, path: str) -> int:
    """Return decimal digits as a number; more digits than any count has are read as the largest."""
    if not text.isascii() or not text.isdigit():
        raise Invalid("a whole number is required", path=path)
    significant = text.lstrip("0") or "0"
    return int(significant) if len(significant) <= _DIGITS_MAX else 10**_DIGITS_MAX


def seconds_of(query: dict[str, str], name: str, *, maximum: float) -> float:
    """Return a duration in seconds, whole or decimal, 0 where it is absent."""
    if name not in query:
        return 0.0
    whole, point, fraction = query[name].partition(".")
    digits = whole + fraction
    if not digits.isascii() or not digits.isdigit() or not whole or (point and not fraction):
        raise Invalid("a number of seconds is required", path=name)
    seconds = float(query[name])
    if seconds > maximum:
        raise Invalid(f"at most {maximum:g} seconds", path=name)
    return seconds


def time_of(query: dict[str, str], name: str) -> int:
    """Return an RFC 3339 time as unix microseconds, 0 where it is absent."""
    return instant(query[name], path=name) if name in query else 0


def instant(text: str, *, path: str) -> int:
    """Return an RFC 3339 time as unix microseconds."""
    text = text.upper()
    # `fromisoformat` also reads other forms of ISO 8601, and times without a zone.
    if not _RFC3339.fullmatch(text):
        raise Invalid(_NO_TIME, path=path)
    try:
        since = datetime.fromisoformat(text) - _EPOCH
    except (ValueError, OverflowError) as error:
        raise Invalid(_NO_TIME, path=path) from error
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def weight_of(bodies: Iterable[Body | None], *, texts: Iterable[str]) -> int:
    """Return at least what an item will weigh: its bodies, and texts of any length with every character escaped."""
    weight = ITEM_BYTES + sum(len(text) * _ESCAPED_BYTES for text in texts)
    return weight + sum(body.size_bytes for body in bodies if body is not None)


def fitting(weights: list[int], room: int, *, is_first: bool) -> int:
    """Return how many items of these weights fit into the room; the first of a page always does."""
    count = 0
    for weight in weights:
        room -= weight
        if room < 0 and not (is_first and count == 0):
            break
        count += 1
    return count
