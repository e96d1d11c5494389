"""The dispatcher through outages of NATS and Valkey, and with more work than it has places for."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kernel.embedded import EmbeddedServer
from kernel.ports import DueItem
from tests.support.dispatching import LONG_LEASE, Kernel, Kernels, connected_kernel
from tests.support.scripted_agent import ScriptedAgent, is_quiet
from workers.dispatching.delivery import Deliveries
from workers.dispatching.slots import Slot


@pytest_asyncio.fixture
async def kernel(
    private_nats: EmbeddedServer, private_valkey: EmbeddedServer, agent: ScriptedAgent
) -> AsyncIterator[Kernel]:
    async with connected_kernel(private_nats.url, private_valkey.url, agent) as found:
        await found.create(limits=LONG_LEASE)
        await agent.hears(1)
        yield found


async def test_an_outage_of_the_view_only_delays(
    kernel: Kernel, private_valkey: EmbeddedServer, agent: ScriptedAgent
) -> None:
    await private_valkey.kill()
    await kernel.create(limits=LONG_LEASE)
    assert await is_quiet(agent, 1, 1.5)
    await private_valkey.start()
    await agent.hears(2, deadline_seconds=20.0)


async def test_an_outage_of_the_log_only_delays(
    kernel: Kernel, private_nats: EmbeddedServer, agent: ScriptedAgent
) -> None:
    agent.release = asyncio.Event()
    execution_id = await kernel.create(limits=LONG_LEASE)
    await agent.hears(2)
    await private_nats.kill()
    agent.release.set()
    assert await is_quiet(agent, 2, 1.5)
    await private_nats.start()
    await kernel.tells(execution_id, "dispatch.acked 1", deadline_seconds=20.0)
    await kernel.create(limits=LONG_LEASE)
    await agent.hears(3, deadline_seconds=20.0)


async def test_a_backlog_beyond_all_places_comes_back_and_is_delivered(
    kernels: Kernels, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.dispatching.turns.WAITING_MAX", 8)
    agent.release = asyncio.Event()
    async with kernels() as kernel:
        await kernel.put_agent("agent", agent.url, max_concurrency=1)
        for _ in range(12):
            await kernel.create(limits=LONG_LEASE)
        await agent.hears(1)
        assert await is_quiet(agent, 1, 0.5)
        agent.release.set()
        await agent.hears(12)


async def test_work_that_breaks_ends_alone(
    kernels: Kernels, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours in one delivery costs that delivery its lease, and nothing else."""
    async with kernels(agent) as kernel:
        await kernel.put_agent("broken", agent.url)
        deliver = Deliveries.deliver

        async def breaking(self: Deliveries, shard: int, item: DueItem, slot: Slot) -> None:
            if item.agent_id == "broken":
                raise RuntimeError("a fault of ours")
            await deliver(self, shard, item, slot)

        monkeypatch.setattr(Deliveries, "deliver", breaking)
        await kernel.create("broken", limits=LONG_LEASE)
        await kernel.create(limits=LONG_LEASE)
        await agent.hears(1)
