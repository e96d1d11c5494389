"""Tests that mostly wait, run at once: together they take as long as the longest of them.

The first worker of a run that comes to this folder starts the bodies of all that were selected, on one event loop in
a thread. Each test then only waits for the outcome of its own; tests on other workers read it from a shared folder.
"""

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from time import time
from typing import Protocol, TypeAlias

from tests.conformance.harness.kernel import Kernel, connected
from tests.support.scripted_agent import pass_time
from tests.support.wait import wait_until

Body: TypeAlias = Callable[[Kernel], Awaitable[None]]
BODY_SECONDS_MAX = 200.0
RUNNING_MAX = 64
BEGIN_GAP_SECONDS = 0.2
"""Between the beginnings of two bodies: some time what they wait for, and all beginning at once would be late."""

SWITCH_SECONDS = 0.0005


class Outcomes(Protocol):
    """Where a test learns how its body ended."""

    def outcome(self, body: Body) -> None:
        """Wait for a body and raise what it raised."""
        ...


def side_by_side(body: Body) -> Callable[[Outcomes], None]:
    """Make a test of a coroutine function that takes the kernel: `async def test_k64_...(kernel: Kernel)`."""

    def test(background: Outcomes) -> None:
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

    def __init__(self, url: str, api_key: str, bodies: Iterable[Body], *, folder: Path) -> None:
        self._url = url
        self._api_key = api_key
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(RUNNING_MAX)
        # The tests of this worker compute meanwhile: by default they hold up every turn of this loop for 5 ms, and for
        # seconds what takes many of them.
        sys.setswitchinterval(SWITCH_SECONDS)
        self._thread = Thread(target=self._loop.run_forever, name="side-by-side")
        self._thread.start()
        self._running: dict[Body, Future[None]] = {
            body: self._start(body, after_seconds=number * BEGIN_GAP_SECONDS) for number, body in enumerate(bodies)
        }

    def outcome(self, body: Body) -> None:
        """Wait for a body and raise what it raised."""
        self._running[body].result(BODY_SECONDS_MAX)

    def close(self, *, is_interrupted: bool) -> None:
        """Let the bodies that tests on other workers wait for come to their ends; after an interruption cancel them."""
        if not is_interrupted:
            for running in self._running.values():
                running.exception(BODY_SECONDS_MAX)
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(BODY_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _start(self, body: Body, *, after_seconds: float) -> "Future[None]":
        return asyncio.run_coroutine_threadsafe(self._run(body, after_seconds), self._loop)

    async def _run(self, body: Body, after_seconds: float) -> None:
        try:
            await pass_time(after_seconds)
            async with asyncio.timeout(BODY_SECONDS_MAX), self._slots, connected(self._url, self._api_key) as kernel:
                await body(kernel)
        except BaseException:
            _write(_place(self._folder, body), traceback.format_exc())
            raise
        _write(_place(self._folder, body), "")

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Elsewhere:
    """The outcomes of bodies that another worker runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # One end for all of them, so that a worker that dies does not hold up each test anew.
        self._ends_at = folder.stat().st_ctime + BODY_SECONDS_MAX

    def outcome(self, body: Body) -> None:
        """Wait for a body, and fail with its traceback when it failed."""
        place = _place(self._folder, body)
        wait_until(place.exists, f"the outcome of {place.name}", deadline_seconds=max(self._ends_at - time(), 1.0))
        failure = place.read_text()
        assert not failure, f"on another worker:\n{failure}"


def is_first(folder: Path) -> bool:
    """Whether this is the first worker of the run to ask, and so the one that runs the bodies."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def _place(folder: Path, body: Body) -> Path:
    return folder / f"{body.__module__}.{body.__qualname__}"


def _write(place: Path, text: str) -> None:
    """Make the file appear with all of its text."""
    draft = place.with_name(f"{place.name}.draft")
    draft.write_text(text)
    draft.replace(place)
