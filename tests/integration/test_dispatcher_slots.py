"""Webhook slots: what dispatchers do that share an agent's bound, and what becomes of a slot however a call ends."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import pytest

from kernel.domain.errors import ViewUnavailable
from kernel.log.memory import MemoryLog, MemoryWakes
from kernel.view.memory import MemoryView, unix_ms
from tests.support.dispatching import LONG_LEASE, SHARDS, TENANT, Kernel, running_kernel, stopped
from tests.support.ports import free_port
from tests.support.scripted_agent import ScriptedAgent, is_quiet
from tests.support.wait import wait_until_async
from workers.dispatching.slots import SLOT_MARGIN_SECONDS

OK = b"HTTP/1.1 200 OK\r\n"
LATER = b"HTTP/1.1 503 Later\r\nRetry-After: 60\r\n"
DELIVERY_SECONDS = 0.4
FAR_MS = 100_000_000


class SlotView(MemoryView):
    """A view whose slots can fail or be slow on their own, and that counts who asks for them."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: unix_ms() + self.ahead_ms)
        self.ahead_ms = 0
        self.asked: Counter[str] = Counter()
        """How often each holder asked."""
        self.is_taking_lost = False
        """Slots are taken, and nobody hears of it."""
        self.is_giving_lost = False
        self.giving: asyncio.Event | None = None
        """While set to an event, giving back waits for it."""

    async def take_slot(self, tenant: str, agent_id: str, *, holder: str, limit: int, hold_ms: int) -> bool:
        self.asked[holder] += 1
        is_taken = await super().take_slot(tenant, agent_id, holder=holder, limit=limit, hold_ms=hold_ms)
        if self.is_taking_lost:
            raise ViewUnavailable("the reply was lost", reason="view_unavailable")
        return is_taken

    async def give_slot(self, tenant: str, agent_id: str, *, holder: str) -> None:
        if self.giving is not None:
            await self.giving.wait()
        if self.is_giving_lost:
            raise ViewUnavailable("the view cannot be asked", reason="view_unavailable")
        await super().give_slot(tenant, agent_id, holder=holder)

    async def occupy(self, *, limit: int = 1) -> bool:
        """Take a slot of the agent for long, as another dispatcher would."""
        return await MemoryView.take_slot(self, TENANT, "agent", holder="another", limit=limit, hold_ms=FAR_MS)

    async def leave(self) -> None:
        """Give back what `occupy` took."""
        await MemoryView.give_slot(self, TENANT, "agent", holder="another")


class Kernels(Protocol):
    def __call__(self, *, limit: int = ..., **changes: Any) -> AbstractAsyncContextManager[Kernel]: ...


@pytest.fixture
def view() -> SlotView:
    return SlotView()


@pytest.fixture
def kernels(view: SlotView, agent: ScriptedAgent) -> Kernels:
    """Make running kernels over the memory adapters, whose agent takes `limit` calls at once."""

    @asynccontextmanager
    async def run(*, limit: int = 1, **changes: Any) -> AsyncIterator[Kernel]:
        log = MemoryLog(shards=SHARDS)
        async with running_kernel(log=log, view=view, wakes=MemoryWakes(), **changes) as kernel:
            await kernel.put_agent("agent", agent.url, max_concurrency=limit)
            yield kernel

    return run


async def _entries(kernel: Kernel, execution_id: str, *, at_least: int) -> bool:
    return (await kernel.log.state(kernel.shard(execution_id))).last_seq >= at_least


# ---------------------------------------------------------------- never more than the limit


async def test_two_dispatchers_together_have_no_more_calls_open_than_the_agent_takes(
    kernels: Kernels, agent: ScriptedAgent
) -> None:
    agent.release = asyncio.Event()
    async with kernels(limit=2, dispatchers=2) as kernel:
        ids = [await kernel.create(limits=LONG_LEASE) for _ in range(12)]
        await agent.hears(2)
        assert await is_quiet(agent, 2, 0.7)
        agent.release.set()
        await agent.hears(12)
        for execution_id in ids:
            await kernel.tells(execution_id, "dispatch.acked 1")

    assert agent.open_most == 2


