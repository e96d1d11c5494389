"""Case D4 in full: fifty times `kill -9` of processes of the kernel, its servers, or the agent, at each fault point.

Each run has one execution with steps at all points. Whatever dies, the agent's first attempt ends with it.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import msgspec
import pytest

from kernel.domain.identity import shard_of
from kernel.log.jetstream import JetStreamLog
from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted, details
from tests.conformance.harness.calls import Call
from tests.conformance.harness.endpoint import Answer, Delivery
from tests.conformance.harness.kernel import Kernel, connected
from tests.scenario.crashing import (
    PROCESSES,
    REDELIVERY_SECONDS_MAX,
    SHARDS,
    Sink,
    kill,
    patiently,
    restart,
    until_completed_in_log,
)
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

pytestmark = pytest.mark.soak

RUNS = 50
ATTEMPTS_MAX = 5
VICTIMS = (
    (),
    ("door-2",),
    ("door", "door-2"),
    ("projector",),
    ("projector", "door-2"),
    ("dispatcher",),
    PROCESSES,
    (*PROCESSES, "valkey", "nats"),
)
"""None: only the agent dies, its requests half-way."""
STEPS = {
    "open": "safe_to_retry",
    "once": "at_most_once",
    "answered": "safe_to_retry",
    "folded": "safe_to_retry",
    "appended": "safe_to_retry",
}
"""`open` and `once` ran their effects and were not completed; `answered` was acknowledged; `folded` is completed in log
and view, and its answer never left; `appended` is completed in the log alone."""
RECORDED = ("answered", "folded", "appended")


class Killed(msgspec.Struct, frozen=True):
    """One execution whose first attempt is dead, with the steps that it left behind."""

    lease: Lease
    steps: dict[str, str]
    victims: tuple[str, ...]


class Fixture:
    """The kernel through both doors, its log, and the agent. A first attempt is acknowledged, later ones are held."""

    def __init__(self, stack: Stack, doors: tuple[Kernel, Kernel], log: JetStreamLog, agent: Agent, sink: Sink) -> None:
        self.stack = stack
        self.doors = doors
        self.log = log
        self.agent = agent
        self.sink = sink

    async def run(self, victims: tuple[str, ...]) -> Killed:
        """Bring an execution to all the points, and kill."""
        lease = await self.agent.acknowledged()
        steps = {name: await lease.proceed(name, idempotency=mode) for name, mode in STEPS.items()}
        for step_id in steps.values():
            self.sink.run(step_id)
        accepted(await lease.complete(steps["answered"], "answered"))
        door = self.stack.process("door-2")
        async with AsyncExitStack() as requests:
            try:
                await self._complete_unanswered(lease, steps["folded"], requests)
                await self._complete_unfolded(lease, steps["appended"], requests)
                await kill(self.stack, victims)
            finally:
                # An agent that dies takes its connections with it; so do the doors.
                await requests.aclose()
                for process in (door, self.stack.process("projector")):
                    if process.is_running:
                        process.resume()
        await restart(self.stack, victims)
        return Killed(lease, steps, victims)

    async def _complete_unanswered(self, lease: Lease, step_id: str, requests: AsyncExitStack) -> None:
        """The outcome is in log and view, and the door that took it stands still before it can say so."""
        door, projector = self.stack.process("door-2"), self.stack.process("projector")
        start_seq = await self._head(lease)
        projector.pause()
        call = lease.call(f"/steps/{step_id}/complete", {"result": "folded"})
        completing = self._sent(self.doors[1], call, requests)
        await until_completed_in_log(self.log, lease.execution_id, start_seq)
        door.pause()
        projector.resume()

        async def is_folded() -> bool:
            return (await self.doors[0].step(lease.execution_id, step_id))["status"] == "succeeded"

        await wait_until_async(is_folded, "the outcome to be folded")
        assert not completing.done(), "it was answered by a door that stands still"

    async def _complete_unfolded(self, lease: Lease, step_id: str, requests: AsyncExitStack) -> None:
        start_seq = await self._head(lease)
        self.stack.process("projector").pause()
        call = lease.call(f"/steps/{step_id}/complete", {"result": "appended"})
        completing = self._sent(self.doors[0], call, requests)
        await until_completed_in_log(self.log, lease.execution_id, start_seq)
        assert not completing.done(), "it was answered though nothing folds"

    def _sent(self, door: Kernel, call: Call, requests: AsyncExitStack) -> "asyncio.Task[httpx.Response]":
        task = asyncio.create_task(door.send(call))

        async def cut() -> None:
            task.cancel()
            await asyncio.wait([task])

        requests.push_async_callback(cut)
        return task

    async def _head(self, lease: Lease) -> int:
        return (await self.log.state(shard_of(lease.execution_id, SHARDS))).last_seq

    # ------------------------------------------------------------ what a later attempt is told

    async def look(self, killed: Killed) -> None:
        """Ask for all steps again under a later attempt; while others are killed, one may be lost as well."""
        for number in range(2, ATTEMPTS_MAX + 1):
            lease = await self.agent.lease(
                killed.lease.execution_id, number=number, deadline_seconds=REDELIVERY_SECONDS_MAX
            )
            if await self._is_as_promised(lease, killed):
                return
        raise AssertionError(f"no attempt at {killed.lease.execution_id} lived long enough")

    async def _is_as_promised(self, lease: Lease, killed: Killed) -> bool:
        """Return False where this attempt has been superseded meanwhile."""
        steps, told = killed.steps, f"{lease.execution_id} after the end of {killed.victims or 'the agent'}"
        for name, mode in STEPS.items():
            key = f"{name}-{lease.attempt}"
            response = await patiently(
                lambda name=name, mode=mode, key=key: lease.submit(name, idempotency=mode, key=key)
            )
            if response.status_code == httpx.codes.CONFLICT:
                details(response, 409, "lease_superseded")
                return False
            answer = accepted(response)
            decision = "proceed" if name == "open" else "replay"
            assert (answer["decision"], answer["step_id"]) == (decision, steps[name]), f"{name} of {told}: {answer}"
            if name in RECORDED:
                assert answer["result"] == name, f"{name} of {told}: {answer}"
            if name == "once":
                assert answer["error"]["reason"] == "indeterminate", f"{told}: {answer}"
        return True

    async def assert_one_outcome_each(self, killed: Killed) -> None:
        events = await self.doors[0].events(killed.lease.execution_id)
        for name in RECORDED:
            types = Counter(each["type"] for each in events if each["payload"].get("step_id") == killed.steps[name])
            assert types == dict.fromkeys(("step.proposed", "step.allowed", "step.executing", "step.succeeded"), 1)


def _first_is_taken(delivery: Delivery) -> Answer:
    """Later attempts get no answer, so that their leases last until a test makes use of them."""
    return Answer(is_silent=delivery.attempt > 1)


@pytest.fixture
async def everything(apart: Stack, tmp_path: Path) -> AsyncIterator[Fixture]:
    async with AsyncExitStack() as closing:
        one, two = [await closing.enter_async_context(connected(url, apart.api_key)) for url in apart.urls]
        log = await JetStreamLog.connect(apart.nats.url, shards=SHARDS, name="test")
        closing.push_async_callback(log.close)
        agent = await one.agent(_first_is_taken)
        yield Fixture(apart, (one, two), log, agent, Sink(tmp_path / "effects.txt"))


async def test_d4_fifty_kills_at_every_fault_point_repeat_nothing_that_was_recorded(
    everything: Fixture, seed: int
) -> None:
    """Case D4. Sixteen cores are not at hand; the kill is always `kill -9`, never the loss of power."""
    choose = random.Random(seed)
    # All kinds of victims about as often, in any order.
    kinds = [VICTIMS[number % len(VICTIMS)] for number in range(RUNS)]
    runs: list[Killed] = []
    async with asyncio.TaskGroup() as group:
        for victims in choose.sample(kinds, len(kinds)):
            runs.append(await everything.run(victims))
            group.create_task(everything.look(runs[-1]))

    counts = Counter(everything.sink.effects())
    for killed in runs:
        await everything.assert_one_outcome_each(killed)
        assert {counts[step_id] for step_id in killed.steps.values()} == {1}
