"""Asking several things at once on behalf of one request, and bounding how many requests do one thing at once."""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def together(questions: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order. The first failure cancels the rest and is raised as it is, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(question) for question in questions]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


class Slots:
    """A bounded number of places, handed over in the order in which they were asked for."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: deque[asyncio.Future[None]] = deque()

    def try_enter(self) -> bool:
        """Take a place where one is free."""
        if self._free == 0:
            return False
        self._free -= 1
        return True

    async def enter(self) -> None:
        """Take a place, waiting for one to be handed over."""
        if self.try_enter():
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The place came in the same turn of the loop as the cancellation: it goes to the next one.
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place back: to whoever waits longest, if anybody does."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
