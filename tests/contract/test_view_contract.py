"""The one contract of the view, kept by both adapters."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from kernel.view.limits import ViewLimits
from tests.contract.view_approvals import ApprovalDutySuite, ApprovalSuite
from tests.contract.view_batches import AnswerSuite, BatchSuite, HalfBatchSuite, LargeBatchSuite
from tests.contract.view_buckets import BucketSuite
from tests.contract.view_due import DueWorkSuite
from tests.contract.view_harness import MemoryHarness, RedisHarness, ViewHarness
from tests.contract.view_leases import LeaseSuite, OutageSuite
from tests.contract.view_ownership import OwnershipSuite, WipeSuite
from tests.contract.view_quotas import QuotaSuite
from tests.contract.view_reads import ListSuite, ReadSuite
from tests.contract.view_slots import SlotSuite
from tests.support.views import open_view

# Small, so that few keys already take several steps.
LIMITS = ViewLimits(exchanges_max=4, wipe_keys_max=10, list_chunk_max=5)


class ViewContract(
    OwnershipSuite,
    WipeSuite,
    BatchSuite,
    LargeBatchSuite,
    HalfBatchSuite,
    AnswerSuite,
    DueWorkSuite,
    LeaseSuite,
    OutageSuite,
    ReadSuite,
    ListSuite,
    ApprovalSuite,
    ApprovalDutySuite,
    BucketSuite,
    QuotaSuite,
    SlotSuite,
):
    """All of it. An adapter's test provides the fixture `harness`."""


class TestMemoryView(ViewContract):
    @pytest.fixture
    def harness(self) -> ViewHarness:
        return MemoryHarness()


class TestRedisView(ViewContract):
    @pytest_asyncio.fixture
    async def harness(self, redis_url: str, fresh_redis: Redis) -> AsyncIterator[ViewHarness]:
        async with open_view(redis_url, limits=LIMITS) as view:
            yield RedisHarness(view, fresh_redis)
