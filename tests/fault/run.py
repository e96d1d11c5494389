"""A run: a workload on a faulty stack, faults while it works, then calm, and the judgement of all that was seen."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import islice

import msgspec
import redis

from tests.conformance.harness.kernel import Kernel, connected
from tests.fault.checker import check
from tests.fault.faults import FAULTS, Faults
from tests.fault.faulty_stack import FaultyStack
from tests.fault.history import Asked, ExecutionRead
from tests.fault.reading import read_back
from tests.fault.workload import Workload
from tests.support.scripted_agent import pass_time
from tests.support.view_dump import view_dump
from tests.support.wait import wait_until_async

WORK_SECONDS_MIN = 0.5
WORK_SECONDS_MAX = 1.5
"""Between two faults: the work has to go on, or the faults meet nothing."""
CALM_SECONDS_MAX = 120.0
FINDINGS_SHOWN_MAX = 20
LANES = 6
SLEEPERS = 2
"""Of a short run."""


class Verdict(msgspec.Struct, frozen=True):
    """What a run did and found."""

    seed: int
    faults: tuple[str, ...]
    executions: int
    requests: int
    effects: int
    unsettled: dict[int, int]
    findings: tuple[str, ...]

    def __str__(self) -> str:
        told = ", ".join(f"{count} x {status or 'lost'}" for status, count in sorted(self.unsettled.items()))
        lines = [
            f"seed {self.seed}: {self.executions} executions, {self.requests} requests ({told or 'all answered'}), "
            f"{self.effects} effects; {len(self.findings)} broken promises",
            f"faults: {', '.join(self.faults)}",
            *self.findings[:FINDINGS_SHOWN_MAX],
        ]
        if len(self.findings) > FINDINGS_SHOWN_MAX:
            lines.append(f"... and {len(self.findings) - FINDINGS_SHOWN_MAX} more")
        return "\n".join(lines)


def fault_names(choose: random.Random) -> Iterator[str]:
    """Every fault once in a random order, then every one again in another, for ever."""
    while True:
        yield from choose.sample(sorted(FAULTS), len(FAULTS))


async def run(
    stack: FaultyStack,
    seed: int,
    names: Iterator[str],
    *,
    lanes: int,
    sleepers: int,
    until: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Do the faults of `names` one after another under load until they or the time end, and judge the run."""
    choose = random.Random(seed)
    faults = Faults(stack, choose)
    async with AsyncExitStack() as closing:
        doors = [await closing.enter_async_context(connected(url, stack.api_key)) for url in stack.urls]
        workload = Workload(doors, seed)
        async with asyncio.TaskGroup() as group:
            work = await workload.start(group, lanes=lanes, sleepers=sleepers)
            try:
                for name in names:
                    if until():
                        break
                    begun = workload.record.answered
                    await pass_time(choose.uniform(WORK_SECONDS_MIN, WORK_SECONDS_MAX))
                    await faults.do(name)
                    tell(f"{name}: {workload.record.answered - begun} answers")
            finally:
                workload.is_over = True
            await asyncio.wait(work)
        await _calm(doors)
        return await _judge(stack, doors[0], workload, faults)


async def play_once(stack: FaultyStack, seed: int, names: Sequence[str]) -> None:
    """Do each of these faults once, in an order that the seed decides, with few lanes. Fails where a promise broke."""
    chosen = random.Random(seed).sample(names, len(names))

    verdict = await run(stack, seed, iter(chosen), lanes=LANES, sleepers=SLEEPERS)

    assert not verdict.findings, str(verdict)
    assert verdict.faults == tuple(chosen)
    assert verdict.effects > LANES


async def _calm(doors: list[Kernel]) -> None:
    for door in doors:

        async def is_ready(door: Kernel = door) -> bool:
            return (await door.get("/v0/ready")).status_code == 200

        await wait_until_async(is_ready, "every door to be ready again", deadline_seconds=CALM_SECONDS_MAX)


async def _judge(stack: FaultyStack, door: Kernel, workload: Workload, faults: Faults) -> Verdict:
    reads = await read_back(door, workload.agent_ids)
    record = workload.record
    findings = workload.findings + check(record.history, reads)
    findings += _sleepers_expired(workload, reads)
    findings += await _differences_of_a_rebuild(stack, door, workload.agent_ids, reads)
    return Verdict(
        seed=workload.seed,
        faults=tuple(faults.done),
        executions=len(reads),
        requests=sum(isinstance(line, Asked) for line in record.history),
        effects=record.effects,
        unsettled=dict(record.unsettled),
        findings=tuple(findings),
    )


def _sleepers_expired(workload: Workload, reads: list[ExecutionRead]) -> Iterator[str]:
    """No agent that kept trying to heartbeat is expired: there is no second attempt, and it could end its work."""
    for read in reads:
        if read.execution_id not in workload.sleepers:
            continue
        attempts = workload.attempts(read.execution_id)
        if attempts != {1} or read.status != "completed":
            yield f"the sleeper {read.execution_id} is {read.status} and was delivered as attempts {sorted(attempts)}"


async def _differences_of_a_rebuild(
    stack: FaultyStack, door: Kernel, agent_ids: list[str], reads: list[ExecutionRead]
) -> list[str]:
    """The view must be what folding the log anew makes of it, byte for byte, and read the same over the wire."""
    before = await settled_dump(stack)
    with redis.Redis.from_url(stack.valkey.url) as client:
        client.flushall()
    again = await read_back(door, agent_ids)
    after = await settled_dump(stack)
    findings = [f"the view and its rebuild differ in {key}" for key in _differing(before, after)]
    if sorted(again, key=_id) != sorted(reads, key=_id):
        findings.append("what is read over the wire differs after a rebuild")
    return findings


def _id(read: ExecutionRead) -> str:
    return read.execution_id


def _differing(before: dict[str, object], after: dict[str, object]) -> list[str]:
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


async def settled_dump(stack: FaultyStack) -> dict[str, object]:
    """The view once it stands still: nothing claimed, nothing on its way."""
    last: dict[str, object] = {}

    async def stands_still() -> bool:
        nonlocal last
        dump = await asyncio.to_thread(view_dump, stack.valkey.url)
        is_same = dump == last and bool(dump)
        last = dump
        return is_same

    await wait_until_async(stands_still, "the view to stand still", deadline_seconds=CALM_SECONDS_MAX)
    return last


def first(count: int, names: Iterator[str]) -> Iterator[str]:
    return islice(names, count)


def for_seconds(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed since this call."""
    ends_at = time.monotonic() + seconds
    return lambda: time.monotonic() >= ends_at
