"""Loaded by every process of a faulty stack at its start: its wall clock is off by what a file says.

The file is named after the process's command (`door`, `projector`, `dispatcher`) and holds seconds.
"""

import os
import sys
import time

FOLDER = os.environ.get("CLOCK_OFFSETS", "")
LOOK_SECONDS = 0.05


class _Clock:
    """The clock as it was, and what to add to it. The file is read a few times a second, not at every look."""

    def __init__(self) -> None:
        self.real_ns = time.time_ns
        self.offset_ns = 0
        self.looked_at = 0.0

    def time_ns(self) -> int:
        now = time.monotonic()
        if now - self.looked_at > LOOK_SECONDS:
            self.looked_at = now
            self.offset_ns = self._read()
        return self.real_ns() + self.offset_ns

    def time(self) -> float:
        return self.time_ns() / 1_000_000_000

    def _read(self) -> int:
        command = sys.argv[1] if len(sys.argv) > 1 else ""
        try:
            with open(os.path.join(FOLDER, command), encoding="ascii") as file:
                return round(float(file.read() or 0) * 1_000_000_000)
        except (OSError, ValueError):
            return 0


if FOLDER:
    _clock = _Clock()
    time.time_ns = _clock.time_ns
    time.time = _clock.time
