"""Submissions through the whole of Stepwell: how many in a second, and how long one takes alone."""

import os
import time
from collections.abc import Iterator, Sequence
from itertools import count, cycle
from statistics import median

from bench.agents import Agents, create_one, created, spread
from bench.connections import Connection, Load, connect
from bench.machine import cpu_seconds
from bench.processes import Processes
from bench.requests import Held, refused, step_of, submit

CONNECTIONS = 64
EXECUTIONS_OF_A_CONNECTION = 16
SECONDS = 3.0
WARM_SECONDS = 0.7
LONE_COUNT = 150
CREATES_COUNT = 40
REFUSED = 400
PREPARED_MAX = 900
"""Requests made ready for one connection before a round; no more than it could ever use in one."""


class Submissions:
    """Made by `ready`. Every call of a run has args of its own."""

    def __init__(
        self, processes: Processes, agents: Agents, held: Sequence[Held], connections: list[Connection]
    ) -> None:
        self._processes = processes
        self._agents = agents
        self._held = spread(held, CONNECTIONS)
        self._connections = connections
        self.costs: list[dict[str, float]] = []
        """CPU seconds of a submission by process, of each round."""
        self._numbers = count(1)

    @classmethod
    async def ready(cls, processes: Processes, agents: Agents) -> "Submissions":
        held = await created(processes, agents, CONNECTIONS * EXECUTIONS_OF_A_CONNECTION)
        return cls(processes, agents, held, await connect(processes.door_port, CONNECTIONS))

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    # ------------------------------------------------------------ many at once

    async def rate(self) -> float:
        """Return the submissions per second at 64 connections."""
        number = next(self._numbers)
        load = Load(self._connections, [iter(self._prepared(held, number)) for held in self._held])
        pids = self._processes.pids | {"the sender": os.getpid()}
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        rate = await load.rate(seconds=SECONDS, warm_seconds=WARM_SECONDS)
        self.costs.append({name: (cpu_seconds(pid) - before[name]) / load.answered for name, pid in pids.items()})
        return rate

    def cost_line(self) -> str:
        """Return the CPU time of one submission in every process; the medians of all rounds."""
        names = [name for name in self.costs[0] if name != "echo"]
        spent = {name: median(cost[name] for cost in self.costs if name in cost) * 1e6 for name in names}
        parts = ", ".join(f"{name} {microseconds:.0f}" for name, microseconds in spent.items())
        return f"CPU of a submission in microseconds: {parts}; together {sum(spent.values()):.0f}"

    async def settling_rate(self) -> float:
        """Return the same where each submission carries the outcome of the one before it, as an agent does."""
        number = next(self._numbers)
        sources = [iter(self._chain(held[number % len(held)], number)) for held in self._held]
        return await Load(self._connections, sources).rate(seconds=SECONDS, warm_seconds=WARM_SECONDS)

    async def refusal_rate(self) -> float:
        """Return how many the same door answers by itself: signed, read and checked as far as it goes without a log."""
        sources: list[Iterator[bytes]] = [
            cycle([refused(held[0], number) for number in range(64)]) for held in self._held
        ]
        load = Load(self._connections, sources, expected=REFUSED)
        return await load.rate(seconds=SECONDS, warm_seconds=WARM_SECONDS)

    async def echo_rate(self) -> float:
        """Return the answers per second of a bare echo behind the door's listener to the same requests."""
        connections = await connect(self._processes.echo_port, CONNECTIONS)
        sources: list[Iterator[bytes]] = [cycle(self._prepared(held, 0)[:64]) for held in self._held]
        try:
            return await Load(connections, sources).rate(seconds=SECONDS, warm_seconds=WARM_SECONDS)
        finally:
            for connection in connections:
                connection.close()

    def _prepared(self, held: Sequence[Held], number: int) -> list[bytes]:
        return [submit(held[at % len(held)], number * PREPARED_MAX + at) for at in range(PREPARED_MAX)]

    def _chain(self, held: Held, number: int) -> list[bytes]:
        first = number * PREPARED_MAX
        steps = [step_of(held.execution_id, first + at) for at in range(PREPARED_MAX)]
        return [submit(held, first + at, settles=steps[at - 1] if at else "") for at in range(PREPARED_MAX)]

    # ------------------------------------------------------------ one alone

    async def lone_milliseconds(self) -> float:
        """Return the median time of a submission while nothing else happens."""
        number = next(self._numbers)
        spent: list[float] = []
        for request in self._prepared(self._held[0], number)[:LONE_COUNT]:
            started_at = time.perf_counter()
            await self._connections[0].exchange(request)
            spent.append(time.perf_counter() - started_at)
        return median(spent) * 1000

    async def create_to_webhook_milliseconds(self) -> float:
        """Return the median time from sending a create to receiving its webhook."""
        spent: list[float] = []
        for _ in range(CREATES_COUNT):
            started_at = time.perf_counter()
            execution_id = await create_one(self._connections[0], self._processes.api_key)
            spent.append(await self._agents.arrival(execution_id) - started_at)
        return median(spent) * 1000
