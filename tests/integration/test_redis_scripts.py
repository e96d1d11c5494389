"""Case R3: scripts that the server forgot, a server that became a replica, and keys that share a slot."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from kernel.domain.errors import ViewUnavailable
from kernel.embedded import EmbeddedServer, embedded_valkey
from kernel.ports import CreateKey, ExecutionQuery, Fetch, Ownership, Parked, StoredAnswer
from kernel.view.limits import ViewLimits
from kernel.view.redis import RedisView
from schemas.records import HEADER_FIELD, encode_record
from tests.contract.view_harness import SHARD, TTL_MS, RedisHarness
from tests.support.records import (
    LEASE_MS,
    STREAM_CREATED_AT,
    change,
    ended_header,
    entry_id,
    execution_id,
    leased_header,
    make_batch,
    make_header,
    step_fields,
    watermark,
)
from tests.support.slow_proxy import slow_proxy
from tests.support.views import open_view
from tests.support.wait import wait_until_async

SHARDS = range(8)
ROUNDS = 60
CALLERS = 4


@pytest_asyncio.fixture
async def view(redis_url: str, fresh_redis: Redis) -> AsyncIterator[RedisView]:
    async with open_view(redis_url, limits=ViewLimits(wipe_keys_max=10)) as view:
        yield view


async def use_everything(view: RedisView, ownership: Ownership) -> None:
    """Run every script and every command of the view once."""
    leased, created = leased_header(1), make_header(2)
    changes = (change(leased, fields=step_fields(1, 2)), change(created))
    answers = (StoredAnswer(entry_id(1), b"answer"),)
    keys = (CreateKey("acme", b"digest", b"record"), CreateKey("globex", b"digest", b"other"))
    await view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0)
    await view.apply(
        ownership, make_batch(0, 1, *changes, answers=answers, create_keys=keys, parked=(Parked(1, "damaged"),))
    )
    await view.apply(ownership, make_batch(1, 2, change(ended_header(2), before=created)))
    await view.beat(SHARDS)
    assert leased.lease is not None
    assert await view.renew_lease(ownership.shard, leased.execution_id, leased.lease, lease_ms=LEASE_MS)
    work = await view.take_due(ownership.shard, items_max=9, hold_ms=0, lease_ms=0)
    await view.defer(ownership.shard, work.items, delay_ms=0)
    assert await view.take_slot("acme", "researcher", holder="one", limit=1, hold_ms=TTL_MS)
    await view.give_slot("acme", "researcher", holder="one")
    fetches = [Fetch("acme", execution_id(1), (HEADER_FIELD,)), Fetch("globex", execution_id(2), ())]
    assert (await view.load(ownership.shard, fetches))[0].values == (encode_record(leased),)
    wanted = [("acme", b"digest"), ("globex", b"digest")]
    assert await view.load_create_keys(ownership.shard, wanted) == [b"record", b"other"]
    assert await view.recent_entry_ids(ownership.shard) == [entry_id(1)]
    assert (await view.stored_answer(ownership.shard, entry_id(1))).value == b"answer"
    assert (await view.locate(ownership.shard, execution_id(1))).value is not None
    assert (await view.live_executions(ownership.shard, "acme", "researcher")).value == 1
    listed = await view.executions(ownership.shard, "acme", ExecutionQuery(status="completed"))
    assert [header.execution_id for header in listed.value] == [execution_id(2)]
    assert await view.announce_projector("one", ttl_ms=TTL_MS) == 1
    assert (await view.keep(ownership, ttl_ms=TTL_MS)).watermark == watermark(2)


async def test_every_script_is_loaded_again_by_itself(view: RedisView, fresh_redis: Redis) -> None:
    for _ in range(3):
        await fresh_redis.script_flush()
        await fresh_redis.flushall()
        ownership = await RedisHarness(view, fresh_redis).take()
        await use_everything(view, ownership)
        await view.release(ownership)


async def test_calls_go_on_while_the_server_keeps_forgetting_its_scripts(view: RedisView, fresh_redis: Redis) -> None:
    # given
    harness = RedisHarness(view, fresh_redis)
    ownerships = {shard: await harness.own(shard) for shard in range(CALLERS)}

    async def apply_batches(shard: int) -> None:
        for seq in range(ROUNDS):
            await view.apply(ownerships[shard], make_batch(seq, seq + 1, change(make_header(seq))))
            await view.beat(SHARDS)

    async def forget_scripts() -> None:
        for _ in range(ROUNDS):
            await fresh_redis.script_flush()

    # when
    await asyncio.gather(forget_scripts(), *(apply_batches(shard) for shard in range(CALLERS)))

    # then
    for shard in range(CALLERS):
        assert await harness.watermark(ownerships[shard]) == watermark(ROUNDS)
        assert (await view.live_executions(shard, "acme", "researcher")).value == ROUNDS


async def test_a_server_that_became_a_replica_is_left_and_found_again(private_valkey: EmbeddedServer) -> None:
    async with (
        Redis.from_url(private_valkey.url) as redis,
        slow_proxy(private_valkey.port) as proxy,
        open_view(proxy.url) as view,
    ):
        ownership = await RedisHarness(view, redis).own()
        batch = make_batch(0, 1, change(make_header()))
        accepted = proxy.accepted
        await redis.execute_command("REPLICAOF", "127.0.0.1", "1")

        for number in range(3):
            with pytest.raises(ViewUnavailable, match="read-only replica"):
                await view.apply(ownership, batch)
            # Every call after the first one asks whoever has the address by then.
            assert proxy.accepted == accepted + number
        await redis.execute_command("REPLICAOF", "NO", "ONE")

        await view.apply(ownership, batch)
        assert (await view.locate(SHARD, execution_id(1))).value is not None


async def test_one_script_touches_one_slot(tmp_path: Path) -> None:
    # given a cluster, which refuses any call whose keys lie in two slots
    cluster = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
    async with embedded_valkey(tmp_path / "cluster", arguments=cluster) as server, Redis.from_url(server.url) as redis:
        await redis.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        await wait_until_async(lambda: is_cluster_ready(redis), "the cluster to serve its slots")
        async with open_view(server.url, limits=ViewLimits(wipe_keys_max=10)) as view:
            # when, then
            await use_everything(view, await RedisHarness(view, redis).take())


async def is_cluster_ready(redis: Redis) -> bool:
    return "cluster_state:ok" in str(await redis.execute_command("CLUSTER", "INFO"))
