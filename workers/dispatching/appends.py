"""Appending the duties that need no delivery: expired leases and approvals, deadlines, agents that are gone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kernel.domain.errors import OutcomeUnknown, Unavailable
from kernel.ports import Log
from schemas.entries import AnyEntry
from workers.dispatching.claims import APPEND_SECONDS
from workers.dispatching.entries import outgoing
from workers.dispatching.tasks import Tasks

APPENDS_MAX = 256
"""Entries on their way at once; a shard's loop waits for room among them."""

logger = logging.getLogger(__name__)


class Appends:
    """Entries on their way into the log, each id once at a time."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._room = asyncio.Semaphore(APPENDS_MAX)
        self._ids: set[str] = set()

    async def start(
        self, tasks: Tasks, shard: int, entry: AnyEntry, *, only_if: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        """Append the entry in a task of its own, which asks `only_if` first. Waits for room, not for the log."""
        if entry.id in self._ids:
            # The hold ran out while the entry is still on its way.
            return
        await self._room.acquire()
        self._ids.add(entry.id)
        tasks.start(self._append(shard, entry, only_if), what=f"appending {entry.id}")

    async def _append(self, shard: int, entry: AnyEntry, only_if: Callable[[], Awaitable[bool]] | None) -> None:
        try:
            if only_if is None or await only_if():
                await self._log.append(outgoing(shard, entry), timeout_seconds=APPEND_SECONDS)
        except (Unavailable, OutcomeUnknown) as error:
            # The hold ends and the duty is taken again, under the same id.
            logger.info("%s could not be appended: %s", entry.id, error)
        finally:
            self._ids.discard(entry.id)
            self._room.release()
