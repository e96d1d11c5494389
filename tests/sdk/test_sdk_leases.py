"""A16 and A17: an agent keeps its lease whatever its handler does, and stops when the lease is another's."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kernel.embedded import free_port
from stepwell import Agent, LeaseSuperseded, execution, step
from tests.sdk.conftest import LEASE_SECONDS, Serve, ask, serving
from tests.support.wait import wait_until_async


@pytest.mark.parametrize("is_blocking", [False, True], ids=["awaiting", "blocking"])
async def test_a16_a_handler_whose_lease_is_anothers_is_cancelled_or_stopped_at_its_next_call(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, is_blocking: bool
) -> None:
    # Given an agent whose first heartbeat comes after its lease has ended.
    monkeypatch.setattr("stepwell.agent.HEARTBEATS_PER_LEASE", 0.8)
    may_go_on = threading.Event()
    seen: list[Any] = []

    async def awaiting() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "never"

    def blocking() -> str:
        may_go_on.wait(60)
        try:
            step("late", lambda: seen.append("ran"))
        except LeaseSuperseded:
            seen.append("superseded")
            raise
        return "never"

    first = await serve(blocking if is_blocking else awaiting)
    created = await first.client.create(first.agent.agent_id)
    await first.client.events(created.id, after_seq=3, wait=10)

    async def successor() -> int:
        return execution().attempt

    ended = await _taken_over(first, successor, created.id)

    # Then the other attempt has ended the execution, and this one did nothing more.
    assert (ended.status, ended.output) == ("completed", 2)
    await first.agent.join()
    may_go_on.set()
    expected = "superseded" if is_blocking else "cancelled"
    await wait_until_async(lambda: seen == [expected], "the first handler to stop", deadline_seconds=20)
    assert [each.target for each in await first.client.list_steps(created.id)] == []


async def _taken_over(first: Any, successor: Callable[..., Any], execution_id: str) -> Any:
    """Let another process of the same agent get the next attempt."""
    port = free_port()
    agent = Agent(first.agent.agent_id, secret=first.agent._secret, base_url=first.stack.url, drain_seconds=1.0)
    agent.bind(successor)
    async with serving(agent.app, port):
        url = f"http://127.0.0.1:{port}/webhook"
        await ask(first.stack, "POST", "/v0/agents", {"id": agent.agent_id, "webhook_url": url})
        return await first.client.wait(execution_id, timeout=LEASE_SECONDS + 20)


@pytest.mark.alone
async def test_a17_a_handler_that_holds_the_interpreter_for_three_leases_keeps_its_lease(serve: Serve) -> None:
    async def busy() -> int:
        ends_at = time.monotonic() + 3 * LEASE_SECONDS
        count = 0
        while time.monotonic() < ends_at:
            count += 1
        return execution().attempt

    served = await serve(busy)
    ended = await served.run(seconds=5 * LEASE_SECONDS)

    assert (ended.status, ended.output) == ("completed", 1), ended.failure_reason
    types = [event.type for event in await served.client.events(ended.id)]
    assert types.count("dispatch.acked") == 1
