"""Globs: whole-string patterns by code point. A match takes time in proportion to the text, whatever the pattern.

A pattern is cut at its stars. What lies between two stars has a fixed length and is looked for from the left, where
the leftmost find is always the right one; so nothing is ever tried twice.
"""

from bisect import bisect_right
from collections.abc import Callable

import msgspec

from kernel.domain.errors import Invalid
from kernel.domain.policy.limits import GLOB_CHARS_MAX

_CODE_POINT_MAX = 0x10FFFF

_Ranges = tuple[tuple[int, int], ...]
"""The code points that may stand in one place: ranges from first to last, in order and apart."""

_ANY: _Ranges = ((0, _CODE_POINT_MAX),)

_FORMS = "a glob has *, ?, [a-z], [!a] and \\ before a character that is meant literally"


class Glob(msgspec.Struct, frozen=True):
    """A compiled glob. `wild_chars` counts the places that are not plain text, so that a bundle can be bounded."""

    pattern: str
    matches: Callable[[str], bool]
    wild_chars: int
    start: str | None = None
    """Of `start*`: all that it asks for."""
    end: str | None = None
    """Of `*end`, likewise."""


def compile_glob(pattern: str) -> Glob:
    """Return the matcher of a glob, or raise Invalid saying what is malformed."""
    if len(pattern) > GLOB_CHARS_MAX:
        raise Invalid(f"the glob is longer than {GLOB_CHARS_MAX} characters")
    pieces = [_piece(places) for places in _split_at_stars(pattern)]
    wild_chars = sum(piece.length for piece in pieces if isinstance(piece, _Wild))
    start, end = _one_side(pieces)
    return Glob(pattern, _matcher(pieces), wild_chars, start=start, end=end)


def any_glob(globs: list[Glob]) -> Callable[[str], bool]:
    """Return the test whether one of the globs matches."""
    starts = tuple(glob.start for glob in globs if glob.start is not None)
    ends = tuple(glob.end for glob in globs if glob.end is not None)
    tests = tuple(glob.matches for glob in globs if glob.start is None and glob.end is None)

    def matches(text: str) -> bool:
        # The frequent forms by one call each, as measured on bundles of 100 rules.
        if text.startswith(starts) or text.endswith(ends):
            return True
        for test in tests:  # noqa: SIM110 - a generator costs more
            if test(text):
                return True
        return False

    return matches


# ---------------------------------------------------------------- matching


class _Literal(msgspec.Struct, frozen=True):
    """A run of plain characters."""

    text: str

    @property
    def length(self) -> int:
        return len(self.text)

    def stands_at(self, text: str, start: int) -> bool:
        return text.startswith(self.text, start)

    def end_of_find(self, text: str, start: int, end: int) -> int:
        """Return where the leftmost find in text[start:end] ends, -1 without one."""
        found = text.find(self.text, start, end)
        return found if found < 0 else found + len(self.text)


class _Wild(msgspec.Struct, frozen=True):
    """A run with `?` or classes. `bounds` cut all code points into intervals, `masks` say which places take them."""

    bounds: tuple[int, ...]
    masks: tuple[int, ...]
    length: int

    def stands_at(self, text: str, start: int) -> bool:
        return self.end_of_find(text, start, start + self.length) >= 0

    def end_of_find(self, text: str, start: int, end: int) -> int:
        """Return where the leftmost find in text[start:end] ends, -1 without one.

        Bit i of the state says that the last i+1 characters fit the first i+1 places.
        """
        bounds, masks = self.bounds, self.masks
        whole = 1 << (self.length - 1)
        state = 0
        for index in range(start, end):
            state = ((state << 1) | 1) & masks[bisect_right(bounds, ord(text[index])) - 1]
            if state & whole:
                return index + 1
        return -1


_Piece = _Literal | _Wild


def _matcher(pieces: list[_Piece]) -> Callable[[str], bool]:
    """Return the test of a whole text for pieces with stars between them, the frequent forms by one call."""
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return first.text.__eq__ if isinstance(first, _Literal) else _exactly(first)
    if len(pieces) == 2 and isinstance(first, _Literal) and isinstance(last, _Literal):
        return _around(first.text, last.text)
    return _between(first, tuple(pieces[1:-1]), last)


