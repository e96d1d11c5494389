"""Calls that take several steps, and what is seen of them, or becomes of them, in the middle."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from kernel.domain.errors import OwnershipLost
from kernel.embedded import EmbeddedServer
from kernel.ports import ExecutionQuery
from kernel.view.limits import ViewLimits
from kernel.view.redis import RedisView
from tests.contract.view_harness import SHARD, TTL_MS, RedisHarness
from tests.support.records import STREAM_CREATED_AT, change, make_batch, make_header, watermark
from tests.support.slow_proxy import SlowProxy, slow_proxy
from tests.support.views import open_view
from tests.support.wait import wait_until_async

EXECUTIONS = 30
LIMITS = ViewLimits(wipe_keys_max=5, wipe_hold_ms=20_000, list_chunk_max=5)
OWNER = f"{{s{SHARD}}}:owner"


@asynccontextmanager
async def stepped(server: EmbeddedServer) -> AsyncIterator[tuple[RedisView, SlowProxy]]:
    """A view whose every step waits to be let go."""
    async with slow_proxy(server.port) as proxy, open_view(proxy.url, limits=LIMITS) as view:
        proxy.hold()
        yield view, proxy
        proxy.let_go()


async def let_steps_go(proxy: SlowProxy, steps: int) -> None:
    """Let replies go, one after the other, and return when the step after them was done by the server."""
    for _ in range(steps):
        await wait_until_async(lambda: proxy.held == 1, "the step to be done")
        proxy.let_one_go()
    await wait_until_async(lambda: proxy.held == 1, "the next step to be done")


async def test_a_wipe_that_ends_half_way_is_begun_anew_by_the_next_owner(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    async with open_view(redis_url) as direct, stepped(valkey_server) as (view, proxy):
        harness = RedisHarness(direct, fresh_redis)
        ownership = await harness.own()
        await direct.apply(ownership, make_batch(0, 1, *(change(make_header(n)) for n in range(EXECUTIONS))))
        wipe = asyncio.create_task(view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0))
        await let_steps_go(proxy, 0)

        wipe.cancel()
        await asyncio.gather(wipe, return_exceptions=True)

        state = await direct.keep(ownership, ttl_ms=TTL_MS)
        assert (state.watermark, state.is_rebuilding) == (None, True)


async def test_a_wipe_drops_nothing_more_once_the_shard_is_another_owners(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    async with open_view(redis_url) as direct, stepped(valkey_server) as (view, proxy):
        harness = RedisHarness(direct, fresh_redis)
        ownership = await harness.own()
        await direct.apply(ownership, make_batch(0, 1, *(change(make_header(n)) for n in range(EXECUTIONS))))
        wipe = asyncio.create_task(view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0))
        await let_steps_go(proxy, 2)

        await fresh_redis.delete(OWNER)
        left = await fresh_redis.dbsize()
        proxy.let_go()
        with pytest.raises(OwnershipLost):
            await wipe

        assert await fresh_redis.dbsize() == left


async def test_a_wipe_sets_no_watermark_once_the_shard_is_another_owners(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    async with open_view(redis_url) as direct, stepped(valkey_server) as (view, proxy):
        ownership = await RedisHarness(direct, fresh_redis).take()
        wipe = asyncio.create_task(view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0))
        # Begun, and looked through: what is left to do is to say so.
        await let_steps_go(proxy, 1)

        await fresh_redis.delete(OWNER)
        proxy.let_go()
        with pytest.raises(OwnershipLost):
            await wipe

        assert (await direct.locate(SHARD, make_header().execution_id)).watermark_seq == -1


async def test_a_wipe_outlasts_the_time_that_the_shard_was_taken_for(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    async with open_view(redis_url) as direct, stepped(valkey_server) as (view, proxy):
        ownership = await RedisHarness(direct, fresh_redis).own(ttl_ms=LIMITS.wipe_hold_ms // 2)
        await direct.apply(ownership, make_batch(0, 1, *(change(make_header(n)) for n in range(EXECUTIONS))))
        wipe = asyncio.create_task(view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0))

        for _ in range(3):
            await let_steps_go(proxy, 1)
            assert await fresh_redis.pttl(OWNER) > LIMITS.wipe_hold_ms // 2
            await fresh_redis.pexpire(OWNER, LIMITS.wipe_hold_ms // 2)

        proxy.let_go()
        assert await wipe == watermark(0)


async def test_a_list_is_as_fresh_as_its_first_step(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    async with open_view(redis_url) as direct, stepped(valkey_server) as (view, proxy):
        harness = RedisHarness(direct, fresh_redis)
        ownership = await harness.own()
        headers = [make_header(number) for number in range(EXECUTIONS)]
        await direct.apply(ownership, make_batch(0, 1, *map(change, headers)))
        listing = asyncio.create_task(view.executions(SHARD, "acme", ExecutionQuery()))
        await let_steps_go(proxy, 1)

        await direct.apply(ownership, make_batch(1, 2, is_rebuilding=True))
        proxy.let_go()
        listed = await listing

        assert (listed.watermark_seq, listed.is_rebuilding) == (1, True)
        assert listed.value == tuple(reversed(headers))
        assert await harness.watermark(ownership) == watermark(2)
