"""The arguments of one call as rules see them: places by path, texts, and a bound on the work of one verdict."""

import enum
from typing import Final, TypeAlias

import msgspec

from kernel.domain.canonical import Plain, canonical_bytes
from kernel.domain.policy.limits import WORK_MAX
from kernel.domain.policy.numbers import Number, number_in

_INDEX_DIGITS_MAX = 9


class Missing(enum.Enum):
    """The type of what a path finds where there is nothing; null is something."""

    MISSING = 0


MISSING: Final = Missing.MISSING
Found: TypeAlias = "Plain | Missing"


class Undetermined(Exception):
    """Whether a predicate holds is not worked out: an allow rule then does not match, any other does."""


class Path(msgspec.Struct, frozen=True):
    """A path as it is written and its segments, each with the list index that it may also be."""

    text: str
    segments: tuple[tuple[str, int | None], ...]


def path_of(text: str) -> Path:
    """Return a path; every text is one."""
    return Path(text, tuple((segment, _index(segment)) for segment in text.split(".")))


def _index(segment: str) -> int | None:
    is_index = segment.isascii() and segment.isdigit() and len(segment) <= _INDEX_DIGITS_MAX
    return int(segment) if is_index else None


class Arguments:
    """What the rules of one verdict have looked up so far. Made for one call and dropped with it."""

    def __init__(self, args: Plain) -> None:
        self._args = args
        self._found: dict[str, Found] = {}
        self._texts: dict[str, bytes] = {}
        self._numbers: dict[str, Number | None] = {}
        self._work_left = WORK_MAX

    def at(self, path: Path) -> Found:
        """Return what stands at a path: the member of that very name at the top, else what the segments lead to."""
        try:
            return self._found[path.text]
        except KeyError:
            found = self._found[path.text] = _look_up(self._args, path)
            return found

    def text(self, path: Path, value: Plain) -> bytes:
        """Return the UTF-8 text of the value at a path: a string as it is, anything else as its canonical JSON."""
        text = self._texts.get(path.text)
        if text is None:
            text = value.encode() if isinstance(value, str) else canonical_bytes(value)
            self.spend(len(text))
            self._texts[path.text] = text
        return text

    def number(self, path: Path, value: Plain) -> Number | None:
        """Return the number that the value at a path is, None where it is none."""
        try:
            return self._numbers[path.text]
        except KeyError:
            number = self._numbers[path.text] = number_in(value, self.spend)
            return number

    def spend(self, steps: int) -> None:
        """Take steps from what this verdict may cost, or raise Undetermined."""
        if steps > self._work_left:
            raise Undetermined
        self._work_left -= steps


def _look_up(args: Plain, path: Path) -> Found:
    if isinstance(args, dict) and path.text in args:
        return args[path.text]
    found: Plain = args
    for name, index in path.segments:
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and index is not None and index < len(found):
            found = found[index]
        else:
            return MISSING
    return found
