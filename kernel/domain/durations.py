"""Durations as bundles and configuration spell them: `1h30m`, `1.5s`, `250ms`, or a bare number of seconds."""

import re
from fractions import Fraction

_DECIMAL = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"
_PART = re.compile(rf"({_DECIMAL})(ms|s|m|h)")
_DURATION = re.compile(rf"{_DECIMAL}|(?:{_DECIMAL}(?:ms|s|m|h)){{1,16}}")
_UNIT_SECONDS = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600)}


def parse_duration(text: str) -> float | None:
    """Return the seconds that a duration means, or None for any other text."""
    if not _DURATION.fullmatch(text):
        return None
    parts = _PART.findall(text)
    if not parts:
        return float(Fraction(text))
    # Added up exactly and rounded once, so that `0.1s` three times is 0.3.
    return float(sum(Fraction(number) * _UNIT_SECONDS[unit] for number, unit in parts))


def duration_text(seconds: float) -> str:
    """Return a duration that means these seconds, in the largest unit that needs no decimals."""
    milliseconds = round(seconds * 1000)
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
