"""Case R5 and its kin: a server that evicts, is full, dies, stalls, or holds damage."""

from contextlib import suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from kernel.domain.errors import InvariantBroken, ViewUnavailable
from kernel.embedded import EmbeddedServer, embedded_valkey, free_port
from kernel.ports import ExecutionQuery, Fetch, StoredAnswer
from kernel.view.limits import ANSWER_MS, ViewLimits
from kernel.view.redis import RedisView
from schemas.records import HEADER_FIELD, Header
from tests.contract.view_harness import SHARD, TTL_MS, RedisHarness
from tests.support.records import (
    CREATED_AT_MS,
    LEASE_MS,
    change,
    ended_header,
    entry_id,
    execution_id,
    leased_header,
    make_batch,
    make_header,
    watermark,
)
from tests.support.views import open_view
from tests.support.wait import wait_until_async

FULL_AT = ("--maxmemory", "20mb")
FILLER = b"x" * 100_000
FILLERS_MAX = 1_000


async def fill(redis: Redis) -> None:
    """Write until the server has no room."""
    with suppress(OutOfMemoryError):
        for number in range(FILLERS_MAX):
            await redis.set(f"filler:{number}", FILLER)
        pytest.fail("the server is not full")


async def make_room(redis: Redis) -> None:
    await redis.delete(*await redis.keys("filler:*"))


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_evicts_is_refused_with_the_remedy(private_valkey: EmbeddedServer, policy: str) -> None:
    async with Redis.from_url(private_valkey.url) as redis, open_view(private_valkey.url) as view:
        await redis.config_set("maxmemory-policy", policy)

        with pytest.raises(ViewUnavailable, match=f"{policy}.*set maxmemory-policy to noeviction"):
            await view.check()
        with pytest.raises(ViewUnavailable, match="set maxmemory-policy to noeviction"):
            await RedisView.connect(private_valkey.url)


async def test_a_full_server_takes_no_batch_and_is_not_torn_by_one(tmp_path: Path) -> None:
    async with (
        embedded_valkey(tmp_path / "valkey", arguments=FULL_AT) as server,
        Redis.from_url(server.url) as redis,
        open_view(server.url) as view,
    ):
        harness = RedisHarness(view, redis)
        ownership = await harness.own()
        leased = leased_header(1)
        await view.apply(ownership, make_batch(0, 1, change(leased)))
        await fill(redis)
        batch = make_batch(1, 2, change(make_header(2), fields={b"e1": FILLER}))

        with pytest.raises(ViewUnavailable) as refused:
            await view.apply(ownership, batch)

        assert refused.value.reason == "view_unavailable"
        state = await view.keep(ownership, ttl_ms=TTL_MS)
        assert (state.watermark, state.is_dirty) == (watermark(1), False)
        assert (await view.locate(SHARD, execution_id(2))).value is None
        # What needs no room goes on: agents keep their leases.
        assert leased.lease is not None
        assert await view.renew_lease(SHARD, leased.execution_id, leased.lease, lease_ms=LEASE_MS)
        await make_room(redis)
        await view.apply(ownership, batch)
        assert await harness.watermark(ownership) == watermark(2)


async def test_a_full_server_can_still_be_taken_and_wiped(tmp_path: Path) -> None:
    async with (
        embedded_valkey(tmp_path / "valkey", arguments=FULL_AT) as server,
        Redis.from_url(server.url) as redis,
        open_view(server.url) as view,
    ):
        harness = RedisHarness(view, redis)
        ownership = await harness.own()
        await view.apply(ownership, make_batch(0, 1, change(make_header())))
        await fill(redis)
        await view.release(ownership)

        next_owner = await harness.take(owner="two")
        empty = await view.wipe(next_owner, created_at="new", lease_ms=0)

        assert await harness.watermark(next_owner) == empty
        assert (await view.locate(SHARD, execution_id(1))).value is None


