"""Ratios of one run: a value and its reference measured in turn, summed up by the median, held against a bar."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median

import msgspec

ROUNDS = 3


class MeasureFailed(Exception):
    """What was to be measured did not happen."""


_started_at = time.monotonic()


class Bar(msgspec.Struct, frozen=True):
    """What a ratio has to reach; with `is_limit`, what it must not exceed."""

    bar: float
    goal: float
    is_limit: bool = False

    def holds(self, ratio: float) -> bool:
        return ratio <= self.bar if self.is_limit else ratio >= self.bar


class Row(msgspec.Struct, frozen=True):
    """One line of the table. Values and references are those of the rounds, in order; without a bar it only informs."""

    name: str
    values: Sequence[float]
    references: Sequence[float]
    unit: str
    bar: Bar | None = None

    @property
    def ratios(self) -> list[float]:
        return [value / reference for value, reference in zip(self.values, self.references, strict=True)]

    @property
    def is_below_bar(self) -> bool:
        return self.bar is not None and not self.bar.holds(median(self.ratios))

    def line(self) -> str:
        ratios = self.ratios
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        bar = goal = verdict = ""
        if self.bar is not None:
            sign = "<= " if self.bar.is_limit else ">= "
            bar, goal = f"{sign}{self.bar.bar:g}", f"{self.bar.goal:g}"
            verdict = "BELOW THE BAR" if self.is_below_bar else "ok"
        measured = f"{median(self.values):,.2f} against {median(self.references):,.2f} {self.unit}"
        return f"| {self.name} | {median(ratios):.2f} | {spread} | {bar} | {goal} | {verdict} | {measured} |"


HEAD = "| measure | ratio | spread | bar | goal | | medians |\n|---|---|---|---|---|---|---|"


def say(what: str) -> None:
    """Print one line of progress with the seconds since the start."""
    print(f"[{time.monotonic() - _started_at:6.1f} s] {what}", flush=True)


async def in_turn(
    measures: Mapping[str, Callable[[], Awaitable[float]]], *, unit: str, rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Run every measure once in each round, so that whatever else happens on the machine meets all of them."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(1, rounds + 1):
        for name, measure in measures.items():
            value = await measure()
            found[name].append(value)
            say(f"round {number}: {name}: {value:,.2f} {unit}")
    return found
