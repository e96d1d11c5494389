"""Case D4: `kill -9` at chosen and at random points. What was acknowledged never runs again.

Effects are lines of a file outside the kernel. The processes of the kernel and its two servers are killed; agents die
by never sending another request.
"""

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from kernel.domain.identity import shard_of
from kernel.log.jetstream import JetStreamLog
from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.calls import KEY, REPLAYED
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

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETE_KEY = "the-complete"
STEPS = 5
LANES = 6
KILLING_SECONDS_MAX = 120.0
VICTIMS = {
    "doors": ("door", "door-2"),
    "projector": ("projector",),
    "kernel": PROCESSES,
    "everything": (*PROCESSES, "valkey", "nats"),
}
each_victim = pytest.mark.parametrize("victim", VICTIMS)


class Killed(msgspec.Struct, frozen=True):
    """One execution with a step at every chosen point of the moment when something was killed.

    Steps: `open` ran its effect and was not completed, `once` likewise and at most once, `answered` was completed,
    `appended` is completed in the log, with the projector stopped since before.
    """

    lease: Lease
    steps: dict[str, str]
    appended: httpx.Response
    """What the complete of `appended` was answered in the end: at once, or when it was repeated with its key."""


POINTS = {"open": "safe_to_retry", "once": "at_most_once", "answered": "safe_to_retry", "appended": "safe_to_retry"}


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> Sink:
    return Sink(tmp_path_factory.mktemp("outside") / "effects.txt")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kernel(apart: Stack) -> AsyncIterator[Kernel]:
    async with connected(apart.url, apart.api_key) as access:
        yield access


# ---------------------------------------------------------------- chosen points


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def log(apart: Stack) -> AsyncIterator[JetStreamLog]:
    log = await JetStreamLog.connect(apart.nats.url, shards=SHARDS, name="test")
    try:
        yield log
    finally:
        await log.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def killed(kernel: Kernel, apart: Stack, log: JetStreamLog, sink: Sink) -> dict[str, Killed]:
    """An execution for every victim, all with their second attempts: killed one after another, waited for together."""
    agent = await kernel.agent(_first_is_taken)
    before = {name: await _until_killed(agent, apart, log, sink, VICTIMS[name]) for name in VICTIMS}
    leases = await asyncio.gather(
        *(
            agent.lease(each.lease.execution_id, number=2, deadline_seconds=REDELIVERY_SECONDS_MAX)
            for each in before.values()
        )
    )
    return {
        name: msgspec.structs.replace(each, lease=lease)
        for (name, each), lease in zip(before.items(), leases, strict=True)
    }


def _first_is_taken(delivery: Delivery) -> Answer:
    """Later attempts get no answer, so that their leases last until a test makes use of them."""
    return Answer(is_silent=delivery.attempt > 1)


async def _until_killed(agent: Agent, stack: Stack, log: JetStreamLog, sink: Sink, victims: tuple[str, ...]) -> Killed:
    lease = await agent.acknowledged()
    steps = {point: await lease.proceed(point, idempotency=mode) for point, mode in POINTS.items()}
    for step_id in steps.values():
        sink.run(step_id)
    accepted(await lease.complete(steps["answered"], "answered"))
    start_seq = (await log.state(shard_of(lease.execution_id, SHARDS))).last_seq
    projector = stack.process("projector")
    projector.pause()
    try:
        completing = asyncio.create_task(lease.complete(steps["appended"], "appended", key=COMPLETE_KEY))
        await until_completed_in_log(log, lease.execution_id, start_seq)
        assert not completing.done(), "it was answered though nothing folds"
        await kill(stack, victims)
    finally:
        if projector.is_running:
            projector.resume()
    await restart(stack, victims)
    (answer,) = await asyncio.gather(completing, return_exceptions=True)
    if not isinstance(answer, httpx.Response):
        assert isinstance(answer, httpx.TransportError), repr(answer)
        answer = await lease.complete(steps["appended"], "appended", key=COMPLETE_KEY)
        accepted(answer)
        assert answer.headers[REPLAYED] == "true"
    return Killed(lease, steps, answer)


