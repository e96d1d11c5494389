"""The dispatcher with a real projector on NATS and Valkey: leases, deadlines, and many at once."""

import asyncio
import statistics
import time

import pytest
from msgspec.structs import replace

from kernel.ports import DueItem
from schemas.entries import Lease
from tests.support.dispatching import LIMITS, LONG_LEASE, Kernels
from tests.support.scripted_agent import ScriptedAgent, is_quiet, scripted_agent
from workers.dispatching.entries import claimed

OK = b"HTTP/1.1 200 OK\r\n"
BROKEN = b"HTTP/1.1 500 Broken\r\n"


# ---------------------------------------------------------------- leases, deadlines, agents


@pytest.mark.alone
async def test_a_lease_that_nobody_renews_brings_the_next_attempt(kernels: Kernels, agent: ScriptedAgent) -> None:
    async with kernels(agent) as kernel:
        await kernel.create()
        second = await agent.hears(2)

    first = agent.webhooks[0]
    assert (second.dispatch_id, second.dispatch_attempt) == (first.dispatch_id, 2)
    assert 1.0 <= second.at - first.at < 2.5


async def test_always_acknowledged_and_never_worked_on_uses_up_the_attempts(
    kernels: Kernels, agent: ScriptedAgent
) -> None:
    async with kernels(agent) as kernel:
        execution_id = await kernel.create(limits=replace(LIMITS, lease_ms=300, attempts_max=3))
        story = await kernel.tells(execution_id, "execution.failed dispatch_exhausted")

    assert [webhook.dispatch_attempt for webhook in agent.webhooks] == [1, 2, 3]
    assert "dispatch.failed" not in " ".join(story)


async def test_heartbeats_keep_the_lease(kernels: Kernels, agent: ScriptedAgent) -> None:
    async with kernels(agent) as kernel:
        execution_id = await kernel.create(limits=replace(LIMITS, lease_ms=700))
        webhook = await agent.hears(1)
        for _ in range(8):
            await kernel.heartbeat(execution_id, webhook.lease)
            assert await is_quiet(agent, 1, 0.25)


async def test_a_claim_that_never_sent_comes_back_with_its_lease(kernels: Kernels, agent: ScriptedAgent) -> None:
    """A dispatcher that dies between its claim and the delivery."""

    async with kernels(agent, dispatchers=0) as kernel:
        execution_id = await kernel.create()
        await kernel.tells(execution_id, "dispatch.queued 0")
        header = await kernel.header(execution_id)
        item = DueItem(kind="delivery", tenant="default", agent_id="agent", execution_id=execution_id, header=header)
        await kernel.append(claimed(item, claimed_by="a dispatcher that died"))
        dispatcher = asyncio.ensure_future(kernel.dispatcher("dispatcher9").run())
        webhook = await agent.hears(1)
        dispatcher.cancel()
        await asyncio.gather(dispatcher, return_exceptions=True)

    assert webhook.lease == Lease(header.dispatch.dispatch_id, 2)


@pytest.mark.alone
async def test_a_deadline_cancels_within_a_second(kernels: Kernels, agent: ScriptedAgent) -> None:
    async with kernels(agent) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE, life_seconds=1.0)
        started = time.time()
        await kernel.tells(execution_id, "execution.cancelled deadline_exceeded")

    assert time.time() - started < 2.2


async def test_a_dispatch_that_finds_its_agent_gone_ends_the_execution(kernels: Kernels) -> None:
    async with kernels() as kernel:
        execution_id = await kernel.create("nobody")
        story = await kernel.tells(execution_id, "execution.failed agent_deleted")

    assert "dispatch.acked" not in " ".join(story)


async def test_an_agent_that_is_registered_just_now_is_not_taken_for_gone(
    kernels: Kernels, agent: ScriptedAgent
) -> None:
    """The dispatcher's agents may be older than the execution."""
    async with kernels(control_lag_seconds_max=0.6) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        await kernel.tells(execution_id, "dispatch.queued 0")
        await kernel.put_agent("agent", agent.url)
        await kernel.tells(execution_id, "dispatch.acked 1", deadline_seconds=3.0)


async def test_nothing_is_decided_by_agents_that_may_have_changed(kernels: Kernels, agent: ScriptedAgent) -> None:
    async with kernels(agent) as kernel:
        await kernel.stop_control()
        execution_ids = [await kernel.create(agent_id, limits=LONG_LEASE) for agent_id in ("agent", "nobody")]
        assert await is_quiet(agent, 0, 1.0)
        assert "execution.failed agent_deleted" not in await kernel.story(execution_ids[1])
        kernel.start_control()
        await kernel.tells(execution_ids[0], "dispatch.acked 1")
        await kernel.tells(execution_ids[1], "execution.failed agent_deleted")


