"""Fixtures: the real NATS and Valkey, one of each per test worker, started when the first test asks.

The shared servers must stay up: a test that kills, pauses or fills a server takes a private one.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client
from redis.asyncio import Redis

from kernel.embedded import EmbeddedServer, embedded_nats, embedded_valkey
from tests.support.blocking import run_blocking


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The NATS server that the tests of this worker share."""
    yield from _running(embedded_nats(tmp_path_factory.mktemp("nats")))


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The Valkey server that the tests of this worker share."""
    yield from _running(embedded_valkey(tmp_path_factory.mktemp("valkey")))


@pytest.fixture
def nats_url(nats_server: EmbeddedServer) -> str:
    """The shared NATS as it stands: with the streams of earlier tests. See `fresh_nats`."""
    return nats_server.url


@pytest.fixture
def redis_url(valkey_server: EmbeddedServer) -> str:
    """The shared Valkey as it stands: with the keys of earlier tests. See `fresh_redis`."""
    return valkey_server.url


@pytest_asyncio.fixture
async def fresh_nats(nats_url: str) -> AsyncIterator[Client]:
    """A connection to the shared NATS, which has no streams left."""
    connection = await nats.connect(nats_url, allow_reconnect=False)
    try:
        jetstream = connection.jetstream()
        for stream in await jetstream.streams_info():
            assert stream.config.name is not None
            await jetstream.delete_stream(stream.config.name)
        yield connection
    finally:
        await connection.close()


@pytest_asyncio.fixture
async def fresh_redis(redis_url: str) -> AsyncIterator["Redis"]:
    """A client of the shared Valkey, which is empty: no keys, no scripts, no functions."""
    async with Redis.from_url(redis_url) as client:
        await client.flushall()
        await client.script_flush()
        await client.function_flush()
        yield client


@pytest_asyncio.fixture
async def private_nats(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A NATS server for this test alone, to be killed, paused and restarted at will."""
    async with embedded_nats(tmp_path / "private-nats") as server:
        yield server


@pytest_asyncio.fixture
async def private_valkey(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A Valkey server for this test alone, to be killed, paused and restarted at will."""
    async with embedded_valkey(tmp_path / "private-valkey") as server:
        yield server


def _running(server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    run_blocking(server.start())
    try:
        yield server
    finally:
        run_blocking(server.stop())
