"""A log that is not what it was: a flipped byte, an older backup. The shard stops and says so, the others go on."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import nats
import pytest
import redis
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from kernel.domain.identity import shard_of
from kernel.log.naming import MARKS_STREAM, mark_subject, stream_name
from schemas.marks import decode_mark
from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.kernel import Kernel, connected
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

SHARDS = 8
BUDGET_SECONDS = 3.0
MARK = "the-text-that-is-damaged"


@pytest.fixture
def stack() -> Iterator[Stack]:
    """One of its own for each test, which ruins it. What cannot be answered is refused soon."""
    settings = {"STEPWELL_NO_POLICY": "allow", "STEPWELL_REQUEST_BUDGET": f"{BUDGET_SECONDS}s"}
    with Stack.start(settings=settings) as running:
        yield running


@pytest.fixture
async def kernel(stack: Stack) -> AsyncIterator[Kernel]:
    async with connected(stack.url, stack.api_key) as access:
        yield access


async def lease_in(agent: Agent, *, shard: int | None = None, not_in: int | None = None) -> Lease:
    """A lease of an execution in this shard, or in any other than that one."""
    while True:
        lease = await agent.acknowledged()
        found = shard_of(lease.execution_id, SHARDS)
        if found != not_in and shard in (None, found):
            return lease


def blocks(stack: Stack, shard: int) -> list[Path]:
    folder = stack.folder / "nats" / "jetstream" / "$G" / "streams" / stream_name(shard) / "msgs"
    return sorted(folder.glob("*.blk"))


def flip_a_byte(stack: Stack, shard: int, text: bytes) -> None:
    """Flip one bit in the middle of this text, which is on the disk once."""
    for path in blocks(stack, shard):
        content = bytearray(path.read_bytes())
        place = content.find(text)
        if place >= 0:
            assert content.find(text, place + 1) < 0, "the text is in the log more than once"
            content[place + len(text) // 2] ^= 1
            path.write_bytes(content)
            return
    raise AssertionError("the text is not in the log")


async def restarted(stack: Stack, kernel: Kernel) -> None:
    await asyncio.to_thread(stack.restart, "nats")

    async def is_ready() -> bool:
        return (await kernel.get("/v0/ready")).status_code == 200

    await wait_until_async(is_ready, "the door to be ready", deadline_seconds=30)


async def says(stack: Stack, words: str) -> None:
    await wait_until_async(lambda: words in stack.logs()["server"], f"the log to say {words!r}", deadline_seconds=30)


def assert_refused(response: httpx.Response, *statuses: int) -> None:
    assert response.status_code in statuses, response.text
    assert int(response.headers["retry-after"]) >= 1


class Damaged:
    """A shard with a damaged outcome in its log, and an execution of another one."""

    def __init__(self, harmed: Lease, step_id: str, other: Lease, recorded: str) -> None:
        self.harmed = harmed
        self.step_id = step_id
        self.other = other
        self.recorded = recorded
        self.shard = shard_of(harmed.execution_id, SHARDS)


async def damaged(stack: Stack, kernel: Kernel, *, is_killed: bool) -> Damaged:
    """Flip a byte of an acknowledged outcome while NATS is down, with entries before and behind it."""
    agent = await kernel.agent()
    harmed = await agent.acknowledged()
    shard = shard_of(harmed.execution_id, SHARDS)
    other = await lease_in(agent, not_in=shard)
    step_id = await harmed.done("pay", {"amount": 1}, result=MARK)
    await harmed.proceed("next")
    recorded = await other.done("pay", {"amount": 2}, result="fine")
    if is_killed:
        stack.kill("nats")
    else:
        await stack.nats.stop()
    flip_a_byte(stack, shard, MARK.encode())
    return Damaged(harmed, step_id, other, recorded)


async def assert_others_go_on(kernel: Kernel, found: Damaged) -> None:
    assert (await kernel.step(found.other.execution_id, found.recorded))["result"] == "fine"
    assert await found.other.proceed("pay", {"amount": 3})


async def test_a_byte_flipped_while_the_broker_was_dead_stops_the_shard_that_lost_its_end(
    stack: Stack, kernel: Kernel
) -> None:
    """After a crash the broker reads its last block anew, and cuts it off where a record is damaged."""
    found = await damaged(stack, kernel, is_killed=True)

    await restarted(stack, kernel)

    await says(stack, f"shard {found.shard}: the log ends at")
    assert_refused(await found.harmed.submit("pay", {"amount": 1}), 503, 504)
    assert_refused(await found.harmed.complete(found.step_id, "again"), 503, 504)
    await assert_others_go_on(kernel, found)


async def test_a_byte_flipped_in_a_log_that_was_closed_well_is_a_gap_or_parked_when_it_is_folded_again(
    stack: Stack, kernel: Kernel
) -> None:
    """After an orderly stop the broker trusts its index, and finds the damage when it reads the record."""
    found = await damaged(stack, kernel, is_killed=False)

    await restarted(stack, kernel)
    with redis.Redis.from_url(stack.valkey.url) as client:
        client.flushall()

    await wait_until_async(
        lambda: any(words in stack.logs()["server"] for words in ("are not in the log", "is parked")),
        "the alarm about the damaged entry",
        deadline_seconds=30,
    )
    assert_refused(await found.harmed.submit("pay", {"amount": 1}), 503, 504)
    assert_refused(await kernel.get(f"/v0/executions/{found.harmed.execution_id}/steps/{found.step_id}"), 503)
    await assert_others_go_on(kernel, found)


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
    await lease.done("pay", result="paid")
    await wait_until_async(lambda: is_marked(stack, shard), "the mark to name the newest entry")
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


async def is_marked(stack: Stack, shard: int) -> bool:
    """Whether the shard's mark names the last entry of its log."""
    async with operating(stack) as operator:
        last_seq = (await operator.stream_info(stream_name(shard))).state.last_seq
        try:
            raw = (await operator.get_last_msg(MARKS_STREAM, mark_subject(shard))).data
        except NotFoundError:
            return False
    return raw is not None and decode_mark(raw).seq == last_seq
