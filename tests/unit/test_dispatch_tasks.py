"""The tasks of a dispatcher that is being cancelled."""

import asyncio

import pytest

from tests.support.wait import loop_turns
from workers.dispatching.tasks import Tasks


async def test_a_group_that_is_being_cancelled_takes_nothing_more() -> None:
    is_started = False

    async def deliver() -> None:
        nonlocal is_started
        is_started = True

    async def end_late(tasks: Tasks) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tasks.start(deliver(), what="delivering the next one")

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = Tasks(group)
            tasks.start(end_late(tasks), what="delivering")
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await loop_turns()
    working.cancel()

    with pytest.raises(asyncio.CancelledError):
        await working
    assert not is_started