@each_victim
async def test_d4_an_acknowledged_outcome_is_replayed_whatever_was_killed(
    killed: dict[str, Killed], sink: Sink, victim: str
) -> None:
    """Case D4. Sixteen cores are not at hand; the kill is always `kill -9`, never the loss of power."""
    lease, steps = killed[victim].lease, killed[victim].steps

    answer = await lease.decide("answered")

    assert (answer["decision"], answer["step_id"], answer["result"]) == ("replay", steps["answered"], "answered")
    assert sink.effects().count(steps["answered"]) == 1
    await _assert_one_outcome(lease, steps["answered"])


@each_victim
async def test_d4_an_outcome_that_was_appended_and_not_folded_is_an_outcome(
    killed: dict[str, Killed], victim: str
) -> None:
    """Case D4: between the append and the projection, and so before the answer."""
    lease, steps = killed[victim].lease, killed[victim].steps

    answer = await lease.decide("appended")

    assert accepted(killed[victim].appended) == {"decision": "recorded"}
    assert (answer["decision"], answer["step_id"], answer["result"]) == ("replay", steps["appended"], "appended")
    await _assert_one_outcome(lease, steps["appended"])


@each_victim
async def test_d4_an_effect_without_its_outcome_is_offered_again_or_called_indeterminate(
    killed: dict[str, Killed], victim: str
) -> None:
    """Case D4: after the effect and before the complete, the documented ambiguous state."""
    lease, steps = killed[victim].lease, killed[victim].steps

    again = await lease.decide("open")
    once = await lease.decide("once", idempotency="at_most_once")

    assert (again["decision"], again["step_id"]) == ("proceed", steps["open"])
    assert (once["decision"], once["step_id"]) == ("replay", steps["once"])
    assert once["error"]["reason"] == "indeterminate"


async def _assert_one_outcome(lease: Lease, step_id: str) -> None:
    events = await lease.kernel.events(lease.execution_id)
    told = [event["type"] for event in events if event["payload"].get("step_id") == step_id]
    assert told == ["step.proposed", "step.allowed", "step.executing", "step.succeeded"]


# ---------------------------------------------------------------- random points


class Run:
    """An agent's work on one execution, as often as it is delivered. It knows what was acknowledged to it."""

    def __init__(self, agent: Agent, sink: Sink, *, dies_at: int) -> None:
        self.dies_at = dies_at
        """The step after whose effect the first attempt dies; beyond the last one it lives."""
        self.outcomes: dict[str, str] = {}
        """Results by step, once their complete was acknowledged or they were replayed."""
        self.indeterminate: set[str] = set()
        self.step_ids: set[str] = set()
        self.once: set[str] = set()
        """Of steps that run at most once."""
        self.attempts = 0
        self.is_done = False
        self._agent = agent
        self._sink = sink

    @property
    def is_dying(self) -> bool:
        return self.dies_at < STEPS and not self.is_done

    async def work(self, delivery: Delivery) -> None:
        lease = self._agent.lease_of(delivery)
        for number in range(STEPS):
            if not await self._step(lease, number):
                return
        ended = await patiently(lambda: lease.complete_execution("done", key=f"end-{lease.attempt}"))
        self.is_done = ended.status_code == 204 or self.is_done

    async def _step(self, lease: Lease, number: int) -> bool:
        """Return whether the run goes on."""
        mode = "at_most_once" if number % 2 else "safe_to_retry"
        key = f"{number}-{lease.attempt}"
        submitted = await patiently(lambda: lease.submit("effect", number, idempotency=mode, key=f"s{key}"))
        if submitted.status_code == 409:
            return False
        answer = accepted(submitted)
        step_id = answer["step_id"]
        self.step_ids.add(step_id)
        if mode == "at_most_once":
            self.once.add(step_id)
        if answer["decision"] == "replay":
            self._replayed(step_id, answer)
            return True
        assert answer["decision"] == "proceed", answer
        assert step_id not in self.outcomes, "an acknowledged step was offered again"
        self._sink.run(step_id)
        if number == self.dies_at and lease.attempt == 1:
            return False
        result = secrets.token_hex(4)
        completed = await patiently(lambda: lease.complete(step_id, result, key=f"c{key}"))
        if completed.status_code == 409:
            return False
        assert accepted(completed) == {"decision": "recorded"}
        self.outcomes[step_id] = result
        return True

    def _replayed(self, step_id: str, answer: dict[str, Any]) -> None:
        if "error" in answer:
            assert answer["error"]["reason"] == "indeterminate", answer
            assert step_id not in self.outcomes
            self.indeterminate.add(step_id)
        else:
            assert answer["result"] == self.outcomes.setdefault(step_id, answer["result"])


