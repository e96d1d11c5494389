"""No door answers from a view that lags behind what it has already answered.

The view can be lost or go backwards at any time; the highest watermark seen per shard tells.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kernel.domain.errors import Unavailable, ViewUnavailable
from kernel.ports import Seen

T = TypeVar("T")

POLL_SECONDS_MIN = 0.01
POLL_SECONDS_MAX = 0.2
_POLL_GROWTH = 1.6


class Freshness:
    """The floors of all shards: what a read has to reflect before it may be believed."""

    def __init__(self, shards: int) -> None:
        self._floors: list[int | None] = [None] * shards

    @property
    def is_known(self) -> bool:
        """Whether every shard has its floor; nothing may be read before."""
        return None not in self._floors

    def floor(self, shard: int) -> int:
        """Return the watermark below which the shard is not read, -1 while it is unknown."""
        floor = self._floors[shard]
        return -1 if floor is None else floor

    def raise_floor(self, shard: int, seq: int) -> None:
        """Take note of a watermark that somebody may have been answered from."""
        floor = self._floors[shard]
        if floor is None or seq > floor:
            self._floors[shard] = seq

    async def read(self, shard: int, ask: Callable[[], Awaitable[Seen[T]]], *, deadline: float) -> T:
        """Return what `ask` brings as soon as it is fresh.

        Raises Unavailable with the reason `rebuilding` or `view_unavailable` where it is not by the deadline.
        """
        seen = await self._asked(shard, ask)
        if isinstance(seen, Seen):
            return seen.value
        loop = asyncio.get_running_loop()
        pause = POLL_SECONDS_MIN
        while (left := deadline - loop.time()) > 0:
            await asyncio.sleep(min(pause, left))
            pause = min(pause * _POLL_GROWTH, POLL_SECONDS_MAX)
            seen = await self._asked(shard, ask)
            if isinstance(seen, Seen):
                return seen.value
        raise seen

    async def _asked(self, shard: int, ask: Callable[[], Awaitable[Seen[T]]]) -> Seen[T] | Unavailable:
        """Return a fresh value, or why there is none yet."""
        floor = self._floors[shard]
        if floor is None:
            return Unavailable("the log has not been asked how far it reaches", reason="view_unavailable")
        try:
            seen = await ask()
        except ViewUnavailable as error:
            return Unavailable(str(error), reason="view_unavailable")
        if seen.is_rebuilding or seen.watermark_seq < 0:
            return Unavailable("the view of this shard is being rebuilt", reason="rebuilding")
        if seen.watermark_seq < floor:
            return Unavailable("the view of this shard lags behind", reason="view_unavailable")
        if seen.watermark_seq > floor:
            self.raise_floor(shard, seen.watermark_seq)
        return seen
