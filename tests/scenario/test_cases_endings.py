"""Case D6: of a cancel and a completion that race, the first in the log is the end, and both callers learn which."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import httpx
import msgspec
import pytest

from kernel.log.jetstream import JetStreamLog
from schemas.entries import AnyEntry, ExecutionCancelled, ExecutionCompleted, ExecutionFailed, decode_entry
from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted, details
from tests.conformance.harness.kernel import Kernel, connected
from tests.support.stack import Stack

RACES = 240
RACES_OF_THE_CASE = 1000
LOOKED_AT_AFTERWARDS = 40
CANCELLED_TWICE = 100
TOGETHER = 30
SHARDS = 8
STATUS_OF = {ExecutionCompleted: "completed", ExecutionFailed: "failed", ExecutionCancelled: "cancelled"}
ENDS = {f"execution.{status}" for status in STATUS_OF.values()}


class Race(msgspec.Struct, frozen=True):
    """One execution with an open step, what its agent and its client answered, and what was asked for."""

    lease: Lease
    step_id: str
    wanted: str
    by_agent: httpx.Response
    by_client: httpx.Response


@pytest.fixture
async def doors(apart: Stack) -> AsyncIterator[tuple[Kernel, Kernel]]:
    one, two = apart.urls
    async with connected(one, apart.api_key) as first, connected(two, apart.api_key) as second:
        yield first, second


@pytest.mark.alone
async def test_d6_a_cancel_and_an_end_that_race_leave_one_end_and_both_callers_know_it(
    apart: Stack, doors: tuple[Kernel, Kernel], seed: int
) -> None:
    """Case D6, a quarter of it. That a waiting approval can no longer be granted is shown where approvals are built."""
    await _one_end_of_each_race(apart, doors, seed, RACES)


@pytest.mark.soak
async def test_d6_a_thousand_cancels_and_ends_that_race_leave_one_end_each(
    apart: Stack, doors: tuple[Kernel, Kernel], seed: int
) -> None:
    """Case D6 in full."""
    await _one_end_of_each_race(apart, doors, seed, RACES_OF_THE_CASE)


async def _one_end_of_each_race(apart: Stack, doors: tuple[Kernel, Kernel], seed: int, count: int) -> None:
    choose = random.Random(seed)
    agent = await doors[0].agent()
    slots = asyncio.Semaphore(TOGETHER)

    async def race(delay_seconds: float, *, is_failing: bool) -> Race:
        async with slots:
            return await _race(agent, doors, delay_seconds, is_failing=is_failing)

    plans = [(choose.uniform(-0.001, 0.001), choose.random() < 0.25) for _ in range(count)]
    races = await asyncio.gather(*(race(delay, is_failing=is_failing) for delay, is_failing in plans))

    firsts = await _first_ends(apart)
    ends = {each.lease.execution_id: await _assert_one_end(each, doors) for each in races}
    assert ends == {execution_id: firsts[execution_id] for execution_id in ends}
    for each in races[:LOOKED_AT_AFTERWARDS]:
        await _assert_nothing_follows(each, doors, ends[each.lease.execution_id])
    # Both sides won some of the races; otherwise they did not race.
    assert "cancelled" in ends.values()
    assert "completed" in ends.values()


async def _race(agent: Agent, doors: tuple[Kernel, Kernel], delay_seconds: float, *, is_failing: bool) -> Race:
    """Cancel through one door while the agent ends it through the other; within a millisecond, either may start."""
    lease = await agent.start()
    step_id = await lease.proceed("open")
    by_client = doors[1].call("POST", f"{lease.path}/cancel")
    settle = [{"step_id": step_id, "result": "late"}]
    body = {"error": "gave up"} if is_failing else {"output": "done"}
    by_agent = lease.call("/fail" if is_failing else "/complete", body | {"settle": settle})
    both = await asyncio.gather(
        _after(max(0.0, delay_seconds), doors[0].send(by_agent)),
        _after(max(0.0, -delay_seconds), doors[1].send(by_client)),
    )
    return Race(lease, step_id, "failed" if is_failing else "completed", *both)


async def _after(seconds: float, request: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, turn.set_result, None)
    await turn
    return await request


async def _first_ends(stack: Stack) -> dict[str, str]:
    """The status that the first entry in the log to end an execution asks for, by execution."""
    firsts: dict[str, str] = {}
    log = await JetStreamLog.connect(stack.nats.url, shards=SHARDS, name="test")
    try:
        for shard in range(SHARDS):
            async for entry in _entries(log, shard):
                if type(entry) in STATUS_OF:
                    firsts.setdefault(entry.execution_id, STATUS_OF[type(entry)])
    finally:
        await log.close()
    return firsts


async def _entries(log: JetStreamLog, shard: int) -> AsyncIterator[AnyEntry]:
    last_seq, seq = (await log.state(shard)).last_seq, 0
    async with log.follow(shard, after_seq=0) as follower:
        while seq < last_seq:
            for message in await follower.next(messages_max=1000, bytes_max=1 << 24, wait_seconds=5.0):
                seq = message.seq
                yield decode_entry(message.payload)


async def _assert_one_end(race: Race, doors: tuple[Kernel, Kernel]) -> str:
    """Check both answers against what is on record, the same through both doors, and return how it ended."""
    execution, (step,), events = found = await doors[0].trace(race.lease.execution_id)
    assert await doors[1].trace(race.lease.execution_id) == found
    status = execution["status"]
    won, lost = (race.by_client, race.by_agent) if status == "cancelled" else (race.by_agent, race.by_client)
    accepted(won, 204)
    assert details(lost, 409, "execution_terminal") == {"status": status}
    assert status in {race.wanted, "cancelled"}
    assert [event["payload"]["status"] for event in events if event["type"] in ENDS] == [status]
    # What travelled with the completion is part of it, or nothing of it is kept.
    expected = ("cancelled", None) if status == "cancelled" else ("succeeded", "late")
    assert (step["status"], step["result"]) == expected
    return status


async def _assert_nothing_follows(race: Race, doors: tuple[Kernel, Kernel], status: str) -> None:
    lease, execution_id = race.lease, race.lease.execution_id
    before = await doors[0].trace(execution_id)
    # The open step's next call, a new step, a late cancel and a heartbeat all meet the end that is there.
    assert accepted(await lease.complete(race.step_id, "later")) == {"decision": "execution_terminal"}
    assert (await lease.decide("new"))["decision"] == "execution_terminal"
    assert details(await doors[0].cancel(execution_id), 409, "execution_terminal") == {"status": status}
    assert details(await lease.fail_execution("late"), 409, "execution_terminal") == {"status": status}
    details(await lease.heartbeat(), 409, "lease_superseded")
    assert await doors[1].trace(execution_id) == before


async def test_d6_a_cancel_while_a_step_is_open_ends_the_step_and_a_second_cancel_says_so(
    doors: tuple[Kernel, Kernel],
) -> None:
    """Case D6."""
    await _cancel_twice(await doors[0].agent(), doors)


@pytest.mark.soak
async def test_d6_of_two_cancels_at_once_one_ends_the_execution_and_the_other_is_told(
    doors: tuple[Kernel, Kernel],
) -> None:
    """Case D6, a hundred times, many at once."""
    agent = await doors[0].agent()
    slots = asyncio.Semaphore(TOGETHER)

    async def cancel_twice() -> None:
        async with slots:
            await _cancel_twice(agent, doors)

    await asyncio.gather(*(cancel_twice() for _ in range(CANCELLED_TWICE)))


async def _cancel_twice(agent: Agent, doors: tuple[Kernel, Kernel]) -> None:
    lease = await agent.start()
    step_id = await lease.proceed("open")

    both = await asyncio.gather(*(door.cancel(lease.execution_id) for door in doors))

    assert sorted(response.status_code for response in both) == [204, 409]
    (refused,) = [response for response in both if response.status_code == 409]
    assert details(refused, 409, "execution_terminal") == {"status": "cancelled"}
    assert (await doors[1].step(lease.execution_id, step_id))["status"] == "cancelled"
    assert accepted(await lease.complete(step_id, 1)) == {"decision": "execution_terminal"}
    assert accepted(await lease.fail(step_id, "e")) == {"decision": "execution_terminal"}
    types = await doors[1].event_types(lease.execution_id)
    assert [each for each in types if each in ENDS | {"step.cancelled"}] == ["execution.cancelled", "step.cancelled"]
