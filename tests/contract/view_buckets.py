"""Contract of the view: the token buckets of rate limits that doors share."""

import asyncio

import pytest

from tests.contract.view_harness import ViewHarness

BUCKET, OTHER_BUCKET = b"b" * 16, b"o" * 16
CALLS = 4
WINDOW_MS = 1_000_000
"""So long that a slow test lets nothing flow back: a token takes `TOKEN_MS`."""
TOKEN_MS = WINDOW_MS // CALLS
SLACK_MS = 60_000
LARGEST_CALLS, LARGEST_WINDOW_MS = 2**53, 366 * 24 * 3600 * 1000


async def take(
    harness: ViewHarness,
    bucket: bytes = BUCKET,
    *,
    tenant: str = "acme",
    calls: int = CALLS,
    window_ms: int = WINDOW_MS,
) -> bool:
    return await harness.view.take_token(tenant, bucket, max_calls=calls, window_ms=window_ms)


async def give(harness: ViewHarness, bucket: bytes = BUCKET, *, tenant: str = "acme") -> None:
    await harness.view.give_token(tenant, bucket, max_calls=CALLS, window_ms=WINDOW_MS)


async def empty(harness: ViewHarness, bucket: bytes = BUCKET, *, tenant: str = "acme") -> int:
    """Take all there is, and return how many tokens that were."""
    count = 0
    while await take(harness, bucket, tenant=tenant):
        count += 1
        assert count <= CALLS, "more tokens than the bucket holds"
    return count


class BucketSuite:
    async def test_a_bucket_gives_as_many_tokens_as_it_holds_and_then_none(self, harness: ViewHarness) -> None:
        taken = [await take(harness) for _ in range(CALLS + 2)]

        assert taken == [True] * CALLS + [False] * 2

    async def test_of_many_at_once_as_many_get_one_as_it_holds(self, harness: ViewHarness) -> None:
        taken = await asyncio.gather(*(take(harness) for _ in range(5 * CALLS)))

        assert sum(taken) == CALLS

    async def test_a_token_is_back_after_its_part_of_the_window_and_not_before(self, harness: ViewHarness) -> None:
        await empty(harness)

        await harness.pass_time(TOKEN_MS - SLACK_MS)
        before = await take(harness)
        await harness.pass_time(SLACK_MS)

        assert not before
        assert await empty(harness) == 1

    async def test_what_flows_back_between_two_refusals_adds_up(self, harness: ViewHarness) -> None:
        await empty(harness)

        for _ in range(3):
            await harness.pass_time(TOKEN_MS // 4)
            assert not await take(harness)
        await harness.pass_time(TOKEN_MS // 4)

        assert await empty(harness) == 1

    async def test_parts_of_a_token_that_are_left_over_are_kept(self, harness: ViewHarness) -> None:
        await empty(harness)

        await harness.pass_time(TOKEN_MS * 3 // 2)
        first = await empty(harness)
        await harness.pass_time(TOKEN_MS * 3 // 2)

        assert (first, await empty(harness)) == (1, 2)

    @pytest.mark.parametrize("windows", [1, 3])
    async def test_a_bucket_fills_up_in_a_window_and_never_beyond(self, harness: ViewHarness, windows: int) -> None:
        await empty(harness)

        await harness.pass_time(windows * WINDOW_MS)

        assert await empty(harness) == CALLS

    async def test_a_bucket_that_is_used_now_and_then_never_holds_more_than_it_may(self, harness: ViewHarness) -> None:
        for _ in range(3):
            assert await take(harness)
            await harness.pass_time(WINDOW_MS * 9 // 10)

        assert await empty(harness) == CALLS

    async def test_a_token_that_is_given_back_can_be_taken_again(self, harness: ViewHarness) -> None:
        await empty(harness)

        await give(harness)

        assert await empty(harness) == 1

    async def test_giving_back_fills_no_bucket_beyond_full(self, harness: ViewHarness) -> None:
        await give(harness)
        await take(harness)
        for _ in range(3):
            await give(harness)

        assert await empty(harness) == CALLS

    async def test_a_bucket_belongs_to_its_tenant_and_its_name(self, harness: ViewHarness) -> None:
        await empty(harness)
        await give(harness, OTHER_BUCKET)
        await give(harness, tenant="other")

        assert await take(harness) is False
        assert await empty(harness, OTHER_BUCKET) == CALLS
        assert await empty(harness, tenant="other") == CALLS

    async def test_after_everything_was_lost_a_bucket_is_full(self, harness: ViewHarness) -> None:
        await empty(harness)

        await harness.lose_everything()

        assert await empty(harness) == CALLS

    async def test_the_largest_bucket_and_the_smallest_are_buckets_too(self, harness: ViewHarness) -> None:
        for _ in range(3):
            assert await take(harness, calls=LARGEST_CALLS, window_ms=LARGEST_WINDOW_MS)

        assert await take(harness, OTHER_BUCKET, calls=1, window_ms=1)
        await harness.pass_time(1)
        assert await take(harness, OTHER_BUCKET, calls=1, window_ms=1)
