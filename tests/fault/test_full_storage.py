"""A log without room and a view without room: refused before anything proceeds, and well again by itself."""

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import nats
import pytest
import redis

from kernel.domain.identity import shard_of
from kernel.log.naming import stream_name
from kernel.view.keys import execution_key
from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted, details, envelope
from tests.conformance.harness.kernel import Kernel, connected
from tests.fault.faults import limit_the_log
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

SHARDS = 8
BUDGET_SECONDS = 3.0
SIZES = (40, 4000, 200, 9000, 1)
FILLING_MAX = 60
ROOM_BYTES = 30_000
LITTLE_BYTES = 1024 * 1024


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    settings = {"STEPWELL_NO_POLICY": "allow", "STEPWELL_REQUEST_BUDGET": f"{BUDGET_SECONDS}s"}
    with Stack.start(settings=settings, lease_seconds=60) as running:
        yield running


@pytest.fixture
async def kernel(stack: Stack) -> AsyncIterator[Kernel]:
    async with connected(stack.url, stack.api_key) as access:
        yield access


async def two_shards(agent: Agent) -> tuple[Lease, Lease]:
    """Two leases whose executions are in different shards."""
    one = await agent.acknowledged()
    other = await agent.acknowledged()
    while shard_of(other.execution_id, SHARDS) == shard_of(one.execution_id, SHARDS):
        other = await agent.acknowledged()
    return one, other


async def bounds(stack: Stack, shard: int) -> tuple[int, int, int]:
    """First sequence, last sequence and bytes of a shard's stream."""
    connection = await nats.connect(stack.nats.url, allow_reconnect=False)
    try:
        state = (await connection.jetstream().stream_info(stream_name(shard))).state
        return state.first_seq, state.last_seq, state.bytes
    finally:
        await connection.close()


async def test_a_full_log_refuses_before_anything_proceeds_and_keeps_what_it_has(stack: Stack, kernel: Kernel) -> None:
    """Case J4, by the limit of a stream; a disk that is full is refused with the same words by the broker."""
    lease, other = await two_shards(await kernel.agent())
    shard = shard_of(lease.execution_id, SHARDS)
    first_seq, _, held_bytes = await bounds(stack, shard)
    await limit_the_log(stack.nats.url, bytes_max=held_bytes + ROOM_BYTES, shards=(shard,))

    proceeding: list[str] = []
    refused = None
    for number in range(FILLING_MAX):
        response = await lease.submit("fill", {"n": number, "text": "x" * SIZES[number % len(SIZES)]}, key=f"k{number}")
        if response.status_code == 503:
            refused = number
            break
        proceeding.append(accepted(response)["step_id"])
    assert refused is not None, "the log never was full"
    big = "y" * ROOM_BYTES
    answers = await asyncio.gather(*(lease.submit("fill", {"big": big, "n": n}, key=f"big{n}") for n in range(5)))

    for response in answers:
        assert details(response, 503, "unavailable") == {"reason": "log_full"}
    assert await other.proceed("elsewhere")
    steps = await kernel.steps(lease.execution_id)
    assert [step["step_id"] for step in steps] == proceeding
    assert (await bounds(stack, shard))[0] == first_seq

    await limit_the_log(stack.nats.url, bytes_max=-1, shards=(shard,))
    again = await lease.submit("fill", {"big": big, "n": 0}, key="big0")
    assert accepted(again)["decision"] == "proceed"
    assert "idempotent-replayed" not in again.headers
    assert (await bounds(stack, shard))[0] == first_seq
    assert await lease.proceed("after")


