"""The dispatcher with a real projector on NATS and Valkey: deliveries, failures and retries."""

import asyncio
import itertools
import statistics
import time

import msgspec
import pytest
from msgspec.structs import replace

from kernel.domain.signatures import verify_body
from tests.support.dispatching import LONG_LEASE, SECRET, Kernel, Kernels
from tests.support.ports import free_port
from tests.support.scripted_agent import ScriptedAgent, is_quiet, scripted_agent
from tests.support.wait import wait_until_async

OK = b"HTTP/1.1 200 OK\r\n"
BROKEN = b"HTTP/1.1 500 Broken\r\n"


# ---------------------------------------------------------------- one delivery


async def test_a_webhook_has_five_members_and_a_signature_over_its_bytes(
    kernels: Kernels, agent: ScriptedAgent
) -> None:
    async with kernels(agent) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        webhook = await agent.hears(1)
        story = await kernel.tells(execution_id, "dispatch.acked 1")

    head, _, body = agent.raw[0].partition(b"\r\n\r\n")
    lines = {name: value for name, _, value in (line.partition(b": ") for line in head.split(b"\r\n"))}
    assert msgspec.json.decode(body).keys() == {
        "execution_id",
        "dispatch_id",
        "dispatch_attempt",
        "lease_timeout_seconds",
        "sent_at",
    }
    assert webhook.execution_id == execution_id == lines[b"Rebuno-Execution-Id"].decode()
    assert webhook.dispatch_attempt == 1
    assert webhook.lease_timeout_seconds == 60
    assert abs(webhook.sent_at - time.time()) < 2
    assert verify_body([SECRET], lines[b"Rebuno-Signature"], body)
    assert story == ["execution.created", "execution.started", "dispatch.queued 0", "dispatch.acked 1"]


@pytest.mark.alone
async def test_a_dispatch_is_delivered_at_once(kernels: Kernels, agent: ScriptedAgent) -> None:
    async with kernels(agent) as kernel:
        waits: list[float] = []
        for count in range(1, 31):
            started = time.time()
            await kernel.create(limits=LONG_LEASE)
            waits.append((await agent.hears(count)).at - started)

    assert statistics.median(waits) < 0.1


async def test_every_attempt_is_signed_and_dated_anew(kernels: Kernels, agent: ScriptedAgent) -> None:
    agent.answers = [b"HTTP/1.1 503 Later\r\nRetry-After: 2\r\n", OK]
    async with kernels(agent) as kernel:
        await kernel.create()
        second = await agent.hears(2)

    first = agent.webhooks[0]
    assert second.dispatch_id == first.dispatch_id
    assert second.sent_at - first.sent_at in (2, 3)
    assert agent.raw[0] != agent.raw[1]


# ---------------------------------------------------------------- failures and retries


async def test_a_failure_is_told_and_the_next_attempt_acknowledged(kernels: Kernels, agent: ScriptedAgent) -> None:
    agent.answers = [b"HTTP/1.1 503 Later\r\n", OK]
    async with kernels(agent) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        story = await kernel.tells(execution_id, "dispatch.acked 2")

    assert story[2:] == ["dispatch.queued 0", "dispatch.failed 1 http_503", "dispatch.acked 2"]
    assert [webhook.dispatch_attempt for webhook in agent.webhooks] == [1, 2]


@pytest.mark.alone
async def test_waits_grow_until_the_attempts_are_used_up(kernels: Kernels, agent: ScriptedAgent) -> None:
    agent.answers = [BROKEN]
    async with kernels(agent) as kernel:
        execution_id = await kernel.create(limits=replace(LONG_LEASE, base_delay_ms=200, delay_max_ms=800))
        story = await kernel.tells(execution_id, "execution.failed dispatch_exhausted")

    assert story[3:] == [
        *(f"dispatch.failed {attempt} http_500" for attempt in range(1, 6)),
        "execution.failed dispatch_exhausted",
    ]
    assert [webhook.dispatch_attempt for webhook in agent.webhooks] == [1, 2, 3, 4, 5]
    times = [webhook.at for webhook in agent.webhooks]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    for wait_seconds, least_seconds in zip(waits, (0.2, 0.4, 0.8, 0.8), strict=True):
        assert least_seconds <= wait_seconds < least_seconds * 1.25 + 0.5