async def test_d4_no_acknowledged_effect_runs_again_while_everything_is_killed_at_random(
    kernel: Kernel, apart: Stack, sink: Sink, seed: int
) -> None:
    """Case D4. One in eight agents dies too, between its effect and its outcome."""
    choose = random.Random(seed)
    runs: dict[str, Run] = {}
    async with asyncio.TaskGroup() as group:

        def script(delivery: Delivery) -> Answer:
            run = runs.setdefault(delivery.execution_id, Run(agent, sink, dies_at=choose.randrange(8 * STEPS)))
            run.attempts += 1
            group.create_task(run.work(delivery))
            return Answer()

        agent = await kernel.agent(script)
        killing = group.create_task(_kill_at_random(apart, sink, choose))
        for number in range(LANES):
            group.create_task(_lane(agent, runs, killing, f"lane-{number}"))

    counts = Counter(sink.effects())
    assert len(runs) > LANES
    for execution_id, run in runs.items():
        _assert_effects(run, counts)
        events = await kernel.events(execution_id)
        assert [event["event_seq"] for event in events] == list(range(1, len(events) + 1))
        assert events[-1]["type"] == "execution.completed"


async def _lane(agent: Agent, runs: dict[str, Run], killing: "asyncio.Task[None]", name: str) -> None:
    """One execution after another until the killing is over, then the ends of all that the lane began."""
    begun: list[str] = []
    while not killing.done():
        key = {KEY: f"{agent.id}-{name}-{len(begun)}"}
        created = await patiently(lambda key=key: agent.kernel.create(agent.id, headers=key))
        begun.append(accepted(created, 201)["id"])
        newest = await _run_of(runs, begun[-1])
        await wait_until_async(
            lambda newest=newest: newest.is_done or newest.is_dying or killing.done(),
            "an execution to be done or the killing to be over",
            deadline_seconds=KILLING_SECONDS_MAX,
        )
    for each in begun:
        run = await _run_of(runs, each)
        await wait_until_async(
            lambda run=run: run.is_done, f"the end of {each}", deadline_seconds=REDELIVERY_SECONDS_MAX
        )


async def _run_of(runs: dict[str, Run], execution_id: str) -> Run:
    await wait_until_async(
        lambda: execution_id in runs, f"the delivery of {execution_id}", deadline_seconds=REDELIVERY_SECONDS_MAX
    )
    return runs[execution_id]


async def _kill_at_random(stack: Stack, sink: Sink, choose: random.Random) -> None:
    """Every kind of victim once, in any order, each after a random number of further effects."""
    for victims in choose.sample([*VICTIMS.values(), ("dispatcher",)], len(VICTIMS) + 1):
        enough = len(sink.effects()) + choose.randint(1, 60)
        await wait_until_async(
            lambda enough=enough: len(sink.effects()) >= enough,
            "the work to go on",
            deadline_seconds=REDELIVERY_SECONDS_MAX,
        )
        await kill(stack, victims)
        await restart(stack, victims)


def _assert_effects(run: Run, counts: Counter[str]) -> None:
    """Every step ran once, but for those that an attempt left without an outcome, of which it has one at most."""
    assert len(run.step_ids) == STEPS
    assert run.step_ids == run.outcomes.keys() | run.indeterminate
    repeats = {step_id: counts[step_id] - 1 for step_id in run.step_ids}
    assert min(repeats.values()) >= 0, "an outcome without its effect"
    assert sum(repeats.values()) <= run.attempts - 1
    assert not any(repeats[step_id] for step_id in run.once)
