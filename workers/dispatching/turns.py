"""Whose delivery is next: in turn across tenants, then agents, within what is open and waiting in this process.

Pure bookkeeping over a clock that is handed in. An agent that is slow or dead fills its own places and no others.
"""

import math
from collections import Counter, OrderedDict, deque
from typing import TypeVar

import msgspec

from kernel.ports import DueItem

WAITING_MAX = 2048
AGENT_SHARE = 1 / 4
"""Of the places that are free: more than that many an agent may not have, so many dead agents still leave some free."""
TENANT_SHARE = 2
"""Likewise for a tenant: alone it may have two thirds of all places."""

Owner = tuple[str, str]
"""Tenant and agent id."""

T = TypeVar("T")


class Turn(msgspec.Struct, frozen=True):
    """One delivery that waits or is open. It lapses with the hold on its due item.

    `limit` bounds what its agent may have open at once.
    """

    shard: int
    item: DueItem
    limit: int
    lapses_at: float

    @property
    def owner(self) -> Owner:
        return (self.item.tenant, self.item.agent_id)


class Turns:
    """Waiting and open deliveries of one process.

    The bound per agent holds in this process alone: it spares the view what could only be refused. The slots that hold
    over all dispatchers are taken after a turn. An agent without a free one is tried again with one delivery at a time.
    """

    def __init__(self, *, open_max: int) -> None:
        self._open_max = open_max
        self._open: Counter[Owner] = Counter()
        self._open_of_tenant: Counter[str] = Counter()
        self._waiting: OrderedDict[str, OrderedDict[str, deque[Turn]]] = OrderedDict()
        self._waiting_total = 0
        self._refusals = Refusals()

    def offer(self, turn: Turn, *, now: float) -> bool:
        """Let the delivery wait for its turn; False where there is no place to wait and it has to be given back."""
        tenant, agent_id = turn.owner
        queue = self._waiting.setdefault(tenant, OrderedDict()).setdefault(agent_id, deque())
        self._drop_lapsed(queue, now)
        if len(queue) >= (WAITING_MAX - self._waiting_total) * AGENT_SHARE:
            return False
        queue.append(turn)
        self._waiting_total += 1
        return True

    def take(self, *, now: float) -> Turn | None:
        """Return the next delivery and count it as open; None where nobody with a free place waits."""
        free = self._open_max - self._open_of_tenant.total()
        if free <= 0:
            return None
        for tenant, agents in list(self._waiting.items()):
            is_full = self._open_of_tenant[tenant] >= max(1, free * TENANT_SHARE)
            turn = None if is_full else self._take_of(agents, free=free, now=now)
            if not agents:
                del self._waiting[tenant]
            if turn is None:
                continue
            if agents:
                self._waiting.move_to_end(tenant)
            self._open[turn.owner] += 1
            self._open_of_tenant[tenant] += 1
            return turn
        return None

    def finish(self, turn: Turn) -> None:
        """Give back the place of a delivery that is over."""
        _count_down(self._open, turn.owner)
        _count_down(self._open_of_tenant, turn.item.tenant)

    def refuse(self, turn: Turn, *, now: float, jitter: float) -> float:
        """Let the delivery's agent wait, as it has no slot free; return for how many seconds.

        `jitter` is drawn from 0 to 1.
        """
        return self._refusals.refuse(turn.owner, now=now, jitter=jitter)

    def admit(self, turn: Turn) -> None:
        """Let the delivery's agent wait no longer: it has, or had just now, a slot free."""
        self._refusals.end(turn.owner)

    def clear(self) -> list[Turn]:
        """Return everything that waits, and let none of it wait any longer."""
        left = [turn for agents in self._waiting.values() for queue in agents.values() for turn in queue]
        self._waiting.clear()
        self._waiting_total = 0
        return left

    def _take_of(self, agents: OrderedDict[str, deque[Turn]], *, free: int, now: float) -> Turn | None:
        for agent_id, queue in list(agents.items()):
            self._drop_lapsed(queue, now)
            turn = self._take_first(queue, free=free, now=now)
            if not queue:
                del agents[agent_id]
            elif turn is not None:
                agents.move_to_end(agent_id)
            if turn is not None:
                return turn
        return None

    def _take_first(self, queue: deque[Turn], *, free: int, now: float) -> Turn | None:
        if not queue:
            return None
        first = queue[0]
        if self._open[first.owner] >= min(first.limit, max(1, free * AGENT_SHARE)):
            return None
        if not self._refusals.is_tried(first.owner, now=now):
            return None
        self._waiting_total -= 1
        return queue.popleft()

    def _drop_lapsed(self, queue: deque[Turn], now: float) -> None:
        # The view gives a lapsed item to somebody again, so nothing is lost with it.
        while queue and queue[0].lapses_at <= now:
            queue.popleft()
            self._waiting_total -= 1


class Refusals:
    """Agents that had no slot free: how long each waits, and that then one delivery is tried before all the others.

    So however much waits for a busy agent in however many dispatchers, the view is asked a few times a second.
    """

    FIRST_SECONDS = 0.04
    LAST_SECONDS = 0.16
    OWNERS_MAX = 4096

    def __init__(self) -> None:
        self._waits: dict[Owner, tuple[float, float]] = {}
        """When the agent is tried again, and how long its last wait was at most."""

    def refuse(self, owner: Owner, *, now: float, jitter: float) -> float:
        """Let the agent wait, longer after every try in a row, and return for how many seconds."""
        if len(self._waits) >= self.OWNERS_MAX:
            self._waits = {each: wait for each, wait in self._waits.items() if wait[0] > now}
        _, before = self._waits.get(owner, (0.0, self.FIRST_SECONDS / 2))
        most = min(before * 2, self.LAST_SECONDS)
        seconds = most * (1 + jitter) / 2
        self._waits[owner] = now + seconds, most
        return seconds

    def is_tried(self, owner: Owner, *, now: float) -> bool:
        """Whether a delivery of the agent may ask for a slot now. Its next one waits for what comes of that."""
        found = self._waits.get(owner)
        if found is None:
            return True
        ends_at, most = found
        if now < ends_at:
            return False
        self._waits[owner] = now + self.LAST_SECONDS, most
        return True

    def end(self, owner: Owner) -> None:
        self._waits.pop(owner, None)


class Returns:
    """Spaces out the items that are given back, so that an agent's backlog does not circle at full speed."""

    FIRST_SECONDS = 0.25
    SPACING_SECONDS = 1 / 400
    LAST_SECONDS = 10.0
    OWNERS_MAX = 4096

    def __init__(self) -> None:
        self._next_at: dict[Owner, float] = {}

    def delay_ms(self, owner: Owner, *, count: int, now: float) -> int:
        """Return after how many milliseconds `count` items of an agent are to be due again."""
        if len(self._next_at) >= self.OWNERS_MAX:
            self._next_at = {each: at for each, at in self._next_at.items() if at > now}
        first_at = max(self._next_at.get(owner, 0.0), now + self.FIRST_SECONDS)
        self._next_at[owner] = min(first_at + count * self.SPACING_SECONDS, now + self.LAST_SECONDS)
        return int((first_at - now) * 1000)


def at_least_ms(seconds: float) -> int:
    """Return the milliseconds after which something is due again that is not to come before so many seconds.

    The view counts in whole milliseconds of its own clock, so that what it was told may be over by one of them less.
    """
    return math.ceil(seconds * 1000) + 1


def _count_down(counts: "Counter[T]", key: T) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
