"""Whether a handler that runs again makes the same steps again."""

import json
from collections import Counter
from typing import Any

import msgspec

from stepwell.errors import Signal
from stepwell.testing.places import Lane, Place, Spot
from stepwell.values import decode, encode

SHOWN_MAX = 200
NEW_IN_A_ROW_MAX = 5
"""Attempts in a row that put another first step in the place of a known one."""

Key = tuple[object, ...]


class Made(msgspec.Struct, frozen=True):
    """A step as a handler asked for it. `args` is canonical enough to compare: JSON with sorted members."""

    kind: str
    target: str
    args: str
    place: Place | None

    @property
    def content(self) -> tuple[str, str, str]:
        return self.kind, self.target, self.args

    @property
    def origin(self) -> tuple[str, str, Place | None]:
        return self.kind, self.target, self.place

    def __str__(self) -> str:
        shown = self.args if len(self.args) <= SHOWN_MAX else self.args[:SHOWN_MAX] + "…"
        where = f"{self.place}: " if self.place is not None else ""
        return f"{where}{self.target} {shown}"


class Divergence(AssertionError):
    """The handler does not do the same again. `line` is the first line that differs, None where none is known."""

    def __init__(self, message: str, line: Place | None = None) -> None:
        super().__init__(message)
        self.line = line


class Diverged(Signal):
    """Carries a divergence out of a handler."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(str(divergence))
        self.divergence = divergence


def made(kind: str, target: str, args: Any, place: Place | None) -> Made:
    """Raises TypeError where JSON cannot carry the arguments."""
    plain = decode(encode(args, what="args"))
    return Made(kind, target, json.dumps(plain, sort_keys=True, ensure_ascii=False), place)


class Trace:
    """What the attempts at one execution have done so far, lane by lane.

    A lane is known by its parent and its first step, so the order in which tasks come to theirs does not matter.
    """

    def __init__(self) -> None:
        self._known: dict[Key, list[Made]] = {}
        self._now: dict[Key, list[Made]] = {}
        self._keys: dict[Lane, Key] = {}
        self._new_in_a_row = 0
        self.attempts = 0

    def begin(self) -> None:
        """A new attempt begins."""
        self.attempts += 1
        self._now = {}
        self._keys = {}

    def note(self, spot: Spot, step: Made) -> None:
        """A step is made. Raises Divergence where the lane did something else at this point before."""
        key = self._key(spot.lane, step)
        done = self._now.setdefault(key, [])
        known = self._known.get(key, [])
        if len(done) < len(known) and known[len(done)].content != step.content:
            raise _differs(self.attempts, now=step, before=known[len(done)])
        done.append(step)

    def end(self) -> None:
        """The attempt has ended before its handler did. Raises Divergence where a first step never settles."""
        swapped = self._swapped()
        for key, done in self._now.items():
            if len(done) > len(self._known.get(key, [])):
                self._known[key] = done
        self._new_in_a_row = self._new_in_a_row + 1 if swapped is not None else 0
        if swapped is not None and self._new_in_a_row >= NEW_IN_A_ROW_MAX:
            raise _differs(self.attempts, now=swapped[0], before=swapped[1])

    def finish(self) -> None:
        """The handler has come to its end. Raises Divergence where it left out what it had done before."""
        for key, known in self._known.items():
            if _is_in_body(key):
                continue
            done = self._now.get(key, [])
            if len(done) < len(known):
                left_out = known[len(done)]
                raise Divergence(
                    f"run again (attempt {self.attempts}), the handler ended without a step that it had made before:\n"
                    f"  {left_out}\n{_ADVICE}",
                    left_out.place,
                )

    def _key(self, lane: Lane, first: Made) -> Key:
        key = self._keys.get(lane)
        if key is None:
            parent: Key = () if lane.parent is None else self._keys.get(lane.parent, ())
            key = parent if lane.parent is None else self._free((*parent, first.content), is_in_body=lane.is_in_body)
            self._keys[lane] = key
        return key

    def _free(self, key: Key, *, is_in_body: bool) -> Key:
        """Return a key that this attempt does not use yet: lanes may begin with equal steps."""
        number = 0
        while (*key, is_in_body, number) in self._now:
            number += 1
        return (*key, is_in_body, number)

    def _swapped(self) -> tuple[Made, Made] | None:
        """Return a lane's first step that is new while a known one of the same origin has not come."""
        gone = {
            steps[0].origin: steps[0]
            for key, steps in self._known.items()
            if key and key not in self._now and not _is_in_body(key)
        }
        for key, steps in self._now.items():
            if key and key not in self._known and steps[0].origin in gone:
                return steps[0], gone[steps[0].origin]
        return None


def left_out(recorded: list[Made], done: list[Made]) -> list[Made]:
    """Return what is recorded and was not done, in order."""
    counts = Counter(step.content for step in done)
    missing: list[Made] = []
    for step in recorded:
        if counts[step.content]:
            counts[step.content] -= 1
        else:
            missing.append(step)
    return missing


_ADVICE = (
    "What decides over steps has to be recorded itself: the clock, chance, fresh ids and whatever is read from\n"
    "outside belong into step(name, function)."
)


def _is_in_body(key: Key) -> bool:
    return len(key) >= 2 and key[-2] is True


def _differs(attempt: int, *, now: Made, before: Made) -> Divergence:
    return Divergence(
        f"run again (attempt {attempt}), the handler differs at\n  {now}\nwhere it made before\n  {before}\n{_ADVICE}",
        now.place,
    )
