"""Five hundred executions with an observer each, on real servers: everything in order, and nothing left behind."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.stacks import SETTINGS
from tests.support.event_streams import Frames, opened
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

OBSERVERS = 500
DELTAS = 4
AT_ONCE = 50
DRAIN_SECONDS = 4.0
STREAMS_AT_THE_END = 100
LEFT_MIB_MAX = 24.0
"""What a second visit of as many observers may leave in a door's memory that the first one did not."""
SECONDS_MAX = 60.0

Value = TypeVar("Value")

pytestmark = pytest.mark.alone


@pytest.fixture
def alone() -> Iterator[Stack]:
    """A server of the test's own, whose leases outlast it."""
    settings = SETTINGS | {"STEPWELL_DRAIN_TIMEOUT": f"{DRAIN_SECONDS:g}s"}
    with Stack.start(lease_seconds=120, settings=settings) as running:
        yield running


@asynccontextmanager
async def unlimited(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    """A client that opens as many connections as it is asked to."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=SECONDS_MAX, trust_env=False) as http:
        yield http


async def few_at_once(calls: list[Callable[[], Awaitable[Value]]]) -> list[Value]:
    """Make calls, so many at once, and return what they return in their order."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def made(call: Callable[[], Awaitable[Value]]) -> Value:
        async with slots:
            return await call()

    return await asyncio.gather(*(made(call) for call in calls))


async def started(kernel: Kernel, count: int) -> list[tuple[Lease, str]]:
    """So many executions, each with a step under way."""
    agent = await kernel.agent()

    async def begun() -> tuple[Lease, str]:
        lease = await agent.acknowledged()
        return lease, await lease.proceed()

    return await few_at_once([begun] * count)


async def shown(lease: Lease, step_id: str, seq: int) -> httpx.Response:
    return await lease.request(f"/steps/{step_id}/stream", {"seq": seq, "data": f"piece {seq}"})


async def visited(stack: Stack, runs: list[tuple[Lease, str]], http: httpx.AsyncClient) -> list[list[int]]:
    """Let an observer come to every execution, show it deltas, and return the numbers that it saw."""
    bearer = {"authorization": f"Bearer {stack.api_key}"}

    async def seen_by(frames: Frames) -> list[int]:
        return [(await frames.next(seconds=SECONDS_MAX))["data"]["seq"] for _ in range(DELTAS)]

    async with AsyncExitStack() as leaving:
        observers = [
            await leaving.enter_async_context(opened(http, f"{stack.url}{lease.path}/stream", bearer))
            for lease, _ in runs
        ]
        watching = [asyncio.create_task(seen_by(frames)) for frames in observers]
        for seq in range(DELTAS):
            for answer in await few_at_once([partial(shown, *run, seq) for run in runs]):
                accepted(answer, 204)
        return [await each for each in watching]


async def open_streams(kernel: Kernel, stack: Stack) -> int:
    text = (await kernel.holding(stack.operator_key).get("/metrics")).text
    found = re.search(r"^stepwell_streams_open (\d+)", text, re.MULTILINE)
    assert found is not None, text[:500]
    return int(found[1])


def resident_mib(stack: Stack) -> float:
    status = Path(f"/proc/{stack.process('server').pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def test_each_of_500_executions_is_watched_and_nothing_is_left(alone: Stack) -> None:
    async with connected(alone.url, alone.api_key) as kernel, unlimited(alone) as http:
        runs = await started(kernel, OBSERVERS)

        assert await visited(alone, runs, http) == [list(range(DELTAS))] * OBSERVERS
        await wait_until_async(lambda: _has(kernel, alone, 0), "the streams to be gone", deadline_seconds=30)
        before = resident_mib(alone)
        assert await visited(alone, runs, http) == [list(range(DELTAS))] * OBSERVERS
        await wait_until_async(lambda: _has(kernel, alone, 0), "the streams to be gone", deadline_seconds=30)

        assert resident_mib(alone) - before <= LEFT_MIB_MAX


async def test_a_server_with_100_open_streams_stops_within_its_limit(alone: Stack) -> None:
    bearer = {"authorization": f"Bearer {alone.api_key}"}
    async with connected(alone.url, alone.api_key) as kernel, unlimited(alone) as http, AsyncExitStack() as leaving:
        runs = await started(kernel, 10)
        paths = [f"{lease.path}/{kind}" for lease, _ in runs for kind in ("stream", "events/stream?after_seq=1000")]
        observers = [
            await leaving.enter_async_context(opened(http, f"{alone.url}{path}", bearer))
            for path in paths * (STREAMS_AT_THE_END // len(paths))
        ]
        assert await open_streams(kernel, alone) == STREAMS_AT_THE_END
        process = alone.process("server")
        signalled_at = time.monotonic()
        process.send(signal.SIGTERM)
        await wait_until_async(lambda: not process.is_running, "the end of the server", deadline_seconds=30)

        assert time.monotonic() - signalled_at <= DRAIN_SECONDS + 2.0
        assert process.exit_code == 0
        for frames in observers:
            # Ended, and not by the end of its execution.
            assert await frames.rest() == []


async def _has(kernel: Kernel, stack: Stack, count: int) -> bool:
    return await open_streams(kernel, stack) == count
