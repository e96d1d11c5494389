"""Tests that mostly wait, run at once: together they take as long as the longest of them.

The first of them starts the bodies of all that were selected, on one event loop in a thread; each test then only waits
for the outcome of its own. Most of them measure how long something took, so that they run when nothing else does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from threading import Thread
from typing import TypeAlias

import pytest

from tests.conformance.harness.kernel import Kernel, connected
from tests.support.scripted_agent import pass_time

Body: TypeAlias = Callable[[Kernel], Awaitable[None]]
BODY_SECONDS_MAX = 200.0
RUNNING_MAX = 64
BEGIN_GAP_SECONDS = 0.2
"""Between the beginnings of two bodies: some time what they wait for, and all beginning at once would be late."""


def side_by_side(body: Body) -> "Callable[[Background], None]":
    """Make a test of a coroutine function that takes the kernel: `async def test_k64_...(kernel: Kernel)`."""

    @pytest.mark.waits
    def test(background: Background) -> None:
        background.outcome(body)

    test.__name__ = body.__name__
    test.__qualname__ = body.__qualname__
    test.__module__ = body.__module__
    test.__doc__ = body.__doc__
    test.body = body  # pyright: ignore[reportFunctionMemberAccess] - read by `body_of`
    return test


def body_of(test: object) -> Body | None:
    """The coroutine function of a test that runs side by side with others."""
    return getattr(test, "body", None)


class Background:
    """The event loop on which the bodies run, each with a kernel access of its own."""

    def __init__(self, url: str, api_key: str, bodies: Iterable[Body]) -> None:
        self._url = url
        self._api_key = api_key
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(RUNNING_MAX)
        self._thread = Thread(target=self._loop.run_forever, name="side-by-side")
        self._thread.start()
        self._running: dict[Body, Future[None]] = {
            body: self._start(body, after_seconds=number * BEGIN_GAP_SECONDS) for number, body in enumerate(bodies)
        }

    def outcome(self, body: Body) -> None:
        """Wait for a body and raise what it raised."""
        self._running[body].result(BODY_SECONDS_MAX)

    def close(self) -> None:
        """Cancel what no test waited for, as after an interruption, and end the loop."""
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(BODY_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _start(self, body: Body, *, after_seconds: float) -> "Future[None]":
        return asyncio.run_coroutine_threadsafe(self._run(body, after_seconds), self._loop)

    async def _run(self, body: Body, after_seconds: float) -> None:
        await pass_time(after_seconds)
        async with asyncio.timeout(BODY_SECONDS_MAX), self._slots, connected(self._url, self._api_key) as kernel:
            await body(kernel)

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