async def test_a_server_that_died_is_unavailable_until_it_is_back_with_its_data(private_valkey: EmbeddedServer) -> None:
    async with Redis.from_url(private_valkey.url) as redis, open_view(private_valkey.url) as view:
        ownership = await RedisHarness(view, redis).own()
        await view.apply(ownership, make_batch(0, 1, change(make_header())))

        await private_valkey.kill()
        with pytest.raises(ViewUnavailable):
            await view.locate(SHARD, execution_id(1))
        with pytest.raises(ViewUnavailable):
            await view.check()
        await private_valkey.start()

        found = await wait_until_async(
            lambda: view.locate(SHARD, execution_id(1)), "the view to answer again", retry_on=ViewUnavailable
        )
        assert found.watermark_seq == 1
        assert found.value is not None
        await view.apply(ownership, make_batch(1, 2))


async def test_a_server_that_stalls_is_given_up_after_the_call_deadline(private_valkey: EmbeddedServer) -> None:
    async with open_view(private_valkey.url, limits=ViewLimits(call_seconds=0.2)) as view:
        private_valkey.pause()
        try:
            with pytest.raises(ViewUnavailable, match=r"no reply within 0\.2 s"):
                await view.locate(SHARD, execution_id(1))
        finally:
            private_valkey.resume()

        await wait_until_async(
            lambda: view.locate(SHARD, execution_id(1)), "the view to answer again", retry_on=ViewUnavailable
        )


async def test_nobody_at_the_address_is_unavailable(private_valkey: EmbeddedServer) -> None:
    with pytest.raises(ViewUnavailable):
        await RedisView.connect(f"redis://127.0.0.1:{free_port()}")


async def test_a_wrong_password_is_unavailable_and_says_so(private_valkey: EmbeddedServer) -> None:
    async with Redis.from_url(private_valkey.url) as redis:
        await redis.config_set("requirepass", "right")
        with pytest.raises(ViewUnavailable):
            await RedisView.connect(private_valkey.url.replace("redis://", "redis://:wrong@"))
        async with open_view(private_valkey.url.replace("redis://", "redis://:right@")) as view:
            await view.check()


@pytest.mark.parametrize("foreign", [make_header(2), make_header(1, tenant="globex")])
async def test_another_executions_header_is_never_answered_from(
    redis_url: str, fresh_redis: Redis, foreign: Header
) -> None:
    async with open_view(redis_url) as view:
        ownership = await RedisHarness(view, fresh_redis).own()
        await view.apply(ownership, make_batch(0, 1, change(make_header(1)), change(foreign)))
        raw = await fresh_redis.execute_command("HGET", hash_key(foreign.tenant, foreign.execution_id), "h")
        await fresh_redis.execute_command("HSET", hash_key("acme", execution_id(1)), "h", raw)

        with pytest.raises(InvariantBroken):
            await view.fields(SHARD, "acme", execution_id(1), (HEADER_FIELD,))
        with pytest.raises(InvariantBroken):
            await view.load(SHARD, [Fetch("acme", execution_id(1), (b"e1", HEADER_FIELD))])
        with pytest.raises(InvariantBroken):
            await view.executions(SHARD, "acme", ExecutionQuery())
        # One damaged execution must not hold up the due work of the others.
        work = await view.take_due(SHARD, items_max=9, hold_ms=0, lease_ms=0)
        assert {(item.tenant, item.execution_id) for item in work.items} <= {(foreign.tenant, foreign.execution_id)}


async def test_a_list_with_a_hash_that_is_gone_is_unavailable_and_not_shorter(
    redis_url: str, fresh_redis: Redis
) -> None:
    async with open_view(redis_url) as view:
        ownership = await RedisHarness(view, fresh_redis).own()
        await view.apply(ownership, make_batch(0, 1, change(make_header(1)), change(make_header(2))))

        await fresh_redis.delete(hash_key("acme", execution_id(1)))

        with pytest.raises(ViewUnavailable):
            await view.executions(SHARD, "acme", ExecutionQuery())
        found = (await view.load(SHARD, [Fetch("acme", execution_id(1), (HEADER_FIELD,))]))[0]
        assert (found.values, found.field_count, found.is_listed) == ((None,), 0, True)
        work = await view.take_due(SHARD, items_max=9, hold_ms=0, lease_ms=0)
        assert [item.execution_id for item in work.items] == [execution_id(2)]


