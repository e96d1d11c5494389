"""A test on an event loop must not leave tasks behind: one that does fails, with the name of the task."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

_GRACE_SECONDS = 1.0
_FIXTURE = "no_task_is_left_behind"


@pytest_asyncio.fixture
async def no_task_is_left_behind() -> AsyncIterator[None]:
    """Given to every asynchronous test, set up first and so torn down after all that the test has open.

    A task that ends within a second by itself is not a leak; the loop would cancel a leaked one in silence.
    """
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=_GRACE_SECONDS)
    if left:
        names = "\n".join(sorted(repr(task) for task in left))
        pytest.fail(f"the test left {len(left)} tasks running:\n{names}", pytrace=False)


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and item.get_closest_marker("asyncio") is not None:
        item.fixturenames.insert(0, _FIXTURE)