async def test_dispatchers_that_share_a_slot_work_a_backlog_off(kernels: Kernels, agent: ScriptedAgent) -> None:
    agent.answer_seconds = 0.005
    async with kernels(dispatchers=3) as kernel:
        for _ in range(60):
            await kernel.create(limits=LONG_LEASE)
        await agent.hears(60)

    assert agent.open_most == 1
    assert len({webhook.lease for webhook in agent.webhooks}) == 60


async def test_a_lower_limit_holds_for_calls_that_begin(kernels: Kernels, agent: ScriptedAgent) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    agent.release = first
    async with kernels(limit=3, dispatchers=2) as kernel:
        for _ in range(3):
            await kernel.create(limits=LONG_LEASE)
        await agent.hears(3)
        await kernel.put_agent("agent", agent.url, max_concurrency=1)
        for _ in range(3):
            await kernel.create(limits=LONG_LEASE)
        assert await is_quiet(agent, 3, 0.3)
        agent.release = second
        first.set()
        await agent.hears(4)
        assert await is_quiet(agent, 4, 0.5)
        second.set()
        await agent.hears(6)


# ---------------------------------------------------------------- waiting for a slot


async def test_waiting_for_a_slot_uses_up_no_attempt_and_appends_nothing(
    kernels: Kernels, agent: ScriptedAgent, view: SlotView
) -> None:
    await view.occupy()
    async with kernels() as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        assert await is_quiet(agent, 0, 0.7)
        waiting = (await kernel.header(execution_id)).dispatch
        claims = await _entries(kernel, execution_id, at_least=2)
        await view.leave()
        webhook = await agent.hears(1)
        story = await kernel.tells(execution_id, "dispatch.acked 1")

    assert (waiting.state, waiting.next_attempt, waiting.attempt) == ("due", 1, 0)
    assert not claims
    assert webhook.dispatch_attempt == 1
    assert story[2:] == ["dispatch.queued 0", "dispatch.acked 1"]


async def _waits_for_a_slot(kernels: Kernels, agent: ScriptedAgent, view: SlotView) -> list[float]:
    """Return how long after a slot became free the delivery that waited for it was heard, five times, in order."""
    waits: list[float] = []
    async with kernels() as kernel:
        for count in range(1, 6):
            await view.occupy()
            await kernel.create(limits=LONG_LEASE)
            assert await is_quiet(agent, count - 1, 0.5)
            await view.leave()
            started = time.time()
            waits.append((await agent.hears(count)).at - started)
            # The next round begins when the call has ended.
            await wait_until_async(view.occupy, "the slot to be given back")
    return sorted(waits)


@pytest.mark.alone
async def test_a_slot_that_becomes_free_is_found_at_once(
    kernels: Kernels, agent: ScriptedAgent, view: SlotView
) -> None:
    waits = await _waits_for_a_slot(kernels, agent, view)

    assert waits[2] < 0.2, waits
    assert waits[-1] < 1.0, waits


