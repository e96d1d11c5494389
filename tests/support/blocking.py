"""Running a coroutine to its end from code that is not asynchronous, such as a session fixture."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Value = TypeVar("Value")


def run_blocking(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Run it on an event loop of its own in a thread of its own, whether or not the caller has a loop running."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
