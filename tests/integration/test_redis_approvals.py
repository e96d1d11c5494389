"""Lists of approvals in Redis: what is damaged or too long is not answered from."""

import pytest
from redis.asyncio import Redis

from kernel.domain.errors import InvariantBroken, ViewUnavailable
from kernel.ports import ApprovalQuery
from kernel.view.keys import execution_key
from kernel.view.limits import ViewLimits
from schemas.records import approval_field, encode_record
from tests.contract.view_harness import SHARD, RedisHarness
from tests.support.records import (
    asking_header,
    change,
    ended,
    execution_id,
    make_approval,
    make_batch,
    make_header,
    new,
)
from tests.support.views import open_view

KEY = execution_key(SHARD, "acme", execution_id(1))


async def test_a_list_with_a_record_that_is_gone_is_unavailable_and_not_shorter(
    redis_url: str, fresh_redis: Redis
) -> None:
    first, second = make_approval(1), make_approval(2)
    async with open_view(redis_url) as view:
        header = asking_header(second, field_count=3)
        ownership = await RedisHarness(view, fresh_redis).own()
        await view.apply(ownership, make_batch(0, 1, change(header, approvals=(new(first), new(second)))))

        await fresh_redis.execute_command("HDEL", KEY, approval_field(first.approval_id))

        for query in (ApprovalQuery(), ApprovalQuery(approval_id=first.approval_id)):
            with pytest.raises(ViewUnavailable):
                await view.approvals(SHARD, "acme", query)
        other = await view.approvals(SHARD, "acme", ApprovalQuery(approval_id=second.approval_id))
        assert [each.record for each in other.value] == [second]


async def test_another_approvals_record_is_never_answered_from(redis_url: str, fresh_redis: Redis) -> None:
    approval = make_approval(1)
    async with open_view(redis_url) as view:
        header = asking_header(approval, field_count=2)
        ownership = await RedisHarness(view, fresh_redis).own()
        await view.apply(ownership, make_batch(0, 1, change(header, approvals=(new(approval),))))

        foreign = encode_record(make_approval(2))
        await fresh_redis.execute_command("HSET", KEY, approval_field(approval.approval_id), foreign)

        with pytest.raises(InvariantBroken):
            await view.approvals(SHARD, "acme", ApprovalQuery(approval_id=approval.approval_id))


async def test_a_list_of_approvals_is_read_in_steps_and_one_too_sparse_for_them_is_refused(
    redis_url: str, fresh_redis: Redis
) -> None:
    records = [make_approval(number, status="expired") for number in range(9)]
    async with open_view(redis_url, limits=ViewLimits(list_chunk_max=2, list_steps_max=3)) as view:
        ownership = await RedisHarness(view, fresh_redis).own()
        header = make_header(field_count=10)
        await view.apply(ownership, make_batch(0, 1, change(header, approvals=tuple(map(new, records)))))

        page = await view.approvals(SHARD, "acme", ApprovalQuery(limit=6))
        with pytest.raises(ViewUnavailable):
            await view.approvals(SHARD, "acme", ApprovalQuery(limit=7))

        assert [each.record for each in page.value] == records[:6]


async def test_a_decided_approval_leaves_nothing_in_the_lists_of_the_pending_ones(
    redis_url: str, fresh_redis: Redis
) -> None:
    approval = make_approval()
    async with open_view(redis_url) as view:
        before = asking_header(approval, field_count=2)
        ownership = await RedisHarness(view, fresh_redis).own()
        await view.apply(ownership, make_batch(0, 1, change(before, approvals=(new(approval),))))
        pending = await fresh_redis.keys("*:approvals:acme:status:pending*")

        denied = ended(make_approval(status="denied"))
        after = make_header(field_count=2)
        await view.apply(ownership, make_batch(1, 2, change(after, before=before, approvals=(denied,))))

        assert len(pending) == 3
        assert await fresh_redis.keys("*:approvals:acme:status:pending*") == []
        assert len(await fresh_redis.keys("*:approvals:acme:status:denied*")) == 3
