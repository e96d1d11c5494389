"""K79: `max_concurrency` bounds the webhook calls open at once per agent, over all dispatchers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.conformance.harness.agent import Agent
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.endpoint import Answer, Delivery
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.stacks import SETTINGS
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

LIMIT = 2
EXECUTIONS = 12
# Long enough that nothing is delivered again for want of work, which these agents never do.
LEASE_SECONDS = 120
# Short enough that what a killed dispatcher held is free again soon: ten seconds later.
DELIVERY_SECONDS = 3.0
HOLD_SECONDS = DELIVERY_SECONDS + 10.0
BUSY_SECONDS = 0.2


class Held:
    """The script of an agent that holds each answer until the test lets it go; it counts what is open meanwhile."""

    def __init__(self) -> None:
        self.most = 0
        self._held: list[asyncio.Event] = []
        self._answers_at_once = False

    @property
    def open(self) -> int:
        return len(self._held)

    async def __call__(self, _: Delivery) -> Answer:
        gone = asyncio.Event()
        self._held.append(gone)
        self.most = max(self.most, self.open)
        if not self._answers_at_once:
            await gone.wait()
        if gone in self._held:
            self._held.remove(gone)
        return Answer()

    def answer_one(self) -> None:
        """Answer the one that is held longest."""
        self._held.pop(0).set()

    def answer_all(self) -> None:
        """Answer everything that is held, and whatever comes from now on."""
        self._answers_at_once = True
        while self._held:
            self.answer_one()


@pytest.fixture(scope="module")
def apart() -> Iterator[Stack]:
    """A kernel with two dispatchers."""
    with Stack.start(processes="apart", dispatchers=2, lease_seconds=LEASE_SECONDS, settings=SETTINGS) as stack:
        yield stack


@asynccontextmanager
async def on(stack: Stack) -> AsyncIterator[Kernel]:
    async with connected(stack.url, stack.api_key) as access:
        yield access


async def _is_quiet(agent: Agent, *, seconds: float) -> bool:
    """Whether no webhook arrives for so long."""
    count = len(agent.endpoint.deliveries)
    await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=seconds)
    return len(agent.endpoint.deliveries) == count


async def _hears(agent: Agent, count: int, *, deadline_seconds: float = 10.0) -> None:
    await wait_until_async(
        lambda: len(agent.endpoint.deliveries) >= count, f"{count} webhooks", deadline_seconds=deadline_seconds
    )


async def _assert_each_received_once(agent: Agent, ids: list[str]) -> None:
    """No attempt was used up by waiting: each has its first one, and has had no other."""
    for execution_id in ids:
        assert [each.attempt for each in agent.endpoint.of(execution_id)] == [1]
        acked = await agent.kernel.wait_for_event(execution_id, "dispatch.acked")
        assert acked["payload"]["attempt"] == 1
        assert "dispatch.failed" not in await agent.kernel.event_types(execution_id)


async def test_k79_two_dispatchers_never_have_more_calls_open_than_the_agent_takes(apart: Stack) -> None:
    async with on(apart) as kernel:
        script = Held()
        agent = await kernel.agent(script, max_concurrency=LIMIT)
        ids = [(await agent.create())["id"] for _ in range(EXECUTIONS)]
        await _hears(agent, LIMIT)
        assert await _is_quiet(agent, seconds=1.0)

        for answered in range(1, 5):
            script.answer_one()
            await _hears(agent, LIMIT + answered)
        assert await _is_quiet(agent, seconds=0.5)
        script.answer_all()
        await _hears(agent, EXECUTIONS)

        assert script.most == LIMIT
        await _assert_each_received_once(agent, ids)


async def test_k79_a_lower_limit_holds_for_the_calls_that_begin(apart: Stack) -> None:
    async with on(apart) as kernel:
        script = Held()
        agent = await kernel.agent(script, max_concurrency=3)
        ids = [(await agent.create())["id"] for _ in range(6)]
        await _hears(agent, 3)

        accepted(
            await kernel.post("/v0/agents", {"id": agent.id, "webhook_url": agent.endpoint.url, "max_concurrency": 1}),
            200,
        )
        # Every process knows the new limit a second later.
        assert await _is_quiet(agent, seconds=1.2)
        script.answer_one()
        script.answer_one()
        assert await _is_quiet(agent, seconds=0.7)
        script.answer_one()
        await _hears(agent, 4)
        assert await _is_quiet(agent, seconds=0.7)
        script.answer_all()
        await _hears(agent, 6)

        await _assert_each_received_once(agent, ids)


async def test_k79_what_a_killed_dispatcher_had_open_is_free_again_and_the_others_go_on_meanwhile(
    new_stack: Callable[..., Stack],
) -> None:
    settings = SETTINGS | {"STEPWELL_DISPATCH_TIMEOUT": f"{DELIVERY_SECONDS:g}s"}
    stack = await asyncio.to_thread(
        lambda: new_stack(processes="apart", dispatchers=2, lease_seconds=LEASE_SECONDS, settings=settings)
    )
    async with on(stack) as kernel:
        # given a dispatcher that is alone and has one call open, and then is killed
        script = Held()
        agent = await kernel.agent(script, max_concurrency=LIMIT)
        stack.kill("dispatcher-2")
        first_id = (await agent.create())["id"]
        await agent.delivery(first_id)
        stack.kill("dispatcher")
        script.answer_one()
        script.most = 0

        # when another one serves an agent that always has more to do than it may
        await asyncio.to_thread(stack.restart, "dispatcher-2")
        ids = [(await agent.create())["id"] for _ in range(4)]
        await _hears(agent, 2)
        one_at_a_time = await _is_quiet(agent, seconds=1.0) and script.open == 1
        async with asyncio.timeout(HOLD_SECONDS + 10.0):
            while script.open < LIMIT:
                script.answer_one()
                ids.append((await agent.create())["id"])
                await wait_until_async(lambda: script.open > 0, "the next webhook")
                await _is_quiet(agent, seconds=BUSY_SECONDS)
        assert await _is_quiet(agent, seconds=0.5)
        script.answer_all()
        await _hears(agent, len(ids) + 1)

        # then the killed one's slot counted until it ended, and not beyond
        assert one_at_a_time
        assert script.most == LIMIT
        await _assert_each_received_once(agent, ids)
        assert [each.attempt for each in agent.endpoint.of(first_id)] == [1]
