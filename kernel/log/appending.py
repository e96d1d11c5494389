"""Appending: publishing one entry until the broker acknowledged it, and saying honestly what is known when it did not.

The same for both adapters, and for entries and control entries.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from kernel.domain.errors import LogUnavailable, OutcomeUnknown
from kernel.log.limits import EntryTooLarge, LogLimits
from kernel.ports import Acknowledged, Rejected

Said = Acknowledged | Rejected


class Link(Protocol):
    """What an append has to know of the connection it publishes through."""

    @property
    def lost(self) -> asyncio.Future[None]: ...

    async def wait_connected(self) -> None: ...


class Publishes:
    """All publishes of one entry, and what the broker has said of them so far."""

    def __init__(self) -> None:
        self.acknowledged: Acknowledged | None = None
        self.refused: Rejected | None = None
        self._loop = asyncio.get_running_loop()
        self._open = 0
        self._heard: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the entry may be in the log though nobody said so: a publish was neither acknowledged nor refused."""
        return self._open > 0

    def sent(self) -> None:
        self._open += 1

    def hear(self, said: Said) -> None:
        self._open -= 1
        if isinstance(said, Acknowledged):
            self.acknowledged = said
        else:
            self.refused = said
        if self.acknowledged is not None or not self.is_open:
            self._wake()

    async def wait(self, lost: asyncio.Future[None], *, seconds: float) -> None:
        """Return when it is acknowledged, when every publish is refused, or when it is time to publish again."""
        if self.acknowledged is not None or not self.is_open:
            return
        self._heard = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._wake)
        lost.add_done_callback(self._wake)
        try:
            await self._heard
        finally:
            self._heard = None
            timer.cancel()
            lost.remove_done_callback(self._wake)

    def _wake(self, _: object = None) -> None:
        if self._heard is not None and not self._heard.done():
            self._heard.set_result(None)

    def failure(self, timeout_seconds: float) -> Exception:
        """Return the error for an entry that was not acknowledged in time."""
        if self.is_open:
            return OutcomeUnknown(f"sent to the log and not acknowledged within {timeout_seconds:g} s")
        if self.refused is not None:
            return refusal(self.refused)
        return LogUnavailable("the log could not be reached")


def refusal(refused: Rejected) -> LogUnavailable:
    reason = "log_full" if refused.is_full else ""
    return LogUnavailable(f"the log refused the entry: {refused.reason}", reason=reason)


async def append_through(
    link: Link, send: Callable[[Callable[[Said], None]], None], *, timeout_seconds: float, limits: LogLimits
) -> Acknowledged:
    """Publish by `send`, again and again with the same id, until acknowledged.

    Raises LogUnavailable where the entry is certainly not in the log: at once when that is for want of room or for its
    size, else when the time is up. Raises OutcomeUnknown where it may be.
    """
    publishes = Publishes()
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _publish_until_acknowledged(link, send, publishes, limits)
    except TimeoutError as error:
        if publishes.acknowledged is not None:
            return publishes.acknowledged
        raise publishes.failure(timeout_seconds) from error


async def _publish_until_acknowledged(
    link: Link, send: Callable[[Callable[[Said], None]], None], publishes: Publishes, limits: LogLimits
) -> Acknowledged:
    while publishes.acknowledged is None:
        await link.wait_connected()
        lost = link.lost
        if _is_sent(send, publishes):
            await publishes.wait(lost, seconds=limits.republish_seconds)
            if publishes.is_open:
                continue
            if publishes.refused is not None and publishes.refused.is_full:
                raise refusal(publishes.refused)
        if publishes.acknowledged is None:
            await asyncio.sleep(limits.append_pause_seconds)
    return publishes.acknowledged


def _is_sent(send: Callable[[Callable[[Said], None]], None], publishes: Publishes) -> bool:
    try:
        send(publishes.hear)
    except EntryTooLarge:
        if publishes.is_open:
            return False
        raise
    except LogUnavailable:
        return False
    publishes.sent()
    return True
