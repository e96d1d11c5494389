"""A quiet tenant beside a noisy one: what one far over its quota costs the other, and who is served from a backlog."""

import asyncio
import time
from collections.abc import Sequence
from itertools import count

from bench.agents import AGENTS, Agents, created, spread
from bench.connections import Connection, Load, connect
from bench.processes import Processes, until
from bench.ratios import Bar, MeasureFailed, Row, in_turn, say
from bench.requests import Held, create, make_key, put_tenant, register, submit

NOISY = "noisy"
NOISY_RATE = 100
"""Requests in a second that the noisy tenant may make."""
TIMES_OVER = 10
"""It has to want at least so many times that."""
NOISY_CONNECTIONS = 64
NOISY_SECONDS = 3.0
NOISY_PREPARED = 1200
"""More than one of its connections can use in all rounds together."""
QUIET_COUNT = 700
QUIET_EXECUTIONS = 20
BACKLOG, QUIET_BACKLOG = 1200, 40


class Neighbours:
    """Made by `ready`. The quiet tenant is the default one."""

    def __init__(
        self, processes: Processes, agents: Agents, quiet: Sequence[Held], noisy: Sequence[Held], noisy_key: str
    ) -> None:
        self._processes = processes
        self._agents = agents
        self._quiet = quiet
        self._noisy = spread(noisy, NOISY_CONNECTIONS)
        self._noisy_key = noisy_key
        self._numbers = count(1_000_000)

    @classmethod
    async def ready(cls, processes: Processes, agents: Agents) -> "Neighbours":
        connection = (await connect(processes.door_port, 1))[0]
        await connection.exchange(put_tenant(processes.operator_key, NOISY))
        key = await make_key(connection, processes.operator_key, NOISY)
        await connection.exchange(register(key, NOISY, f"{agents.url}/{NOISY}"))
        connection.close()
        quiet = await created(processes, agents, QUIET_EXECUTIONS)
        noisy = await created(processes, agents, NOISY_CONNECTIONS, api_key=key, agent_ids=(NOISY,))
        return cls(processes, agents, quiet, noisy, key)

    async def rows(self) -> list[Row]:
        """Measure the demand of the noisy tenant, then the quiet one without and with it under its quota."""
        demand = await self._noise()
        if demand < TIMES_OVER * NOISY_RATE:
            raise MeasureFailed(f"the noisy tenant makes {demand:.0f} requests/s where nothing bounds it: too few")
        say(f"without a quota the noisy tenant makes {demand:,.0f} requests/s; its quota is {NOISY_RATE}")
        connection = (await connect(self._processes.door_port, 1))[0]
        await connection.exchange(put_tenant(self._processes.operator_key, NOISY, requests_per_second=NOISY_RATE))
        found = await in_turn(
            {
                "the quiet tenant alone, p99": lambda: self._quiet_milliseconds(connection),
                "the quiet tenant beside the noisy one, p99": lambda: self._beside(connection),
            },
            unit="ms",
            rounds=5,
        )
        alone, beside = found.values()
        await connection.exchange(put_tenant(self._processes.operator_key, NOISY))
        before = await self._served_before(connection)
        connection.close()
        return [
            Row(
                f"a submission beside a tenant that wants {TIMES_OVER} times its quota / without it, p99",
                *(beside, alone),
                "ms",
                Bar(1.5, 1.1, is_limit=True),
            ),
            Row(
                "webhooks of a tenant's backlog sent before another's last / that one's own",
                *([before], [float(QUIET_BACKLOG)]),
                "webhooks",
                Bar(BACKLOG / QUIET_BACKLOG / 2, 1, is_limit=True),
            ),
        ]

    # ------------------------------------------------------------ submissions

    async def _noise(self) -> float:
        connections = await connect(self._processes.door_port, NOISY_CONNECTIONS)
        sources = [iter([submit(held[0], next(self._numbers)) for _ in range(NOISY_PREPARED)]) for held in self._noisy]
        try:
            return await Load(connections, sources).rate(seconds=NOISY_SECONDS, warm_seconds=0.5)
        finally:
            for connection in connections:
                connection.close()

    async def _beside(self, connection: Connection) -> float:
        noise = asyncio.create_task(self._noise())
        # The noisy tenant has used up the second's worth that it may use at once.
        await asyncio.sleep(2.0)
        spent = await self._quiet_milliseconds(connection)
        if noise.done():
            raise MeasureFailed("the noise ended before the quiet tenant did")
        made = await noise
        if made > 1.5 * NOISY_RATE:
            raise MeasureFailed(f"the quota lets {made:.0f} requests/s through")
        return spent

    async def _quiet_milliseconds(self, connection: Connection) -> float:
        spent: list[float] = []
        for at in range(QUIET_COUNT):
            request = submit(self._quiet[at % len(self._quiet)], next(self._numbers))
            started_at = time.perf_counter()
            await connection.exchange(request)
            spent.append(time.perf_counter() - started_at)
        return sorted(spent)[QUIET_COUNT * 99 // 100] * 1000

    # ------------------------------------------------------------ due work

    async def _served_before(self, connection: Connection) -> float:
        """Let a backlog of both build up without a dispatcher; return how many of the noisy one's went out before the
        quiet one's last."""
        await self._processes.stop("dispatcher")
        known = set(self._agents.arrivals)
        noisy = [create(self._noisy_key, NOISY)] * BACKLOG
        quiet = [create(self._processes.api_key, AGENTS[at % len(AGENTS)]) for at in range(QUIET_BACKLOG)]
        for request in (*noisy, *quiet):
            await connection.exchange(request)
        await self._processes.start("dispatcher", "dispatcher")
        await until(lambda: len(self._agents.arrivals) - len(known) >= BACKLOG + QUIET_BACKLOG, "the backlog to go out")
        arrivals = {execution_id: at for execution_id, at in self._agents.arrivals.items() if execution_id not in known}
        is_noisy = {execution_id: self._agents.held[execution_id].agent_id == NOISY for execution_id in arrivals}
        last = max(at for execution_id, at in arrivals.items() if not is_noisy[execution_id])
        return float(sum(is_noisy[execution_id] and at < last for execution_id, at in arrivals.items()))
