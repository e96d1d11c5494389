"""Case R1: whatever is cancelled, no reply ever reaches a request that it does not belong to."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

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
EXCHANGES = 16
WAVES = 25
READS_A_WAVE = 80
DELAY_SECONDS_MAX = 0.004

LIMITS = ViewLimits(exchanges_max=EXCHANGES, call_seconds=5.0)


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
                loop.call_later(rng.random() * DELAY_SECONDS_MAX * READS_A_WAVE / EXCHANGES, read.cancel)
            for result in await asyncio.gather(*reads, return_exceptions=True):
                # then
                assert result is None or isinstance(result, asyncio.CancelledError), repr(result)
                ends["cancelled" if result else "done"] += 1
        # and
        assert min(ends.values()) > WAVES * READS_A_WAVE // 10, ends
        assert proxy.accepted == 1, "a cancelled call does not cost the others their connection"
        await assert_all_places_are_usable(view, proxy)


async def assert_all_places_are_usable(view: RedisView, proxy: SlowProxy) -> None:
    """As many calls as there may be exchanges are under way at once: a lost place would keep one of them out."""
    proxy.hold()
    before, one = proxy.bytes_asked, 0
    reads: list[asyncio.Task[None]] = []
    for count in range(1, EXCHANGES + 1):
        reads.append(asyncio.create_task(read_and_compare(view, 1, 2)))
        await wait_until_async(partial(_is_asked, proxy, before + max(one * count, 1)), "the request to be under way")
        one = one or proxy.bytes_asked - before
    proxy.let_go()
    await asyncio.gather(*reads)


def _is_asked(proxy: SlowProxy, size: int) -> bool:
    return proxy.bytes_asked >= size


async def test_the_reply_to_a_cancelled_call_is_dropped_and_the_connection_goes_on(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    async with slow_proxy(valkey_server.port) as proxy, filled_view(redis_url, fresh_redis, proxy) as view:
        await read_and_compare(view, 1, 2)
        requests = proxy.requests
        proxy.hold()
        cancelled = asyncio.create_task(read_and_compare(view, 1, 2))
        await wait_until_async(lambda: proxy.requests > requests, "the request to be under way")
        others = [asyncio.create_task(read_and_compare(view, number, number % 5)) for number in range(10)]

        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        proxy.let_go()

        await asyncio.gather(*others)
        assert proxy.accepted == 1
        assert view.losses == 0


async def test_calls_of_one_moment_leave_together(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    async with slow_proxy(valkey_server.port) as proxy, filled_view(redis_url, fresh_redis, proxy) as view:
        await read_and_compare(view, 1, 2)
        requests = proxy.requests

        await asyncio.gather(*(read_and_compare(view, number, 2) for number in range(EXCHANGES)))

        assert proxy.requests == requests + 1


async def test_a_call_that_is_not_answered_ends_the_connection_and_whoever_waits_on_it(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    limits = ViewLimits(exchanges_max=2, call_seconds=0.3)
    async with (
        slow_proxy(valkey_server.port) as proxy,
        filled_view(redis_url, fresh_redis, proxy),
        open_view(proxy.url, limits=limits) as view,
    ):
        losses = view.losses
        proxy.hold()

        results = await asyncio.gather(
            *(read_and_compare(view, number, 0) for number in range(5)), return_exceptions=True
        )

        assert [type(result) for result in results] == [ViewUnavailable] * 5
        assert all(isinstance(result, ViewUnavailable) and result.reason == "view_unavailable" for result in results)
        assert view.losses > losses
        proxy.let_go()
        await read_and_compare(view, 1, 0)


async def test_a_view_that_closes_lets_calls_come_to_their_end(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    async with slow_proxy(valkey_server.port) as proxy, filled_view(redis_url, fresh_redis, proxy) as view:
        proxy.hold()
        reading = asyncio.create_task(read_and_compare(view, 1, 2))
        await wait_until_async(lambda: proxy.held, "the reply to be held back")
        closing = asyncio.create_task(view.close())
        await loop_turns(5)
        assert not closing.done()

        proxy.let_go()

        await asyncio.gather(reading, closing)
        await wait_until_async(lambda: not proxy.open, "the connection to be closed")
        with pytest.raises(ViewUnavailable, match="closed"):
            await read_and_compare(view, 1, 2)


async def test_calls_that_are_cancelled_while_they_wait_for_a_place_lose_none(
    valkey_server: EmbeddedServer, redis_url: str, fresh_redis: Redis
) -> None:
    async with slow_proxy(valkey_server.port) as proxy, filled_view(redis_url, fresh_redis, proxy) as view:
        proxy.hold()
        reads = [asyncio.create_task(read_and_compare(view, 1, 2)) for _ in range(EXCHANGES * 3)]
        await wait_until_async(lambda: proxy.held, "a reply to be held back")
        for read in reads:
            read.cancel()
            await loop_turns(1)
        await asyncio.gather(*reads, return_exceptions=True)
        proxy.let_go()

        await assert_all_places_are_usable(view, proxy)
