"""Guarantees that only real processes and real servers can show."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from kernel.domain.identity import shard_of
from kernel.log.jetstream import JetStreamLog
from schemas.entries import StepSubmitted, decode_entry
from tests.conformance.harness.agent import Lease
from tests.conformance.harness.kernel import Kernel, connected
from tests.support.stack import Stack
from tests.support.view_dump import view_dump
from tests.support.wait import wait_until_async

SHARDS = 8


@pytest.fixture(scope="module")
def apart() -> Iterator[Stack]:
    with Stack.start(processes="apart", lease_seconds=10) as stack:
        yield stack


@pytest.fixture
async def kernel(apart: Stack) -> AsyncIterator[Kernel]:
    async with connected(apart.url, apart.api_key) as kernel:
        yield kernel


@pytest.fixture
async def log(apart: Stack) -> AsyncIterator[JetStreamLog]:
    log = await JetStreamLog.connect(apart.nats.url, shards=SHARDS, name="test")
    try:
        yield log
    finally:
        await log.close()


async def newest_entry(log: JetStreamLog, execution_id: str) -> object:
    shard = shard_of(execution_id, SHARDS)
    message = await log.get(shard, (await log.state(shard)).last_seq)
    assert message is not None
    return decode_entry(message.payload)


async def test_a_proceed_is_on_record_when_it_arrives(kernel: Kernel, log: JetStreamLog):
    lease = await (await kernel.agent()).acknowledged()
    step = await lease.proceed("pay", {"amount": 1})
    entry = await newest_entry(log, lease.execution_id)
    assert isinstance(entry, StepSubmitted)
    assert entry.target == "pay"
    events = await kernel.events(lease.execution_id)
    assert events[-1]["type"] == "step.executing"
    assert events[-1]["payload"]["step_id"] == step


async def test_no_decision_leaves_before_the_fold(apart: Stack, kernel: Kernel, log: JetStreamLog):
    lease = await (await kernel.agent()).acknowledged()
    apart.process("projector").pause()
    try:
        waiting = asyncio.create_task(lease.submit("held", 1))

        async def is_in_the_log() -> bool:
            entry = await newest_entry(log, lease.execution_id)
            return isinstance(entry, StepSubmitted) and entry.target == "held"

        await wait_until_async(is_in_the_log, "the submission to be in the log")
        assert (await kernel.get("/v0/health")).status_code == 200
        assert not waiting.done()
    finally:
        apart.process("projector").resume()
    assert (await waiting).json()["decision"] == "proceed"


async def test_no_decision_leaves_before_the_log_has_it(apart: Stack, kernel: Kernel, log: JetStreamLog):
    lease = await (await kernel.agent()).acknowledged()
    shard = shard_of(lease.execution_id, SHARDS)
    before = (await log.state(shard)).last_seq
    apart.nats.pause()
    try:
        waiting = asyncio.create_task(lease.submit("held", 1))
        for _ in range(20):
            assert (await kernel.get("/v0/health")).status_code == 200
        assert not waiting.done()
    finally:
        apart.nats.resume()
    assert (await waiting).json()["decision"] == "proceed"
    entries = [await log.get(shard, seq) for seq in range(before + 1, (await log.state(shard)).last_seq + 1)]
    held = [each for each in entries if each is not None and each.execution_id == lease.execution_id]
    assert len(held) == 1


async def test_a_dropped_view_comes_back_byte_for_byte_and_no_step_runs_twice(apart: Stack, kernel: Kernel):
    agent = await kernel.agent()
    leases = [await agent.acknowledged({"n": number}) for number in range(6)]
    await use_in_every_way(kernel, leases)
    traces = [await kernel.trace(lease.execution_id) for lease in leases]
    before = await settled_dump(apart)

    with redis.Redis.from_url(apart.valkey.url) as client:
        client.flushall()

    assert [await kernel.trace(lease.execution_id) for lease in leases] == traces
    assert await settled_dump(apart) == before
    again = await (await leases[2].expired()).submit("tool", 1)
    assert again.json()["decision"] == "replay"


async def use_in_every_way(kernel: Kernel, leases: list[Lease]) -> None:
    completed, cancelled, done, open_, failed, _ = leases
    await completed.done("tool", {"big": "x" * 20_000}, result={"big": "y" * 20_000})
    await completed.complete_execution("out")
    await cancelled.proceed("tool", 1)
    await kernel.cancel(cancelled.execution_id)
    await done.done("tool", 1, result={"v": 1.0})
    await open_.proceed("tool", 1)
    await open_.proceed("tool", 1, headers={"Idempotency-Key": "k"})
    await failed.fail_execution("broken")


async def settled_dump(stack: Stack) -> dict[str, object]:
    """Return the view once every shard has one and it stands still: nothing claimed, nothing on its way."""
    last: dict[str, object] = {}

    async def stands_still() -> bool:
        nonlocal last
        dump = await asyncio.to_thread(view_dump, stack.valkey.url)
        is_whole = all(f"{{s{shard}}}:watermark" in dump for shard in range(SHARDS))
        is_same = is_whole and dump == last
        last = dump
        return is_same

    await wait_until_async(stands_still, "the view to stand still", deadline_seconds=20)
    return last