@pytest.mark.alone
async def test_a_delivery_that_waits_for_a_slot_is_back_when_its_turn_comes_and_not_before(
    kernels: Kernels, agent: ScriptedAgent, view: SlotView, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its waits then end just before a full millisecond, which is what the view counts in.
    monkeypatch.setattr("workers.dispatcher.secrets.randbelow", lambda _: 12)

    waits = await _waits_for_a_slot(kernels, agent, view)

    # One that is back too early waits until something else happens, which is half a second later.
    assert waits[-1] < 0.4, waits


@pytest.mark.alone
async def test_a_backlog_without_a_slot_asks_a_few_times_a_second(
    kernels: Kernels, agent: ScriptedAgent, view: SlotView
) -> None:
    await view.occupy(limit=16)
    for number in range(15):
        await MemoryView.take_slot(view, TENANT, "agent", holder=f"{number}", limit=16, hold_ms=FAR_MS)
    async with kernels(limit=16) as kernel:
        for _ in range(60):
            await kernel.create(limits=LONG_LEASE)
        await is_quiet(agent, 0, 0.5)
        before = view.asked.total()
        await is_quiet(agent, 0, 1.0)
        asked = view.asked.total() - before
        await view.leave()
        await agent.hears(60)

    # At most one for each wait, which is never shorter than half of the longest one by now.
    assert 3 <= asked <= 14


@pytest.mark.alone
async def test_an_agent_without_a_slot_delays_no_other(kernels: Kernels, agent: ScriptedAgent, view: SlotView) -> None:
    await view.occupy()
    async with kernels() as kernel:
        await kernel.put_agent("other", agent.url)
        for _ in range(20):
            await kernel.create(limits=LONG_LEASE)
        await wait_until_async(lambda: view.asked.total() > 0, "the agent to be refused")
        started = time.time()
        await kernel.create("other", limits=LONG_LEASE)
        heard = await agent.hears(1)
        await view.leave()
        await agent.hears(21)

    assert heard.at - started < 1.0


# ---------------------------------------------------------------- a slot is given back


@pytest.mark.parametrize(
    ("answer", "is_held", "line"),
    [
        pytest.param(OK, False, "dispatch.acked 1", id="acknowledged"),
        pytest.param(LATER, False, "dispatch.failed 1 http_503", id="failed"),
        pytest.param(OK, True, "dispatch.failed 1 timeout", id="timed out"),
    ],
)
async def test_a_slot_is_free_again_when_its_call_is_over(
    kernels: Kernels, agent: ScriptedAgent, view: SlotView, answer: bytes, is_held: bool, line: str
) -> None:
    agent.answers = [answer]
    agent.release = asyncio.Event() if is_held else None
    limits = LONG_LEASE
    async with kernels(delivery_seconds=DELIVERY_SECONDS) as kernel:
        execution_id = await kernel.create(limits=limits)
        await agent.hears(1)
        await kernel.tells(execution_id, line)
        await kernel.cancel(execution_id)

        assert await wait_until_async(view.occupy, "the slot to be free", deadline_seconds=2.0)


async def test_a_slot_is_free_again_when_the_target_was_unreachable(kernels: Kernels, view: SlotView) -> None:
    async with kernels() as kernel:
        await kernel.put_agent("agent", f"http://127.0.0.1:{free_port()}/", max_concurrency=1)
        execution_id = await kernel.create(limits=LONG_LEASE)
        await kernel.tells(execution_id, "dispatch.failed 1 unreachable")
        await kernel.cancel(execution_id)

        assert await wait_until_async(view.occupy, "the slot to be free", deadline_seconds=2.0)


async def test_a_slot_is_free_again_when_its_dispatcher_is_cancelled(
    kernels: Kernels, agent: ScriptedAgent, view: SlotView
) -> None:
    agent.release = asyncio.Event()
    async with kernels() as kernel:
        await kernel.create(limits=LONG_LEASE)
        await agent.hears(1)
        assert not await view.occupy()

        await stopped(kernel.tasks[-1])

        assert await view.occupy()


async def test_a_slot_is_free_again_when_its_dispatcher_is_cancelled_while_it_claims(
    kernels: Kernels, agent: ScriptedAgent, view: SlotView
) -> None:
    await view.occupy()
    async with kernels() as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        await kernel.tells(execution_id, "dispatch.queued 0")
        dispatcher = kernel.tasks[-1]
        await kernel.stop_projector()
        await view.leave()
        await wait_until_async(lambda: _entries(kernel, execution_id, at_least=2), "the claim")
        assert not await view.occupy()

        await stopped(dispatcher)

        assert await view.occupy()
    assert agent.webhooks == []


async def test_a_slot_that_was_taken_unheard_is_given_back(
    kernels: Kernels, agent: ScriptedAgent, view: SlotView
) -> None:
    async with kernels(due_hold_seconds=1.5) as kernel:
        view.is_taking_lost = True
        await kernel.create(limits=LONG_LEASE)
        await wait_until_async(lambda: view.asked.total() > 0, "a slot to be asked for")

        assert await wait_until_async(view.occupy, "the slot to be free", deadline_seconds=2.0)
        assert agent.webhooks == []


async def test_the_outcome_is_recorded_while_the_slot_is_still_being_given_back(
    kernels: Kernels, agent: ScriptedAgent, view: SlotView
) -> None:
    view.giving = asyncio.Event()
    async with kernels() as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        await agent.hears(1)
        await kernel.tells(execution_id, "dispatch.acked 1", deadline_seconds=1.5)
        assert not await view.occupy()
        view.giving.set()
        assert await wait_until_async(view.occupy, "the slot to be free", deadline_seconds=2.0)


async def test_a_slot_that_nobody_gave_back_ends_by_itself(
    kernels: Kernels, agent: ScriptedAgent, view: SlotView
) -> None:
    view.is_giving_lost = True
    async with kernels(delivery_seconds=DELIVERY_SECONDS) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        await kernel.tells(execution_id, "dispatch.acked 1")
        await kernel.create(limits=LONG_LEASE)
        assert await is_quiet(agent, 1, 0.7)
        view.ahead_ms = int((DELIVERY_SECONDS + SLOT_MARGIN_SECONDS) * 1000)
        await agent.hears(2)


# ---------------------------------------------------------------- the view is away, or slow


async def test_without_the_view_nothing_is_sent_and_nothing_is_claimed(
    kernels: Kernels, agent: ScriptedAgent, view: SlotView
) -> None:
    async with kernels(due_hold_seconds=1.5) as kernel:
        view.is_taking_lost = True
        execution_id = await kernel.create(limits=LONG_LEASE)
        assert await is_quiet(agent, 0, 1.0)
        claims = await _entries(kernel, execution_id, at_least=2)
        view.is_taking_lost = False
        webhook = await agent.hears(1)
        await kernel.tells(execution_id, "dispatch.acked 1")

    assert not claims
    assert webhook.dispatch_attempt == 1


async def test_a_slot_that_grew_old_during_the_claim_is_taken_anew(
    kernels: Kernels, agent: ScriptedAgent, view: SlotView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.dispatching.slots.FRESH_SECONDS", 0.0)
    async with kernels() as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        await kernel.tells(execution_id, "dispatch.acked 1")

    assert list(view.asked.values()) == [2]


async def test_a_slot_that_grew_old_and_cannot_be_kept_sends_nothing(
    kernels: Kernels, agent: ScriptedAgent, view: SlotView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.dispatching.slots.FRESH_SECONDS", 0.0)
    async with kernels(dispatchers=0) as kernel:
        # When it asks anew, its slot has ended and another has it.
        take_slot = view.take_slot

        async def taking(tenant: str, agent_id: str, *, holder: str, limit: int, hold_ms: int) -> bool:
            if view.asked[holder]:
                view.ahead_ms += hold_ms
                await view.occupy()
            return await take_slot(tenant, agent_id, holder=holder, limit=limit, hold_ms=hold_ms)

        monkeypatch.setattr(view, "take_slot", taking)
        kernel.start_dispatcher()
        execution_id = await kernel.create(limits=LONG_LEASE)
        await wait_until_async(lambda: max(view.asked.values(), default=0) == 2, "the slot to be asked for anew")
        assert await is_quiet(agent, 0, 0.5)
        header = await kernel.header(execution_id)

    assert header.dispatch.state == "in_flight"