def _one_side(pieces: list[_Piece]) -> tuple[str | None, str | None]:
    """Return what a glob with one star, at its end or at its start, asks for on the other side; None for all others."""
    first, last = pieces[0], pieces[-1]
    if len(pieces) != 2 or not isinstance(first, _Literal) or not isinstance(last, _Literal):
        return None, None
    if not last.text:
        return first.text, None
    return None, None if first.text else last.text


def _exactly(piece: _Wild) -> Callable[[str], bool]:
    return lambda text: len(text) == piece.length and piece.stands_at(text, 0)


def _around(start: str, end: str) -> Callable[[str], bool]:
    length_min = len(start) + len(end)
    if not end:
        return lambda text: text.startswith(start)
    return lambda text: text.endswith(end) and text.startswith(start) and len(text) >= length_min


def _between(first: _Piece, middle: tuple[_Piece, ...], last: _Piece) -> Callable[[str], bool]:
    length_min = first.length + last.length

    def matches(text: str) -> bool:
        end = len(text) - last.length
        if len(text) < length_min or not first.stands_at(text, 0) or not last.stands_at(text, end):
            return False
        start = first.length
        for piece in middle:
            start = piece.end_of_find(text, start, end)
            if start < 0:
                return False
        return True

    return matches


# ---------------------------------------------------------------- compiling


def _split_at_stars(pattern: str) -> list[list[_Ranges]]:
    """Return the places before, between and after the stars."""
    pieces: list[list[_Ranges]] = [[]]
    index = 0
    while index < len(pattern):
        character = pattern[index]
        index += 1
        if character == "*":
            pieces.append([])
        elif character == "?":
            pieces[-1].append(_ANY)
        elif character == "[":
            ranges, index = _class(pattern, index)
            pieces[-1].append(ranges)
        else:
            point, index = _character(pattern, index - 1)
            pieces[-1].append(((point, point),))
    return pieces


def _character(pattern: str, index: int) -> tuple[int, int]:
    """Return the character at the index, the one behind an escape, and where the next begins."""
    if pattern[index] == "\\":
        index += 1
        if index == len(pattern):
            raise Invalid(f"the glob ends in \\, which escapes nothing: {_FORMS}")
    return ord(pattern[index]), index + 1


def _class(pattern: str, index: int) -> tuple[_Ranges, int]:
    """Return what a class takes and where the pattern goes on; the index is that of the first character in it."""
    is_negated = pattern[index : index + 1] in ("!", "^")
    index += is_negated
    ranges: list[tuple[int, int]] = []
    while index < len(pattern) and pattern[index] != "]":
        first, index = _character(pattern, index)
        last = first
        # A hyphen before the closing bracket is a character like any other.
        if pattern[index : index + 1] == "-" and pattern[index + 1 : index + 2] not in ("", "]"):
            last, index = _character(pattern, index + 1)
        if last < first:
            raise Invalid(f"the range {chr(first)}-{chr(last)} in the glob runs backwards")
        ranges.append((first, last))
    if index == len(pattern):
        raise Invalid("a class in the glob has no closing ]; write \\[ where the bracket itself is meant")
    if not ranges:
        raise Invalid("a class in the glob is empty; write \\[ where the bracket itself is meant")
    merged = _merged(ranges)
    return _outside(merged) if is_negated else merged, index + 1


def _merged(ranges: list[tuple[int, int]]) -> _Ranges:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _outside(ranges: _Ranges) -> _Ranges:
    starts = [0, *(last + 1 for _, last in ranges)]
    ends = [*(first - 1 for first, _ in ranges), _CODE_POINT_MAX]
    return tuple((start, end) for start, end in zip(starts, ends, strict=True) if start <= end)


def _piece(places: list[_Ranges]) -> _Piece:
    if all(len(ranges) == 1 and ranges[0][0] == ranges[0][1] for ranges in places):
        return _Literal("".join(chr(ranges[0][0]) for ranges in places))
    # Where an interval of code points begins or ends for a place, the bit of that place changes.
    changes: dict[int, int] = {0: 0}
    for place, ranges in enumerate(places):
        for first, last in ranges:
            changes[first] = changes.get(first, 0) ^ (1 << place)
            changes[last + 1] = changes.get(last + 1, 0) ^ (1 << place)
    bounds = sorted(changes)
    masks: list[int] = []
    mask = 0
    for bound in bounds:
        mask ^= changes[bound]
        masks.append(mask)
    return _Wild(tuple(bounds), tuple(masks), len(places))
