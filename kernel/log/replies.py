"""Who waits for which answer of the broker: one inbox for all, a bounded number of waiting callbacks."""

import secrets
from collections.abc import Callable
from itertools import count

from kernel.domain.errors import LogUnavailable
from kernel.log.driver import Delivery, Heard

_INBOX_BYTES = 12


class Replies:
    """Callbacks by reply subject; each is called at most once, and forgotten after `seconds_max`."""

    def __init__(self, *, count_max: int, seconds_max: float, clock: Callable[[], float]) -> None:
        self._count_max = count_max
        self._seconds_max = seconds_max
        self._clock = clock
        self._inbox = f"_INBOX.{secrets.token_hex(_INBOX_BYTES)}"
        self._numbers = count(1)
        # All wait equally long, so the order of arrival is the order of expiry.
        self._waiting: dict[str, tuple[float, Heard]] = {}

    @property
    def subjects(self) -> str:
        """What to subscribe to, for `hear`."""
        return f"{self._inbox}.*"

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def new_subject(self) -> str:
        """Return a subject beside the replies' that nobody else uses."""
        return f"{self._inbox}.{next(self._numbers)}.deliver"

    def expect(self, heard: Heard) -> str:
        """Return the reply subject to publish with. Raises LogUnavailable when too many wait."""
        now = self._clock()
        self._forget_expired(now)
        if len(self._waiting) >= self._count_max:
            raise LogUnavailable("too much waits for the log to answer")
        reply = f"{self._inbox}.{next(self._numbers)}"
        self._waiting[reply] = (now + self._seconds_max, heard)
        return reply

    def forget(self, reply: str) -> None:
        self._waiting.pop(reply, None)

    def hear(self, delivery: Delivery) -> None:
        """Hand an answer to whoever waits for it; one that comes too late, or again, is dropped."""
        waiting = self._waiting.pop(delivery.subject, None)
        if waiting is not None:
            waiting[1](delivery)

    def _forget_expired(self, now: float) -> None:
        while self._waiting:
            reply, (expires_at, _) = next(iter(self._waiting.items()))
            if expires_at > now:
                return
            del self._waiting[reply]