async def test_a_list_longer_than_one_read_may_take_is_refused(redis_url: str, fresh_redis: Redis) -> None:
    async with open_view(redis_url, limits=ViewLimits(list_chunk_max=2, list_steps_max=3)) as view:
        ownership = await RedisHarness(view, fresh_redis).own()
        headers = [make_header(number) for number in range(9)]
        await view.apply(ownership, make_batch(0, 1, *map(change, headers)))

        page = await view.executions(SHARD, "acme", ExecutionQuery(limit=6))
        with pytest.raises(ViewUnavailable):
            await view.executions(SHARD, "acme", ExecutionQuery(limit=7))

        assert len(page.value) == 6


@pytest.mark.parametrize("damaged", [b"", b"no bars", b"created|x|sum", b"\xff|1"])
async def test_a_watermark_that_cannot_be_read_counts_as_lost(
    redis_url: str, fresh_redis: Redis, damaged: bytes
) -> None:
    async with open_view(redis_url) as view:
        harness = RedisHarness(view, fresh_redis)
        ownership = await harness.own()

        await fresh_redis.set(shard_key("watermark"), damaged)

        assert await harness.watermark(ownership) is None
        assert (await view.locate(SHARD, execution_id(1))).watermark_seq == -1


async def test_a_shard_without_a_watermark_gives_no_work_and_renews_no_lease(
    redis_url: str, fresh_redis: Redis
) -> None:
    async with open_view(redis_url) as view:
        harness = RedisHarness(view, fresh_redis)
        leased = leased_header(1)
        await view.apply(await harness.own(), make_batch(0, 1, change(leased), change(make_header(2))))

        await fresh_redis.delete(shard_key("watermark"))

        assert await harness.take_due() == []
        assert leased.lease is not None
        assert not await view.renew_lease(SHARD, leased.execution_id, leased.lease, lease_ms=LEASE_MS)


@pytest.mark.parametrize("sign", ["floor", "doors", "polled"])
async def test_a_lost_sign_of_life_expires_no_lease(redis_url: str, fresh_redis: Redis, sign: str) -> None:
    async with open_view(redis_url) as view:
        harness = RedisHarness(view, fresh_redis)
        await view.apply(await harness.own(), make_batch(0, 1, change(leased_header())))
        await harness.live_for(LEASE_MS)

        await fresh_redis.delete(shard_key(sign))

        assert await harness.take_due() == []


async def test_what_is_forgotten_leaves_no_trace(redis_url: str, fresh_redis: Redis) -> None:
    async with open_view(redis_url) as view:
        harness = RedisHarness(view, fresh_redis)
        ownership = await harness.own(ttl_ms=10 * TTL_MS)
        leased = leased_header()
        await view.apply(ownership, make_batch(0, 1, change(leased), answers=(StoredAnswer(entry_id(1), b"one"),)))
        await harness.live_for(LEASE_MS)
        assert await harness.take_due() == [("lease", "acme", leased.execution_id)]

        await harness.pass_time(ANSWER_MS)
        later = StoredAnswer(entry_id(2, unix_ms=CREATED_AT_MS + ANSWER_MS), b"two")
        ended = ended_header(lease=leased.lease, renewed_seq=leased.renewed_seq, claims=1)
        await view.apply(ownership, make_batch(1, 2, change(ended, before=leased), answers=(later,)))

        assert await fresh_redis.zcard(shard_key("slices")) == 1
        assert len(await fresh_redis.keys(shard_key("answers:*"))) == 1
        for gone in ("marks", "leases", "due"):
            assert not await fresh_redis.exists(shard_key(gone)), gone


def shard_key(name: str) -> str:
    return f"{{s{SHARD}}}:{name}"


def hash_key(tenant: str, execution: str) -> str:
    return shard_key(f"x:{tenant}:{execution}")
