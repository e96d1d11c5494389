"""Calls that go on when their caller is cancelled for a pause, and waiting for those that do.

A group of tasks cancels all of them when one raises, and a step that waits for a person raises. What the others had
begun would be done twice, or never be known to have been done.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class UnderWay:
    """Counts what is under way, so that somebody can wait for its end. Used on one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._over = asyncio.Event()
        self._over.set()

    def begin(self) -> None:
        self._count += 1
        self._over.clear()

    def end(self) -> None:
        self._count -= 1
        if not self._count:
            self._over.set()

    async def ended(self) -> None:
        """Return when nothing is under way."""
        await self._over.wait()


async def undisturbed(call: Coroutine[Any, Any, T], *, is_paused: Callable[[], bool]) -> T:
    """Return what a call gives. Cancelled while the attempt pauses, it comes to its end by itself, unheard."""
    task = asyncio.ensure_future(call)
    task.add_done_callback(_looked_at)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not is_paused():
            task.cancel()
            await asyncio.wait((task,))
        raise


def _looked_at(task: "asyncio.Future[Any]") -> None:
    """Read how a call has ended: of one that was left alone, nobody else does."""
    if not task.cancelled():
        task.exception()
