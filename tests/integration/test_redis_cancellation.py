"""Case R1: whatever is cancelled, no reply ever reaches a request that it does not belong to."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from kernel.domain.errors import ViewUnavailable
from kernel.embedded import EmbeddedServer
from kernel.ports import ExecutionQuery, Fetch, Located, StoredAnswer
from kernel.view.limits import ViewLimits
from kernel.view.redis import RedisView
from schemas.records import HEADER_FIELD, encode_record
from tests.contract.view_harness import RedisHarness
from tests.support.records import change, entry_id, make_batch, make_header
from tests.support.slow_proxy import SlowProxy, slow_proxy
from tests.support.views import open_view
from tests.support.wait import loop_turns, wait_until_async

SHARD = 3
TENANTS = ("acme", "globex")
EXECUTIONS = 20
CONNECTIONS = 4
WAVES = 25
READS_A_WAVE = 80
DELAY_SECONDS_MAX = 0.004

LIMITS = ViewLimits(connections_max=CONNECTIONS, call_seconds=5.0)


@asynccontextmanager
async def filled_view(redis_url: str, redis: Redis, proxy: SlowProxy) -> AsyncIterator[RedisView]:
    """A view behind the proxy, of a shard with executions of two tenants that each hold their own id."""
    async with open_view(redis_url) as direct:
        ownership = await RedisHarness(direct, redis).own(SHARD)
        headers = [make_header(number, tenant=TENANTS[number % 2]) for number in range(EXECUTIONS)]
        answers = tuple(StoredAnswer(entry_id(number), b"answer %d" % number) for number in range(EXECUTIONS))
        changes = [change(header, fields={b"own": header.execution_id.encode()}) for header in headers]
        await direct.apply(ownership, make_batch(0, 1, *changes, answers=answers))
    async with open_view(proxy.url, limits=LIMITS) as view:
        yield view


async def read_and_compare(view: RedisView, number: int, kind: int) -> None:
    """Read one thing in one of five ways, and compare it with what it has to be."""
    tenant = TENANTS[number % 2]
    header = make_header(number, tenant=tenant)
    own = (encode_record(header), header.execution_id.encode())
    match kind:
        case 0:
            found = await view.fields(SHARD, tenant, header.execution_id, (HEADER_FIELD, b"own"))
            assert found.value == own
        case 1:
            loaded = await view.load(SHARD, [Fetch(tenant, header.execution_id, (HEADER_FIELD, b"own"))])
            assert loaded[0].values == own
        case 2:
            located = await view.locate(SHARD, header.execution_id)
            assert located.value == Located(tenant=tenant, agent_id="researcher")
        case 3:
            answer = await view.stored_answer(SHARD, entry_id(number))
            assert answer.value == b"answer %d" % number
        case _:
            listed = await view.executions(SHARD, tenant, ExecutionQuery(limit=EXECUTIONS))
            assert len(listed.value) == EXECUTIONS // 2
            assert header in listed.value


async def test_no_reply_reaches_another_request_when_calls_are_cancelled_at_random(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis, seed: int
) -> None:
    # given
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    ends = {"done": 0, "cancelled": 0}
    async with (
        slow_proxy(valkey_server.port, lambda: rng.random() * DELAY_SECONDS_MAX) as proxy,
        filled_view(redis_url, fresh_redis, proxy) as view,
    ):
        # when
        for _ in range(WAVES):
            reads = [
                asyncio.create_task(read_and_compare(view, rng.randrange(EXECUTIONS), rng.randrange(5)))
                for _ in range(READS_A_WAVE)
            ]
            for read in rng.sample(reads, READS_A_WAVE // 2):
                loop.call_later(rng.random() * DELAY_SECONDS_MAX * READS_A_WAVE / CONNECTIONS, read.cancel)
            for result in await asyncio.gather(*reads, return_exceptions=True):
                # then
                assert result is None or isinstance(result, asyncio.CancelledError), repr(result)
                ends["cancelled" if result else "done"] += 1
        # and
        assert min(ends.values()) > WAVES * READS_A_WAVE // 10, ends
        await wait_until_async(lambda: len(proxy.open) <= CONNECTIONS, "cancelled calls to close their connections")
        await assert_all_connections_are_usable(view, proxy)


async def assert_all_connections_are_usable(view: RedisView, proxy: SlowProxy) -> None:
    """As many calls as there may be connections are under way at once: a lost place would keep one of them out."""
    proxy.hold()
    before = proxy.requests
    reads = [asyncio.create_task(read_and_compare(view, number, 2)) for number in range(CONNECTIONS)]
    await wait_until_async(lambda: len(proxy.open) == CONNECTIONS, "every connection to be in use")
    await wait_until_async(lambda: proxy.requests >= before + CONNECTIONS, "every request to be under way")
    proxy.let_go()
    await asyncio.gather(*reads)


async def test_a_cancelled_call_closes_its_connection(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    async with slow_proxy(valkey_server.port) as proxy, filled_view(redis_url, fresh_redis, proxy) as view:
        await read_and_compare(view, 1, 2)
        accepted, requests = proxy.accepted, proxy.requests
        proxy.hold()
        read = asyncio.create_task(read_and_compare(view, 1, 2))
        await wait_until_async(lambda: proxy.requests > requests, "the request to be under way")

        read.cancel()
        await asyncio.gather(read, return_exceptions=True)

        await wait_until_async(lambda: not proxy.open, "the connection to be closed")
        proxy.let_go()
        await read_and_compare(view, 2, 2)
        assert proxy.accepted == accepted + 1


async def test_a_call_that_waits_for_a_connection_waits_no_longer_than_its_deadline(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    limits = ViewLimits(connections_max=2, call_seconds=0.3)
    async with (
        slow_proxy(valkey_server.port) as proxy,
        filled_view(redis_url, fresh_redis, proxy),
        open_view(proxy.url, limits=limits) as view,
    ):
        others = len(proxy.open) - 1
        proxy.hold()

        results = await asyncio.gather(
            *(read_and_compare(view, number, 0) for number in range(5)), return_exceptions=True
        )

        assert [type(result) for result in results] == [ViewUnavailable] * 5
        assert all(isinstance(result, ViewUnavailable) and result.reason == "view_unavailable" for result in results)
        assert proxy.open_max == others + limits.connections_max
        proxy.let_go()
        await read_and_compare(view, 1, 0)


async def test_calls_that_are_cancelled_while_they_wait_for_a_connection_lose_no_place(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    async with slow_proxy(valkey_server.port) as proxy, filled_view(redis_url, fresh_redis, proxy) as view:
        proxy.hold()
        reads = [asyncio.create_task(read_and_compare(view, 1, 2)) for _ in range(CONNECTIONS * 3)]
        await wait_until_async(lambda: len(proxy.open) == CONNECTIONS, "every connection to be in use")
        for read in reads:
            read.cancel()
            await loop_turns(1)
        await asyncio.gather(*reads, return_exceptions=True)
        proxy.let_go()

        await assert_all_connections_are_usable(view, proxy)


async def test_a_closed_view_cannot_be_asked_and_leaves_no_connection(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    async with slow_proxy(valkey_server.port) as proxy, filled_view(redis_url, fresh_redis, proxy) as view:
        proxy.hold()
        before = proxy.requests
        under_way = asyncio.create_task(read_and_compare(view, 1, 2))
        await wait_until_async(lambda: proxy.requests > before, "the request to be under way")

        await view.close()
        proxy.let_go()
        await under_way

        await wait_until_async(lambda: not proxy.open, "the connections to be closed")
        with pytest.raises(ViewUnavailable):
            await view.locate(SHARD, entry_id(1))
