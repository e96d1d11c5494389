"""Outcomes on their way to the kernel. They ride on the next submission; alone they go after a short linger.

Until the kernel has acknowledged an outcome it rides on every submission, also where it is under way already: the
kernel keeps the first and ignores the others. So no step is decided before an outcome that it may depend on is durable.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence

from stepwell.errors import RebunoError, Signal, Terminated
from stepwell.keeper import Keeper
from stepwell.kernel import Outcome

LINGER_SECONDS = 0.002
RIDING_MAX = 256
"""Outcomes that one request may carry."""
RIDING_BYTES_MAX = 64 * 1024
"""Together larger ones go alone, and the next submission waits for them: they would ride again and again."""

Record = Callable[[Outcome], Awaitable[None]]
"""Records one outcome by a request of its own; called on the keeper's loop."""

_log = logging.getLogger(__name__)


class Settling:
    """The outcomes of one attempt. Its methods may be called from any thread, `flushed` from an event loop."""

    def __init__(self, keeper: Keeper, record: Record, refused: Callable[[BaseException], None]) -> None:
        """`refused` is told why an outcome cannot be recorded any more."""
        self._keeper = keeper
        self._record = record
        self._refused = refused
        self._lock = threading.Lock()
        self._unacknowledged: dict[str, Outcome] = {}
        self._rides: dict[str, int] = {}
        """By step, on how many requests of others its outcome is under way."""
        self._alone: dict[str, int] = {}
        """By step, how many requests of its own are under way."""
        self._is_lingering = False

    def add(self, outcome: Outcome) -> None:
        """Take an outcome; it is on its way within the linger, whatever this thread does."""
        with self._lock:
            self._unacknowledged[outcome.step_id] = outcome
            is_first = not self._is_lingering
            self._is_lingering = True
        if is_first:
            self._keeper.call_later(LINGER_SECONDS, self._send_alone)

    async def board(self) -> tuple[Outcome, ...]:
        """Return the outcomes that the next request has to carry, once there are few enough of them."""
        while True:
            with self._lock:
                outcomes = tuple(self._unacknowledged.values())
                weight = sum(len(outcome.json) for outcome in outcomes)
                if len(outcomes) <= RIDING_MAX and weight <= RIDING_BYTES_MAX:
                    for outcome in outcomes:
                        _begin(self._rides, outcome)
                    return outcomes
            await self.flushed()

    def arrived(self, outcomes: Sequence[Outcome]) -> None:
        """The request that carried them was accepted: they are durable."""
        with self._lock:
            for outcome in outcomes:
                _end(self._rides, outcome)
                self._unacknowledged.pop(outcome.step_id, None)

    def missed(self, outcomes: Sequence[Outcome]) -> None:
        """The request that carried them applied nothing, or nobody knows: they go on their own."""
        with self._lock:
            for outcome in outcomes:
                _end(self._rides, outcome)
            is_left = bool(self._unacknowledged) and not self._is_lingering
            self._is_lingering = self._is_lingering or is_left
        if is_left:
            self._keeper.call_later(LINGER_SECONDS, self._send_alone)

    async def flushed(self) -> None:
        """Return when nothing is unacknowledged any more, or cannot be recorded."""
        await asyncio.wrap_future(self._keeper.begin(self._flush()))

    def drop(self) -> None:
        """Forget everything: the attempt is over, and nothing that it says counts."""
        with self._lock:
            self._unacknowledged.clear()

    # ------------------------------------------------------------ on the keeper's loop

    def _send_alone(self) -> None:
        with self._lock:
            self._is_lingering = False
            under_way = self._rides.keys() | self._alone.keys()
            left = [each for each in self._unacknowledged.values() if each.step_id not in under_way]
            for outcome in left:
                _begin(self._alone, outcome)
        for outcome in left:
            self._keeper.begin(self._send(outcome))

    async def _flush(self) -> None:
        with self._lock:
            outcomes = list(self._unacknowledged.values())
            for outcome in outcomes:
                _begin(self._alone, outcome)
        await asyncio.gather(*(self._send(outcome) for outcome in outcomes))

    async def _send(self, outcome: Outcome) -> None:
        try:
            await self._record(outcome)
        except (Signal, RebunoError) as error:
            if not (isinstance(error, Terminated) and self._is_elsewhere(outcome)):
                _log.warning("the outcome of step %s could not be recorded: %r", outcome.step_id, error)
                self._refused(error)
        with self._lock:
            _end(self._alone, outcome)
            self._unacknowledged.pop(outcome.step_id, None)

    def _is_elsewhere(self, outcome: Outcome) -> bool:
        """Whether another request has carried it or carries it now: the end of the execution, where that has ended."""
        with self._lock:
            return outcome.step_id not in self._unacknowledged or outcome.step_id in self._rides


def _begin(under_way: dict[str, int], outcome: Outcome) -> None:
    under_way[outcome.step_id] = under_way.get(outcome.step_id, 0) + 1


def _end(under_way: dict[str, int], outcome: Outcome) -> None:
    left = under_way.pop(outcome.step_id, 1) - 1
    if left:
        under_way[outcome.step_id] = left