async def test_a_disk_without_room_lets_nothing_proceed_and_after_a_restart_of_the_broker_all_goes_on(
    stack: Stack, kernel: Kernel
) -> None:
    """Case J4, by a limit on the size of the broker's files. A stream that failed to write stays so until a restart."""
    lease = await (await kernel.agent()).acknowledged()
    kept = await lease.done("kept", result="kept")
    first_seq, _, _ = await bounds(stack, shard_of(lease.execution_id, SHARDS))
    # The broker writes no file beyond what it has now, as on a disk that is full.
    resource.prlimit(stack.nats.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    answers = await asyncio.gather(*(lease.submit("fill", n, key=f"full{n}") for n in range(4)))
    steps = await kernel.steps(lease.execution_id)
    trouble = await wait_until_async(
        lambda: told(kernel), "the door to say what to do", deadline_seconds=15, retry_on=httpx.TransportError
    )
    begun_at = time.monotonic()
    refused = await lease.submit("fill", 0, key="refused")
    refused_seconds = time.monotonic() - begun_at
    resource.prlimit(stack.nats.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await asyncio.to_thread(stack.restart, "nats")

    assert "restart it" in trouble
    assert envelope(refused, 503)["code"] == "unavailable"
    assert refused_seconds < BUDGET_SECONDS / 2
    for response in answers:
        assert envelope(response, 504)["code"] == "outcome_unknown"
    assert [step["step_id"] for step in steps] == [kept]
    again = [await decided(lease, "fill", n, key=f"full{n}") for n in range(4)]
    assert [step["step_id"] for step in await kernel.steps(lease.execution_id)] == [kept, *again]
    assert (await bounds(stack, shard_of(lease.execution_id, SHARDS)))[0] == first_seq


async def told(kernel: Kernel) -> str:
    """What the door says of its readiness beyond that it is not ready."""
    return (await kernel.get("/v0/ready")).json().get("reason", "")


async def test_a_view_without_room_is_unknown_and_not_undone_and_what_waits_comes_when_there_is_room(
    stack: Stack, kernel: Kernel
) -> None:
    """Case R5."""
    agent = await kernel.agent()
    leases = [await agent.acknowledged() for _ in range(8)]
    done = await leases[0].done("old", result="kept")
    with redis.Redis.from_url(stack.valkey.url) as client:
        client.config_set("maxmemory", LITTLE_BYTES)
        try:
            answers = await asyncio.gather(*(lease.submit("tool", 1, key="k") for lease in leases))
            # What is there can be read; what is new is in the log and not folded.
            assert (await kernel.step(leases[0].execution_id, done))["result"] == "kept"
        finally:
            client.config_set("maxmemory", 0)

    for response in answers:
        assert envelope(response)["code"] in {"outcome_unknown", "unavailable"}

    for lease in leases:
        assert await decided(lease, "tool", 1, key="k")
        steps = await kernel.steps(lease.execution_id)
        assert [step["occurrence"] for step in steps if step["target"] == "tool"] == [0]


async def test_a_record_that_is_gone_from_the_view_is_never_read_as_a_step_that_never_was(
    stack: Stack, kernel: Kernel
) -> None:
    """Case R5: what an eviction would do, were a server with evictions not refused at the start."""
    lease = await (await kernel.agent()).acknowledged()
    shard = shard_of(lease.execution_id, SHARDS)
    first = await lease.done("pay", {"amount": 1}, result="paid")
    with redis.Redis.from_url(stack.valkey.url) as client:
        assert client.delete(execution_key(shard, "default", lease.execution_id)) == 1

    # The owner still knows the execution: the count goes on from where it was.
    second = await lease.proceed("pay", {"amount": 1})
    await asyncio.to_thread(stack.restart, "server")
    # The next owner knows nothing, finds the record too short, and builds the view anew before it decides.
    third = await decided(lease, "pay", {"amount": 1}, key="third")

    steps = await kernel.steps(lease.execution_id)
    assert [(step["step_id"], step["occurrence"]) for step in steps] == [(first, 0), (second, 1), (third, 2)]
    assert steps[0]["result"] == "paid"


async def decided(lease: Lease, target: str, args: object, *, key: str) -> str:
    """The step that a submission is given, repeated until it is decided."""

    async def decision() -> str:
        response = await lease.submit(target, args, key=key)
        return accepted(response)["step_id"] if response.status_code not in {503, 504} else ""

    return await wait_until_async(decision, "a decision", deadline_seconds=30, retry_on=httpx.TransportError)
