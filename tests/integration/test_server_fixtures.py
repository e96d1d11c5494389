"""The server fixtures: shared servers are emptied for who asks, private ones are another server."""

import nats
import pytest_asyncio
from nats.aio.client import Client
from redis.asyncio import Redis

from kernel.embedded import EmbeddedServer


@pytest_asyncio.fixture
async def remains(nats_url: str, redis_url: str) -> None:
    """What an earlier test left on the shared servers."""
    connection = await nats.connect(nats_url, allow_reconnect=False)
    await connection.jetstream().add_stream(name="LEFT", subjects=["left.>"])
    await connection.close()
    async with Redis.from_url(redis_url) as redis:
        await redis.set("left", "behind")


async def test_fresh_servers_hold_nothing_of_earlier_tests(
    remains: None, fresh_nats: Client, fresh_redis: Redis
) -> None:
    assert await fresh_nats.jetstream().streams_info() == []
    assert await fresh_redis.dbsize() == 0


def test_private_servers_are_not_the_shared_ones(
    nats_url: str, redis_url: str, private_nats: EmbeddedServer, private_valkey: EmbeddedServer
) -> None:
    assert private_nats.url != nats_url
    assert private_valkey.url != redis_url
