"""A20 against real processes: a door that is killed costs an agent time, and never a second step."""

import asyncio
import secrets
from collections.abc import Iterator

import pytest

from kernel.embedded import free_port
from stepwell import Agent, Client, tool
from tests.sdk.conftest import SETTINGS, ask, serving
from tests.support.stack import Stack

STEPS = 12
KILLED_AT = (6, 9)
"""While these steps are under way: their outcomes find no door."""


@pytest.fixture
def apart() -> Iterator[Stack]:
    with Stack.start(processes="apart", lease_seconds=10, settings=SETTINGS) as running:
        yield running


async def test_a20_a_door_that_is_killed_and_restarted_twice_loses_and_repeats_nothing(apart: Stack) -> None:
    effects: list[int] = []
    reached, has_died = asyncio.Queue[int](), asyncio.Event()

    @tool
    async def effect(number: int) -> int:
        effects.append(number)
        if number in KILLED_AT:
            reached.put_nowait(number)
            await has_died.wait()
            has_died.clear()
        return number

    async def handler() -> list[int]:
        return [await effect(number) for number in range(STEPS)]

    secret, port = secrets.token_hex(16), free_port()
    agent = Agent("restarted", secret=secret, base_url=apart.url, drain_seconds=1.0)
    agent.bind(handler)
    url = f"http://127.0.0.1:{port}/webhook"
    await ask(apart, "POST", "/v0/agents", {"id": "restarted", "webhook_url": url, "secret": secret})

    async with serving(agent.app, port), Client(apart.url, apart.api_key) as client:
        created = await client.create("restarted")
        waiting = asyncio.create_task(client.wait(created.id, timeout=60))
        for number in KILLED_AT:
            assert await reached.get() == number
            await asyncio.to_thread(apart.kill, "door")
            has_died.set()
            await asyncio.to_thread(apart.restart, "door")
        ended = await waiting
        steps = await client.list_steps(created.id)

    assert (ended.status, ended.output) == ("completed", list(range(STEPS))), ended.failure_reason
    assert effects == list(range(STEPS))
    assert [(each.args["number"], each.status) for each in steps] == [(n, "succeeded") for n in range(STEPS)]
