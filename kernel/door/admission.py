"""Which requests may be open, and which may have an entry in flight: so many in all, and so many of one tenant.

Whoever finds no place waits. A place that becomes free goes to the owner (a tenant in a shard) that has not had one for
the longest time, so that a tenant with a thousand requests waits behind its own, and not others behind it.
"""

import asyncio
from collections import deque

Owner = tuple[str, int]
"""A tenant in a shard."""


class Admission:
    """A bounded number of places, and a bounded share of them for each owner."""

    def __init__(self, places: int, *, share: int) -> None:
        """`places` in all; no owner has more than `share` of them."""
        self._free = places
        self._share = share
        self._taken: dict[Owner, int] = {}
        self._waiting: dict[Owner, deque[asyncio.Future[None]]] = {}
        self._turns: dict[Owner, None] = {}
        """Owners that wait and are below their share, the one whose turn it is first."""

    def try_enter(self, owner: Owner) -> bool:
        """Take a place where one is free that nobody waits for."""
        taken = self._taken.get(owner, 0)
        if self._free == 0 or taken >= self._share:
            return False
        self._free -= 1
        self._taken[owner] = taken + 1
        return True

    async def enter(self, owner: Owner) -> None:
        """Take a place, waiting for one to be handed over. Cancelled, it takes none."""
        if self.try_enter(owner):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        self._line_up(owner)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The place came in the same turn of the loop as the cancellation: it goes to the next one.
                self.leave(owner)
            raise

    def leave(self, owner: Owner) -> None:
        """Give a place back; whoever's turn it is has it at once."""
        self._free += 1
        left = self._taken[owner] - 1
        if left:
            self._taken[owner] = left
        else:
            del self._taken[owner]
        if self._waiting:
            self._line_up(owner)
            self._hand_over()

    def _line_up(self, owner: Owner) -> None:
        """Give the owner its turn, or take it away, as it now waits and has room."""
        if not self._waiting.get(owner):
            self._waiting.pop(owner, None)
            self._turns.pop(owner, None)
        elif self._taken.get(owner, 0) >= self._share:
            self._turns.pop(owner, None)
        else:
            self._turns.setdefault(owner)

    def _hand_over(self) -> None:
        while self._turns and self._free:
            owner = next(iter(self._turns))
            # To the end of the line, however many more of its requests wait.
            del self._turns[owner]
            turn = _first(self._waiting[owner])
            if turn is not None:
                self._free -= 1
                self._taken[owner] = self._taken.get(owner, 0) + 1
                turn.set_result(None)
            self._line_up(owner)


class Shares:
    """How many places each tenant has, none more than a share. Nobody waits: who finds none is refused."""

    def __init__(self, share: int) -> None:
        self._share = share
        self._taken: dict[str, int] = {}

    def try_enter(self, tenant: str) -> bool:
        """Take a place of the tenant's share where one is left."""
        taken = self._taken.get(tenant, 0)
        if taken >= self._share:
            return False
        self._taken[tenant] = taken + 1
        return True

    def leave(self, tenant: str) -> None:
        """Give a place back."""
        left = self._taken[tenant] - 1
        if left:
            self._taken[tenant] = left
        else:
            del self._taken[tenant]


def _first(queue: deque[asyncio.Future[None]]) -> asyncio.Future[None] | None:
    """Take the first one that still waits; those that left are dropped on the way."""
    while queue:
        turn = queue.popleft()
        if not turn.done():
            return turn
    return None
