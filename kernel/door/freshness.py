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

    def __init__(self, shards: int, losses: Callable[[], int] = lambda: 0) -> None:
        """`losses` counts the lost connections to the view."""
        self._floors: list[int | None] = [None] * shards
        self._losses = losses
        self._losses_known = losses()

    @property
    def losses_known(self) -> int:
        """The losses after which the floors were, or are to be, learned from the log."""
        self._forget_after_a_loss()
        return self._losses_known

    @property
    def is_known(self) -> bool:
        """Whether every shard has its floor; nothing may be read before."""
        self._forget_after_a_loss()
        return None not in self._floors

    def floor(self, shard: int) -> int:
        """Return the watermark below which the shard is not read, -1 while it is unknown."""
        self._forget_after_a_loss()
        floor = self._floors[shard]
        return -1 if floor is None else floor

    def learn_floor(self, shard: int, head: int, *, losses: int) -> None:
        """Take the log's head for the floor, if it was asked after the last loss: no answer lies beyond it."""
        if losses == self.losses_known:
            self._floors[shard] = max(head, self._floors[shard] or 0)

    def raise_floor(self, shard: int, seq: int) -> None:
        """Take note of a watermark that somebody may have been answered from.

        It makes no unknown floor known: another door may have answered from a later one.
        """
        floor = self._floors[shard]
        if floor is not None and seq > floor:
            self._floors[shard] = seq

    def _forget_after_a_loss(self) -> None:
        """A server that was restarted may have gone back to before what other doors have answered from."""
        losses = self._losses()
        if losses != self._losses_known:
            self._losses_known = losses
            self._floors = [None] * len(self._floors)

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
        if self.floor(shard) < 0:
            return Unavailable("the log has not been asked how far it reaches", reason="view_unavailable")
        try:
            seen = await ask()
        except ViewUnavailable as error:
            return Unavailable(str(error), reason="view_unavailable")
        floor = self.floor(shard)
        if floor < 0:
            return Unavailable("the view may have gone back", reason="view_unavailable")
        if seen.is_rebuilding or seen.watermark_seq < 0:
            return Unavailable("the view of this shard is being rebuilt", reason="rebuilding")
        if seen.watermark_seq < floor:
            return Unavailable("the view of this shard lags behind", reason="view_unavailable")
        if seen.watermark_seq > floor:
            self.raise_floor(shard, seen.watermark_seq)
        return seen
