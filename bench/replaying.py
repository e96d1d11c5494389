"""A replayed step in an execution of very many recorded steps beside one in executions of few.

The record is made by appending entries to the log, as a door would, and letting the projector fold them.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from statistics import median

from msgspec import Raw
from msgspec.structs import replace

from bench.agents import Agents, created
from bench.connections import Connection, connect
from bench.processes import Processes, until
from bench.publishing import submission
from bench.ratios import Bar, MeasureFailed, Row, say
from bench.rebuilding import SHARDS, Rebuilding
from bench.requests import RESULT, Held, step_of, submit
from kernel.domain.identity import shard_of
from kernel.ports import Acknowledged, Outgoing, Rejected
from schemas.entries import AnyEntry, LeaseExpired, Outcome, encode_entry
from schemas.ids import DEFAULT_TENANT

MANY = 100_000
FEW = 10
SMALL_EXECUTIONS = 60
"""So many that each round asks for every step of a third of them once."""
IN_FLIGHT_MAX = 512
ROUNDS = 3
REPLAYS = SMALL_EXECUTIONS // ROUNDS * FEW
SEED = 20_260_101


async def replay_rows(processes: Processes, agents: Agents, rebuilding: Rebuilding) -> list[Row]:
    large, *small = await created(processes, agents, 1 + SMALL_EXECUTIONS)
    appending = _Appending(rebuilding)
    for held in small:
        await appending.record(held, FEW)
    started_at = time.perf_counter()
    await appending.record(large, MANY)
    await rebuilding.level()
    say(f"recorded {MANY} steps of one execution: {MANY / (time.perf_counter() - started_at):,.0f} entries/s")
    again = await _next_attempts(agents, appending, [large, *small])
    connection = (await connect(processes.door_port, 1))[0]
    replays = _Replays(connection, large=again[0], small=again[1:])
    many: list[float] = []
    few: list[float] = []
    for number in range(1, ROUNDS + 1):
        of_many, of_few = await replays.milliseconds()
        many.append(of_many)
        few.append(of_few)
        say(f"round {number}: replay in an execution of {MANY} steps: {of_many:.2f} ms, of {FEW}: {of_few:.2f} ms")
    connection.close()
    return [
        Row(f"replay in an execution of {MANY} steps / of {FEW}, p50", many, few, "ms", Bar(1.2, 1.05, is_limit=True))
    ]


class _Appending:
    """Appends recorded steps, many entries under way at once."""

    def __init__(self, rebuilding: Rebuilding) -> None:
        self._log = rebuilding.log
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self.last_seqs: dict[str, int] = {}
        """Of each execution, where its last submission lies: what renewed its lease."""

    async def record(self, held: Held, steps: int) -> None:
        """Record steps as they are recorded by an agent whose outcomes travel with the next submission."""
        settled = ""
        for number in range(steps):
            entry = submission(held, number, expires=None)
            if settled:
                entry = replace(entry, settle=(Outcome(settled, result=Raw(RESULT)),))
            await self.append(entry)
            settled = step_of(held.execution_id, number)
            if number % 20_000 == 19_999:
                say(f"{number + 1} steps appended")
        # The outcome of the last step travels with a call that is never asked for again.
        last = submission(held, steps, expires=None)
        await self.append(replace(last, settle=(Outcome(settled, result=Raw(RESULT)),)))
        await self.drained()

    async def append(self, entry: AnyEntry) -> None:
        await self._room.acquire()

        def heard(said: Acknowledged | Rejected) -> None:
            self._room.release()
            if isinstance(said, Rejected):
                raise MeasureFailed(f"an entry was refused: {said.reason}")
            self.last_seqs[entry.execution_id] = max(said.seq, self.last_seqs.get(entry.execution_id, 0))

        outgoing = Outgoing(
            shard=shard_of(entry.execution_id, SHARDS),
            tenant=entry.tenant,
            execution_id=entry.execution_id,
            entry_id=entry.id,
            payload=encode_entry(entry),
            reply_to="",
        )
        self._log.send(outgoing, heard)

    async def drained(self) -> None:
        for _ in range(IN_FLIGHT_MAX):
            await self._room.acquire()
        for _ in range(IN_FLIGHT_MAX):
            self._room.release()


async def _next_attempts(agents: Agents, appending: _Appending, held: Sequence[Held]) -> list[Held]:
    """Let the leases end, as a dispatcher would, and return the executions under their next ones."""
    for each in held:
        seq = appending.last_seqs[each.execution_id]
        await appending.append(
            LeaseExpired(
                id=f"expired.{each.execution_id}.{seq}",
                tenant=DEFAULT_TENANT,
                execution_id=each.execution_id,
                at=time.time_ns() // 1000,
                lease=each.lease,
                renewed_seq=seq,
            )
        )
    await appending.drained()

    def current() -> list[Held]:
        return [agents.held[each.execution_id] for each in held]

    await until(lambda: all(each.lease.attempt == 2 for each in current()), "the second attempts")
    return current()


class _Replays:
    """Asks for every recorded step at most once: one more time would be another occurrence."""

    def __init__(self, connection: Connection, *, large: Held, small: Sequence[Held]) -> None:
        self._connection = connection
        numbers = random.Random(SEED).sample(range(MANY), REPLAYS * ROUNDS)
        self._many = iter([submit(large, number) for number in numbers])
        self._few = iter([submit(held, number) for held in small for number in range(FEW)])

    async def milliseconds(self) -> tuple[float, float]:
        """Return the median times of a replay, among many steps and among few, asked for in turn."""
        many: list[float] = []
        few: list[float] = []
        for _ in range(REPLAYS):
            many.append(await self._milliseconds(next(self._many)))
            few.append(await self._milliseconds(next(self._few)))
        return median(many), median(few)

    async def _milliseconds(self, request: bytes) -> float:
        started_at = time.perf_counter()
        body = await self._connection.exchange(request)
        spent = time.perf_counter() - started_at
        if not body.startswith(b'{"decision":"replay"'):
            raise MeasureFailed(f"a recorded step was answered {body[:200]!r}")
        return spent * 1000
