"""This door's share of what a tenant may use, drawn in portions from what all doors share.

A request takes from the share at once. Only where it is used up a portion is drawn, once for all who wait, so that a
quota costs one exchange with the view for many requests.
"""

import asyncio
from collections.abc import Awaitable, Callable

from kernel.domain.errors import Unavailable

WAITING_MAX = 1024
"""Requests that wait for one quota of one tenant at one door; more are refused at once."""

Draw = Callable[[int, int], Awaitable[int]]
"""Draws up to so many, or nothing where there are not so many at least; returns how many."""


class Allowance:
    """What is drawn and not yet taken, and who waits for more."""

    def __init__(self, draw: Draw, *, portion: int, pause_seconds: float) -> None:
        """`portion` is the least that is asked for, `pause_seconds` the time between two draws that gave too little."""
        self._draw = draw
        self._portion = portion
        self._pause_seconds = pause_seconds
        self._held = 0
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._drawing: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def take(self, amount: int, *, ends_at: float) -> bool:
        """Take `amount`, waiting until there is so much; False where there is none by `ends_at`, on the loop's clock.

        Raises Unavailable where nobody can say how much there is. Cancelled, it takes nothing.
        """
        if not self._waiting and self._held >= amount:
            self._held -= amount
            return True
        if len(self._waiting) >= WAITING_MAX:
            return False
        loop = asyncio.get_running_loop()
        taken: asyncio.Future[None] = loop.create_future()
        self._waiting[taken] = amount
        if self._drawing is None:
            self._drawing = loop.create_task(self._serve(), name="drawing on a quota")
        try:
            await asyncio.wait((taken,), timeout=max(0.0, ends_at - loop.time()))
        except asyncio.CancelledError:
            if taken.done() and taken.exception() is None:
                self._held += amount
            raise
        finally:
            self._waiting.pop(taken, None)
        if taken.done():
            taken.result()
            return True
        return False

    async def _serve(self) -> None:
        """Draw and hand out until nobody waits."""
        try:
            while self._waiting:
                wanted = max(self._portion, sum(self._waiting.values()) - self._held)
                drawn = await self._draw(wanted, max(1, min(self._waiting.values()) - self._held))
                # Added only now: shares came back while it was drawn.
                self._held += drawn
                self._hand_out()
                if self._waiting:
                    await asyncio.sleep(self._pause_seconds)
        except Unavailable as error:
            self._fail(error)
        finally:
            self._drawing = None

    def _hand_out(self) -> None:
        """Serve whoever can be served, in order: one that needs much holds up nobody who needs little."""
        for taken, amount in list(self._waiting.items()):
            if amount <= self._held:
                self._held -= amount
                del self._waiting[taken]
                taken.set_result(None)

    def _fail(self, error: Unavailable) -> None:
        for taken in list(self._waiting):
            del self._waiting[taken]
            taken.set_exception(error)
