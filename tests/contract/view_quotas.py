"""Contract of the view: what the quotas of tenants are drawn from and counted by."""

import asyncio

from msgspec.structs import replace

from tests.contract.view_harness import SHARD, ViewHarness
from tests.support.records import STREAM_CREATED_AT, change, ended_header, make_batch, make_header

BUCKET = b"q" * 16
RATE = 10
WINDOW_MS = 1_000_000
"""So long that a slow test lets nothing flow back."""
DAY = 20_000
LIMIT = 100


async def draw(harness: ViewHarness, wanted: int, *, tenant: str = "acme") -> int:
    return await harness.view.draw_tokens(tenant, BUCKET, wanted=wanted, max_calls=RATE, window_ms=WINDOW_MS)


async def spend(
    harness: ViewHarness, wanted: int, *, least: int = 1, tenant: str = "acme", quota: str = "bytes", day: int = DAY
) -> int:
    return await harness.view.spend(tenant, quota, day=day, limit=LIMIT, wanted=wanted, least=least)


class QuotaSuite:
    async def test_a_draw_takes_what_is_wanted_or_what_there_is(self, harness: ViewHarness) -> None:
        assert [await draw(harness, 7), await draw(harness, 7), await draw(harness, 7)] == [7, 3, 0]

    async def test_of_many_draws_at_once_together_no_more_is_taken_than_there_is(self, harness: ViewHarness) -> None:
        assert sum(await asyncio.gather(*(draw(harness, 4) for _ in range(8)))) == RATE

    async def test_what_flowed_back_is_drawn_in_whole_tokens(self, harness: ViewHarness) -> None:
        await draw(harness, RATE)

        await harness.pass_time(WINDOW_MS * 35 // 100)

        assert [await draw(harness, RATE), await draw(harness, RATE)] == [3, 0]

    async def test_a_bucket_of_tokens_is_its_tenants_own(self, harness: ViewHarness) -> None:
        await draw(harness, RATE)

        assert await draw(harness, RATE, tenant="globex") == RATE

    async def test_a_day_gives_its_limit_and_no_more(self, harness: ViewHarness) -> None:
        assert [await spend(harness, 60), await spend(harness, 60), await spend(harness, 60)] == [60, 40, 0]

    async def test_less_than_is_of_use_is_left_for_others(self, harness: ViewHarness) -> None:
        await spend(harness, 90)

        assert await spend(harness, 60, least=11) == 0
        assert await spend(harness, 60, least=10) == 10

    async def test_of_many_at_once_together_no_more_is_spent_than_the_limit(self, harness: ViewHarness) -> None:
        assert sum(await asyncio.gather(*(spend(harness, 15) for _ in range(10)))) == LIMIT

    async def test_days_quotas_and_tenants_are_counted_apart(self, harness: ViewHarness) -> None:
        await spend(harness, LIMIT)

        assert await spend(harness, LIMIT, day=DAY + 1) == LIMIT
        assert await spend(harness, LIMIT, quota="other") == LIMIT
        assert await spend(harness, LIMIT, tenant="globex") == LIMIT
        assert await spend(harness, LIMIT) == 0

    async def test_a_large_count_is_kept_to_the_last_one(self, harness: ViewHarness) -> None:
        limit = 2**53

        taken = await harness.view.spend("acme", "bytes", day=DAY, limit=limit, wanted=limit - 1, least=1)
        rest = await harness.view.spend("acme", "bytes", day=DAY, limit=limit, wanted=limit, least=1)

        assert (taken, rest) == (limit - 1, 1)

    async def test_live_executions_are_counted_by_tenant(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        headers = [make_header(number) for number in (1, 2, 3)]
        others = [make_header(4, agent_id="writer"), make_header(5, tenant="globex"), ended_header(6)]
        await harness.view.apply(ownership, make_batch(0, 1, *map(change, (*headers, *others))))

        await harness.view.apply(ownership, make_batch(1, 2, change(ended_header(2), before=headers[1])))

        counts = [await harness.view.count_live(SHARD, tenant) for tenant in ("acme", "globex", "nobody")]
        assert counts == [3, 1, 0]
        assert await harness.view.count_live(SHARD + 1, "acme") == 0

    async def test_bytes_in_the_log_are_what_the_last_batch_said(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        first = make_batch(0, 1, change(make_header(1)))
        second = make_batch(1, 2, change(make_header(2)))

        await harness.view.apply(ownership, replace(first, log_bytes=(("acme", 10), ("globex", 2**40))))
        await harness.view.apply(ownership, replace(second, log_bytes=(("acme", 25),)))

        assert await harness.view.log_bytes(SHARD) == {"acme": 25, "globex": 2**40}
        counts = [await harness.view.count_log_bytes(SHARD, tenant) for tenant in ("acme", "globex", "nobody")]
        assert counts == [25, 2**40, 0]

    async def test_a_wiped_shard_has_counted_no_bytes(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        batch = make_batch(0, 1, change(make_header(1)))
        await harness.view.apply(ownership, replace(batch, log_bytes=(("acme", 10),)))

        await harness.view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0)

        assert await harness.view.log_bytes(SHARD) == {}
