"""A thread with an event loop and a connection of its own: what must happen on time whatever a handler does.

Heartbeats and lingering outcomes run here, so that a handler that blocks, or computes for minutes, keeps its lease.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from stepwell.kernel import KernelClient

T = TypeVar("T")
START_SECONDS_MAX = 10.0
END_SECONDS_MAX = 5.0


class Keeper:
    """Started by its first use; `close` ends it."""

    def __init__(self, connect: Callable[[], KernelClient]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kernel: KernelClient | None = None

    @property
    def kernel(self) -> KernelClient:
        """The keeper's own access to the kernel, for work that runs here."""
        if self._kernel is None:
            raise RuntimeError("the keeper is not running")
        return self._kernel

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run work here. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call something here after a while. It must not block."""
        loop = self._running()
        loop.call_soon_threadsafe(loop.call_later, seconds, act)

    def call_soon(self, act: Callable[[], None]) -> None:
        """Call something here as soon as may be. It must not block."""
        self._running().call_soon_threadsafe(act)

    def close(self) -> None:
        """End what still runs here, and the thread."""
        with self._lock:
            thread, loop, self._thread, self._loop = self._thread, self._loop, None, None
        if thread is not None and loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(END_SECONDS_MAX)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                is_up = threading.Event()
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop, is_up), name="stepwell-keeper", daemon=True
                )
                self._thread.start()
                if not is_up.wait(START_SECONDS_MAX):
                    raise RuntimeError("the keeper did not start")
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop, is_up: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        kernel = self._kernel = self._connect()
        loop.call_soon(is_up.set)
        try:
            loop.run_forever()
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(kernel.close())
            loop.close()
