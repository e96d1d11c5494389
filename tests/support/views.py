"""A RedisView for the length of a test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kernel.view.limits import DEFAULT_LIMITS, ViewLimits
from kernel.view.redis import RedisView


@asynccontextmanager
async def open_view(url: str, *, limits: ViewLimits = DEFAULT_LIMITS) -> AsyncIterator[RedisView]:
    view = await RedisView.connect(url, limits=limits)
    try:
        yield view
    finally:
        await view.close()