async def test_an_agent_that_is_deleted_during_a_retry_ends_the_execution(
    kernels: Kernels, agent: ScriptedAgent
) -> None:
    agent.answers = [BROKEN]
    async with kernels(agent) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        await kernel.tells(execution_id, "dispatch.failed 1 http_500")
        await kernel.delete_agent("agent")
        await kernel.tells(execution_id, "execution.failed agent_deleted")


# ---------------------------------------------------------------- many at once


@pytest.mark.alone
async def test_one_agent_that_hangs_delays_no_other(kernels: Kernels, agent: ScriptedAgent) -> None:
    async with scripted_agent() as hanging:
        hanging.release = asyncio.Event()
        async with kernels(agent, deliveries_max=40) as kernel:
            await kernel.put_agent("hanging", hanging.url)
            for _ in range(60):
                await kernel.create("hanging", limits=LONG_LEASE)
            await hanging.hears(5)
            waits: list[float] = []
            for count in range(1, 21):
                started = time.time()
                await kernel.create(limits=LONG_LEASE)
                waits.append((await agent.hears(count)).at - started)
            hanging.release.set()
            await hanging.hears(60, deadline_seconds=20)

    assert statistics.median(waits) < 0.1
    assert max(waits) < 1.0


async def test_an_agent_never_has_more_calls_open_than_it_takes(kernels: Kernels, agent: ScriptedAgent) -> None:
    agent.release = asyncio.Event()
    async with kernels() as kernel:
        await kernel.put_agent("agent", agent.url, max_concurrency=3)
        for _ in range(12):
            await kernel.create(limits=LONG_LEASE)
        await agent.hears(3)
        assert await is_quiet(agent, 3, 0.5)
        agent.release.set()
        await agent.hears(12)

    assert agent.open_most == 3


async def test_no_attempt_is_received_twice_however_many_dispatchers_there_are(
    kernels: Kernels, agent: ScriptedAgent
) -> None:
    async with kernels(agent, dispatchers=4) as kernel:
        execution_ids = [await kernel.create(limits=LONG_LEASE) for _ in range(40)]
        for execution_id in execution_ids:
            await kernel.tells(execution_id, "dispatch.acked 1")

    leases = [webhook.lease for webhook in agent.webhooks]
    assert len(set(leases)) == len(leases) == 40


async def test_a_stopped_dispatcher_ends_its_open_deliveries_and_takes_no_more(
    kernels: Kernels, agent: ScriptedAgent
) -> None:
    agent.release = asyncio.Event()
    async with kernels(agent, dispatchers=0) as kernel:
        dispatcher = kernel.dispatcher("dispatcher9")
        running = asyncio.ensure_future(dispatcher.run())
        first_id = await kernel.create(limits=LONG_LEASE)
        await agent.hears(1)
        dispatcher.stop()
        await kernel.create(limits=LONG_LEASE)
        assert await is_quiet(agent, 1, 0.7)
        assert not running.done()
        agent.release.set()
        await asyncio.wait_for(running, 5)
        await kernel.tells(first_id, "dispatch.acked 1")


@pytest.mark.alone
async def test_a_stopped_dispatcher_gives_back_what_still_waits(kernels: Kernels, agent: ScriptedAgent) -> None:
    agent.release = asyncio.Event()
    async with kernels(dispatchers=0, drain_seconds=0.5) as kernel:
        await kernel.put_agent("agent", agent.url, max_concurrency=1)
        first, second = kernel.dispatcher("dispatcher8"), kernel.dispatcher("dispatcher9")
        running = asyncio.ensure_future(first.run())
        await kernel.create(limits=LONG_LEASE)
        await agent.hears(1)
        await kernel.create(limits=LONG_LEASE)
        await is_quiet(agent, 1, 0.3)
        first.stop()
        await asyncio.wait_for(running, 5)
        started = time.time()
        agent.release.set()
        replacement = asyncio.ensure_future(second.run())
        heard = await agent.hears(2)
        replacement.cancel()
        await asyncio.gather(replacement, return_exceptions=True)

    # Well before the hold of five seconds would have ended.
    assert heard.at - started < 2.0
