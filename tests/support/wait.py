"""Waiting for a condition with a deadline: the only module of the tests that may sleep."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

Value = TypeVar("Value")

DEADLINE_SECONDS = 10.0
_INTERVAL_MIN_SECONDS = 0.002
_INTERVAL_MAX_SECONDS = 0.05
_INTERVAL_GROWTH = 1.5


class NotInTime(AssertionError):
    """The condition did not hold before its deadline."""


def wait_until(
    condition: Callable[[], Value],
    description: str,
    *,
    deadline_seconds: float = DEADLINE_SECONDS,
    retry_on: type[Exception] | tuple[type[Exception], ...] = (),
) -> Value:
    """Call `condition` until it returns something true, and return that. For tests without an event loop.

    An exception named in `retry_on` counts as "not yet"; any other one ends the wait. Raises `NotInTime` with the
    description and the last value or exception. `description` completes "waited for …".
    """
    _refuse_a_running_loop()
    ends_at = time.monotonic() + deadline_seconds
    interval_seconds = _INTERVAL_MIN_SECONDS
    last: object = None
    while True:
        try:
            last = value = condition()
        except retry_on as error:
            last = error
        else:
            if value:
                return value
        left_seconds = ends_at - time.monotonic()
        if left_seconds <= 0:
            raise _not_in_time(description, deadline_seconds, last)
        time.sleep(min(interval_seconds, left_seconds))
        interval_seconds = min(interval_seconds * _INTERVAL_GROWTH, _INTERVAL_MAX_SECONDS)


async def wait_until_async(
    condition: Callable[[], Value | Awaitable[Value]],
    description: str,
    *,
    deadline_seconds: float = DEADLINE_SECONDS,
    retry_on: type[Exception] | tuple[type[Exception], ...] = (),
) -> Value:
    """`wait_until` for tests on an event loop; `condition` may be a coroutine function.

    A condition that hangs is cancelled at the deadline. One that raises TimeoutError of its own is not taken for that.
    """
    interval_seconds = _INTERVAL_MIN_SECONDS
    last: object = None
    deadline = asyncio.timeout(deadline_seconds)
    try:
        async with deadline:
            while True:
                try:
                    last = value = await _evaluated(condition)
                except retry_on as error:
                    last = error
                else:
                    if value:
                        return value
                await asyncio.sleep(interval_seconds)
                interval_seconds = min(interval_seconds * _INTERVAL_GROWTH, _INTERVAL_MAX_SECONDS)
    except TimeoutError:
        if not deadline.expired():
            raise
        raise _not_in_time(description, deadline_seconds, last) from None


async def loop_turns(count: int = 10) -> None:
    """Let everything that is ready on the event loop run, `count` times over. No time need pass."""
    for _ in range(count):
        await asyncio.sleep(0)


async def _evaluated(condition: Callable[[], Value | Awaitable[Value]]) -> Value:
    value = condition()
    if inspect.isawaitable(value):
        return await cast("Awaitable[Value]", value)
    return value


def _refuse_a_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("wait_until would block the event loop: use `await wait_until_async(...)`")


def _not_in_time(description: str, deadline_seconds: float, last: object) -> NotInTime:
    return NotInTime(f"waited {deadline_seconds:g} s for {description}; the last look gave {last!r}")