@pytest.mark.alone
async def test_a_wish_of_the_agent_raises_the_wait(kernels: Kernels, agent: ScriptedAgent) -> None:
    agent.answers = [b"HTTP/1.1 429 Slow down\r\nRetry-After: 2\r\n", OK]
    async with kernels(agent) as kernel:
        await kernel.create(limits=LONG_LEASE)
        second = await agent.hears(2)

    assert 2.0 <= second.at - agent.webhooks[0].at < 2.6


async def test_a_redirect_is_a_failure_and_is_not_followed(kernels: Kernels, agent: ScriptedAgent) -> None:
    async with scripted_agent() as other:
        agent.answers = [b"HTTP/1.1 307 There\r\nLocation: %s\r\n" % other.url.encode(), OK]
        async with kernels(agent) as kernel:
            execution_id = await kernel.create(limits=LONG_LEASE)
            await kernel.tells(execution_id, "dispatch.failed 1 http_307")
            await agent.hears(2)

    assert other.webhooks == []


async def test_an_unreachable_target_uses_up_no_attempt(kernels: Kernels) -> None:
    port = free_port()
    async with kernels() as kernel:
        await kernel.put_agent("agent", f"http://127.0.0.1:{port}/")
        execution_id = await kernel.create(limits=replace(LONG_LEASE, attempts_max=1))
        await kernel.tells(execution_id, "dispatch.failed 1 unreachable")
        await wait_until_async(
            lambda: _tries(kernel, execution_id, at_least=3), "three tries of the unreachable target"
        )
        async with scripted_agent() as agent:
            await kernel.put_agent("agent", agent.url)
            webhook = await agent.hears(1)
            story = await kernel.tells(execution_id, "dispatch.acked 1")

    assert webhook.dispatch_attempt == 1
    assert story[3:] == ["dispatch.failed 1 unreachable", "dispatch.acked 1"]


async def test_a_target_that_stays_unreachable_uses_up_its_attempts(kernels: Kernels) -> None:
    async with kernels() as kernel:
        await kernel.put_agent("agent", f"http://127.0.0.1:{free_port()}/")
        limits = replace(LONG_LEASE, attempts_max=2, unreachable_ms=500)
        execution_id = await kernel.create(limits=limits)
        story = await kernel.tells(execution_id, "execution.failed dispatch_exhausted")

    assert story[3] == "dispatch.failed 1 unreachable"
    assert story[-2:] == ["dispatch.failed 2 unreachable", "execution.failed dispatch_exhausted"]


async def _tries(kernel: Kernel, execution_id: str, *, at_least: int) -> bool:
    return (await kernel.header(execution_id)).dispatch.tries >= at_least


async def test_a_cancel_during_the_wait_ends_the_calls(kernels: Kernels, agent: ScriptedAgent) -> None:
    agent.answers = [BROKEN]
    async with kernels(agent) as kernel:
        execution_id = await kernel.create(limits=replace(LONG_LEASE, base_delay_ms=600))
        await kernel.tells(execution_id, "dispatch.failed 1 http_500")
        await kernel.cancel(execution_id)
        await kernel.tells(execution_id, "dispatch.discarded 1")
        assert await is_quiet(agent, 1, 1.2)


async def test_work_before_the_answer_acknowledges_and_the_failure_changes_nothing(
    kernels: Kernels, agent: ScriptedAgent
) -> None:
    agent.answers = [BROKEN]
    agent.release = asyncio.Event()
    async with kernels(agent) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        webhook = await agent.hears(1)
        await kernel.heartbeat(execution_id, webhook.lease)
        await kernel.tells(execution_id, "dispatch.acked 1")
        agent.release.set()
        assert await is_quiet(agent, 1, 0.7)
        story = await kernel.story(execution_id)

    assert story[3:] == ["dispatch.acked 1"]


async def test_work_after_a_failure_takes_the_redelivery_back(kernels: Kernels, agent: ScriptedAgent) -> None:
    agent.answers = [BROKEN]
    async with kernels(agent) as kernel:
        execution_id = await kernel.create(limits=replace(LONG_LEASE, base_delay_ms=800))
        await kernel.tells(execution_id, "dispatch.failed 1 http_500")
        await kernel.heartbeat(execution_id, agent.webhooks[0].lease)
        await kernel.tells(execution_id, "dispatch.acked 1")
        assert await is_quiet(agent, 1, 1.3)
        story = await kernel.story(execution_id)

    assert story[3:] == ["dispatch.failed 1 http_500", "dispatch.acked 1"]
