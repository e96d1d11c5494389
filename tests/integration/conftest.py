"""Fixtures for the dispatcher: a scripted agent, and kernels without a door on NATS and Valkey."""

from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio
from nats.aio.client import Client
from redis.asyncio import Redis

from tests.support.dispatching import Kernels, connected_kernel
from tests.support.scripted_agent import ScriptedAgent, scripted_agent


@pytest_asyncio.fixture
async def agent() -> AsyncIterator[ScriptedAgent]:
    async with scripted_agent() as found:
        yield found


@pytest.fixture
def kernels(fresh_nats: Client, fresh_redis: Redis, nats_url: str, redis_url: str) -> Kernels:
    """Make running kernels on the shared servers, which are empty; see `connected_kernel`."""
    return partial(connected_kernel, nats_url, redis_url)
