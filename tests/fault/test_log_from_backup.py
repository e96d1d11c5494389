"""A log that is an older backup of itself: the shard stops and says so, the others go on."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import nats
import pytest
import redis
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from kernel.domain.identity import shard_of
from kernel.log.naming import MARKS_STREAM, mark_subject, stream_name
from schemas.marks import decode_mark
from tests.conformance.harness.agent import Lease
from tests.conformance.harness.kernel import Kernel
from tests.fault.ruins import SETTINGS, SHARDS, assert_refused, blocks, lease_in, restarted, says
from tests.support.stack import Stack
from tests.support.wait import wait_until_async


@pytest.fixture
def stack() -> Iterator[Stack]:
    """One of its own for each test, which ruins it."""
    with Stack.start(settings=SETTINGS) as running:
        yield running


async def test_a_log_from_an_older_backup_stops_its_shard_and_says_so(stack: Stack, kernel: Kernel) -> None:
    agent = await kernel.agent()
    lost = await agent.acknowledged()
    shard = shard_of(lost.execution_id, SHARDS)
    other = await lease_in(agent, not_in=shard)
    await lost.proceed("before")
    step_of_other = await other.done("pay", result="fine")
    kept = await kernel.trace(other.execution_id)

    stack.kill("nats")
    stream = blocks(stack, shard)[0].parents[1]
    backup = stack.folder / "backup"
    await asyncio.to_thread(shutil.copytree, stream, backup)
    await restarted(stack, kernel)
    step_id = await lost.done("pay", result="paid")
    stack.kill("nats")
    shutil.rmtree(stream)
    backup.rename(stream)
    await restarted(stack, kernel)

    await says(stack, "was it restored from a backup?")
    assert_refused(await lost.submit("pay"), 503, 504)
    assert_refused(await lost.complete(step_id, "paid again"), 503, 504)
    assert await kernel.trace(other.execution_id) == kept
    assert (await other.decide("pay"))["step_id"] != step_of_other


async def test_a_log_from_an_older_backup_stops_its_shard_though_the_view_is_lost_with_it(
    stack: Stack, kernel: Kernel
) -> None:
    """And the shard goes on with what the backup has when the operator says so."""
    agent = await kernel.agent()
    lease = await agent.acknowledged()
    shard = shard_of(lease.execution_id, SHARDS)
    other = await lease_in(agent, not_in=shard)
    before = await lease.done("before", result="kept")
    recorded = await other.done("pay", result="fine")

    stack.kill("nats")
    stream = blocks(stack, shard)[0].parents[1]
    backup = stack.folder / "backup"
    await asyncio.to_thread(shutil.copytree, stream, backup)
    await restarted(stack, kernel)
    backup_seq = await last_seq(stack, shard)
    await lease.done("pay", result="paid")
    # Whoever takes the shard over records at once how far it is.
    await asyncio.to_thread(stack.restart, "server")
    await wait_until_async(
        lambda: is_marked_beyond(stack, shard, backup_seq), "the mark to name an entry that the backup lacks"
    )
    stack.kill("nats")
    shutil.rmtree(stream)
    backup.rename(stream)
    with redis.Redis.from_url(stack.valkey.url) as client:
        client.flushall()
    await asyncio.to_thread(stack.restart, "nats")

    await says(stack, f"--subject stepwell.marks.{shard}")
    assert_refused(await lease.submit("pay"), 503, 504)
    await wait_until_async(lambda: is_fine(kernel, other, recorded), "the other shard to be rebuilt")

    async with operating(stack) as operator:
        await operator.purge_stream(MARKS_STREAM, subject=mark_subject(shard))
    with redis.Redis.from_url(stack.valkey.url) as client:
        client.flushall()

    async def is_back() -> bool:
        response = await kernel.get(f"/v0/executions/{lease.execution_id}/steps/{before}")
        return response.status_code == 200 and response.json()["result"] == "kept"

    await wait_until_async(is_back, "what the backup has", deadline_seconds=30)


async def is_fine(kernel: Kernel, lease: Lease, step_id: str) -> bool:
    response = await kernel.get(f"/v0/executions/{lease.execution_id}/steps/{step_id}")
    return response.status_code == 200 and response.json()["result"] == "fine"


@asynccontextmanager
async def operating(stack: Stack) -> AsyncGenerator[JetStreamContext]:
    connection = await nats.connect(stack.nats.url, allow_reconnect=False)
    try:
        yield connection.jetstream()
    finally:
        await connection.close()


async def last_seq(stack: Stack, shard: int) -> int:
    async with operating(stack) as operator:
        return (await operator.stream_info(stream_name(shard))).state.last_seq


async def is_marked_beyond(stack: Stack, shard: int, seq: int) -> bool:
    async with operating(stack) as operator:
        try:
            raw = (await operator.get_last_msg(MARKS_STREAM, mark_subject(shard))).data
        except NotFoundError:
            return False
    return raw is not None and decode_mark(raw).seq > seq
