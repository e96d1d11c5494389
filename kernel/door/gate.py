"""Whether an entry may be sent to the log at all: decided before it is sent, so that the refusal means what it says.

Never under a clock that would date it wrongly, and never into a stream that takes entries and acknowledges none.
"""

import time
from collections.abc import Callable, Iterable

from kernel.domain.errors import LogUnavailable
from kernel.ports import Log

_MICROSECONDS = 1_000_000


class Gate:
    """One for all requests of a door. Closed until the clock has been compared with the broker's once."""

    def __init__(
        self,
        *,
        log: Log,
        skew_seconds_max: float,
        wall: Callable[[], int] | None = None,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        """`wall` returns unix nanoseconds, `monotonic` seconds; left out, they are the system's."""
        self._log = log
        self._skew_seconds_max = skew_seconds_max
        self._wall = wall or time.time_ns
        self._monotonic = monotonic or time.monotonic
        self._broker_ahead: tuple[float, float] | None = None
        """By how much the broker's clock is ahead of our monotonic one: it lies between the two."""

    def monotonic(self) -> float:
        """The clock on which `compare` expects its times."""
        return self._monotonic()

    def compare(self, broker_time: int, *, asked_at: float, answered_at: float) -> None:
        """Take in what the broker's clock said (unix microseconds) somewhere between the two moments.

        From there the monotonic clock carries it on: a step of our own wall clock is seen at the next entry.
        """
        seconds = broker_time / _MICROSECONDS
        self._broker_ahead = (seconds - answered_at, seconds - asked_at)

    def check(self, shard: int) -> None:
        """Raise LogUnavailable where nothing may be sent to the shard."""
        refusal = self._clock_trouble() or (_silence_of((shard,)) if self._log.is_silent(shard) else "")
        if refusal:
            raise LogUnavailable(refusal)

    def is_open(self, shard: int) -> bool:
        """Whether an entry may be sent to the shard now."""
        return self._broker_ahead is not None and not self._clock_trouble() and not self._log.is_silent(shard)

    def trouble(self, shards: Iterable[int]) -> str:
        """Return why entries are refused, and what to do about it; empty where they are not."""
        silent = tuple(shard for shard in shards if self._log.is_silent(shard))
        return self._clock_trouble() or (_silence_of(silent) if silent else "")

    @property
    def is_compared(self) -> bool:
        return self._broker_ahead is not None

    def _clock_trouble(self) -> str:
        if self._broker_ahead is None:
            return ""
        ours = self._wall() / 1e9 - self._monotonic()
        low, high = self._broker_ahead
        skew = max(ours - high, low - ours, 0.0)
        if skew <= self._skew_seconds_max:
            return ""
        return (
            f"the clock of this process is {skew:.1f} s from the clock of NATS, and {self._skew_seconds_max:g} s is "
            "the most: set both by the same time service"
        )


def _silence_of(shards: tuple[int, ...]) -> str:
    streams = ", ".join(f"STEPWELL_{shard}" for shard in shards)
    return (
        f"NATS takes entries for {streams} and acknowledges none of them. After a failed write to its disk it does so "
        "until it is restarted: look at its log for 'failed to store', make room, restart it"
    )
