"""The tasks a dispatcher has running: owned by one group, each at its own risk, given a bounded time at the end."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class Tasks:
    """Tasks of one task group. One that breaks is logged and ends alone."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._running: set[asyncio.Task[None]] = set()

    def start(self, doing: Coroutine[Any, Any, None], *, what: str) -> None:
        guarded = _guarded(doing, what)
        try:
            task = self._group.create_task(guarded)
        except RuntimeError:
            # The group is being cancelled and takes nothing more; its hold or its lease brings the work back.
            guarded.close()
            doing.close()
            return
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # A task that is cancelled before its first step has not even begun what it was to do.
        task.add_done_callback(lambda _: doing.close())

    async def drain(self, *, wait_seconds: float) -> None:
        """Return when all have ended; those that have not by then are cancelled."""
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=wait_seconds)
        for task in late:
            task.cancel()


async def _guarded(doing: Coroutine[Any, Any, None], what: str) -> None:
    try:
        await doing
    except Exception:
        # The top of a task: what it held comes back with the end of its hold or its lease.
        logger.exception("%s broke", what)
