"""The follower against a broker that restarts, forgets consumers, falls silent or sends too fast."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest
import pytest_asyncio
from msgspec.structs import replace
from nats.aio.client import Client
from nats.js import JetStreamContext

from kernel.embedded import EmbeddedServer
from kernel.log.jetstream import JetStreamLog
from kernel.log.limits import LogLimits
from kernel.ports import Follower, LogMessage
from tests.contract.log_following import MANY, append_many, receive
from tests.contract.log_harness import LIMITS, SECONDS, SHARD, SHARDS, append, outgoing
from tests.integration.jetstream_proxy import lossy_proxy
from tests.support.wait import wait_until_async

STREAM = f"STEPWELL_{SHARD}"
RESUMED_SECONDS_MAX = 3.0
KIB = 1024
MIB = 1024 * KIB


@pytest_asyncio.fixture
async def operator(private_nats: EmbeddedServer) -> AsyncIterator[Client]:
    connection = await nats.connect(private_nats.url, allow_reconnect=False)
    yield connection
    await connection.close()


@pytest.fixture
def streams(operator: Client) -> JetStreamContext:
    return operator.jetstream()


@pytest_asyncio.fixture
async def log(private_nats: EmbeddedServer) -> AsyncIterator[JetStreamLog]:
    async with opened(private_nats, LIMITS) as log:
        yield log


@asynccontextmanager
async def opened(server: EmbeddedServer, limits: LogLimits) -> AsyncGenerator[JetStreamLog]:
    log = await JetStreamLog.connect(server.url, shards=SHARDS, name="follower", limits=limits)
    try:
        await log.ensure_streams()
        yield log
    finally:
        await log.close()


async def the_consumer(streams: JetStreamContext) -> tuple[str, str]:
    """Name and deliver subject of the stream's only consumer."""

    async def found() -> tuple[str, str] | None:
        consumers = await streams.consumers_info(STREAM)
        if len(consumers) != 1 or consumers[0].config is None:
            return None
        return consumers[0].name, consumers[0].config.deliver_subject or ""

    consumer = await wait_until_async(found, "the stream to have one consumer")
    assert consumer is not None
    return consumer


@pytest.mark.parametrize("way", ["killed", "stopped"])
async def test_ten_restarts_under_load_lose_and_repeat_nothing(
    private_nats: EmbeddedServer, log: JetStreamLog, way: str
) -> None:
    acknowledged: dict[int, str] = {}
    resumed_seconds: list[float] = []
    is_over = asyncio.Event()

    async def publish() -> None:
        while not is_over.is_set():
            entry = outgoing()
            said = await log.append(entry, timeout_seconds=3 * SECONDS)
            acknowledged[said.seq] = entry.entry_id

    received: list[LogMessage] = []
    async with log.follow(SHARD, after_seq=0) as follower:
        publishers = [asyncio.create_task(publish()) for _ in range(8)]
        received += await follower.next(messages_max=1, bytes_max=MANY, wait_seconds=SECONDS)
        for _ in range(10):
            if way == "killed":
                await private_nats.kill()
                await private_nats.start()
            else:
                await private_nats.restart()
            began_at = time.monotonic()
            entry = outgoing()
            await log.append(entry, timeout_seconds=SECONDS)
            while not received or received[-1].entry_id != entry.entry_id:
                received += await follower.next(messages_max=1, bytes_max=MANY, wait_seconds=SECONDS)
                assert time.monotonic() - began_at < 3 * SECONDS
            acknowledged[received[-1].seq] = entry.entry_id
            resumed_seconds.append(time.monotonic() - began_at)
        is_over.set()
        await asyncio.gather(*publishers)
        head = (await log.state(SHARD)).last_seq
        received += await receive(follower, head - len(received))

        assert follower.restarts >= 10

    # A stopped server may have stored what it did not live to acknowledge, so there may be more than was acknowledged.
    assert [message.seq for message in received] == list(range(1, head + 1))
    by_seq = {message.seq: message.entry_id for message in received}
    assert len(set(by_seq.values())) == len(by_seq)
    assert {seq: by_seq[seq] for seq in acknowledged} == acknowledged
    assert max(resumed_seconds) < RESUMED_SECONDS_MAX, resumed_seconds


async def test_an_entry_for_an_idle_shard_never_waits_out_a_wait(log: JetStreamLog) -> None:
    waits: list[float] = []
    async with log.follow(SHARD, after_seq=0) as follower:
        for _ in range(200):
            assert await follower.next(messages_max=1, bytes_max=MANY, wait_seconds=0.001) == []
            began_at = time.monotonic()
            await append(log)
            await receive(follower, 1)
            waits.append(time.monotonic() - began_at)

    assert max(waits) < 1.0, sorted(waits)[-5:]


async def test_a_consumer_that_the_broker_forgot_is_made_anew(log: JetStreamLog, streams: JetStreamContext) -> None:
    await append_many(log, [b"0"])
    async with log.follow(SHARD, after_seq=0) as follower:
        await receive(follower, 1)
        name, _ = await the_consumer(streams)
        await streams.delete_consumer(STREAM, name)

        began_at = time.monotonic()
        await append_many(log, [b"1", b"2"])

        assert [message.payload for message in await receive(follower, 2)] == [b"1", b"2"]
        assert follower.restarts == 1
        assert time.monotonic() - began_at < RESUMED_SECONDS_MAX


async def test_a_consumer_that_lives_and_says_nothing_is_made_anew(
    log: JetStreamLog, streams: JetStreamContext, operator: Client
) -> None:
    async with log.follow(SHARD, after_seq=0) as follower:
        name, _ = await the_consumer(streams)
        paused = await operator.request(
            f"$JS.API.CONSUMER.PAUSE.{STREAM}.{name}", b'{"pause_until":"2100-01-01T00:00:00Z"}'
        )
        assert b'"paused":true' in paused.data

        began_at = time.monotonic()
        await append_many(log, [b"0", b"1"])

        assert [message.payload for message in await receive(follower, 2)] == [b"0", b"1"]
        assert follower.restarts == 1
        assert time.monotonic() - began_at < RESUMED_SECONDS_MAX


async def test_a_lost_delivery_is_never_passed_over(private_nats: EmbeddedServer, log: JetStreamLog) -> None:
    async with lossy_proxy(private_nats) as proxy:
        behind = await JetStreamLog.connect(proxy.url, shards=SHARDS, name="behind", limits=LIMITS)
        try:
            async with behind.follow(SHARD, after_seq=0) as follower:
                await append_many(log, [b"0", b"1"])
                await receive(follower, 2)

                proxy.lose_next(f"stepwell.{SHARD}.", count=2)
                await append_many(log, [b"2", b"3", b"4", b"5"])

                received = await receive(follower, 4)
                assert [(message.seq, message.payload) for message in received] == [
                    (3, b"2"),
                    (4, b"3"),
                    (5, b"4"),
                    (6, b"5"),
                ]
                assert follower.restarts == 1
        finally:
            await behind.close()


async def test_the_last_delivery_of_all_is_not_lost_either(private_nats: EmbeddedServer, log: JetStreamLog) -> None:
    async with lossy_proxy(private_nats) as proxy:
        behind = await JetStreamLog.connect(proxy.url, shards=SHARDS, name="behind", limits=LIMITS)
        try:
            async with behind.follow(SHARD, after_seq=0) as follower:
                await append_many(log, [b"0"])
                await receive(follower, 1)
                began_at = time.monotonic()

                proxy.lose_next(f"stepwell.{SHARD}.")
                await append_many(log, [b"1"])

                assert [message.payload for message in await receive(follower, 1)] == [b"1"]
                assert time.monotonic() - began_at < RESUMED_SECONDS_MAX
        finally:
            await behind.close()


async def test_a_heartbeat_that_counts_more_than_came_makes_the_follower_start_over(
    log: JetStreamLog, streams: JetStreamContext, private_nats: EmbeddedServer
) -> None:
    await append_many(log, [b"0"])
    async with log.follow(SHARD, after_seq=0) as follower:
        await receive(follower, 1)
        _, subject = await the_consumer(streams)

        await publish_raw(private_nats, subject, b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 4\r\n\r\n")
        await wait_until_async(lambda: follower.restarts == 1, "the follower to start over")
        await append_many(log, [b"1"])

        assert [message.payload for message in await receive(follower, 1)] == [b"1"]


async def test_what_is_no_delivery_is_ignored(log: JetStreamLog, streams: JetStreamContext, operator: Client) -> None:
    async with log.follow(SHARD, after_seq=0) as follower:
        _, subject = await the_consumer(streams)
        await operator.publish(subject, b"stray")
        await operator.flush()
        await append_many(log, [b"0"])

        assert [message.payload for message in await receive(follower, 1)] == [b"0"]
        assert follower.restarts == 0


async def test_a_lost_tail_does_not_keep_the_follower_starting_over(
    log: JetStreamLog, streams: JetStreamContext
) -> None:
    await append_many(log, [b"0", b"1", b"2"])
    await streams.delete_msg(STREAM, 3)
    async with log.follow(SHARD, after_seq=0) as follower:
        await receive(follower, 2)
        # The head is beyond the last message, for longer than silence is borne.
        assert await follower.next(messages_max=1, bytes_max=MANY, wait_seconds=1.5) == []
        restarts = follower.restarts
        assert restarts <= 1
        assert await follower.next(messages_max=1, bytes_max=MANY, wait_seconds=1.5) == []
        assert follower.restarts == restarts

        await append_many(log, [b"3"])
        assert [message.seq for message in await receive(follower, 1)] == [4]


async def test_a_stream_made_anew_is_told_by_a_restart(log: JetStreamLog, streams: JetStreamContext) -> None:
    await append_many(log, [b"0", b"1"])
    before = await log.state(SHARD)
    async with log.follow(SHARD, after_seq=0) as follower:
        await receive(follower, 2)

        await streams.delete_stream(STREAM)
        await log.ensure_streams()

        await wait_until_async(lambda: follower.restarts >= 1, "the follower to start over")
        assert (await log.state(SHARD)).created_at != before.created_at


async def test_a_slow_reader_holds_no_more_than_its_bound(
    private_nats: EmbeddedServer, streams: JetStreamContext
) -> None:
    limits = replace(LIMITS, follow_bytes_max=64 * KIB)
    async with opened(private_nats, limits) as log:
        payloads = [bytes(4 * KIB - 1) + bytes([number]) for number in range(100)]
        await append_many(log, payloads)
        async with log.follow(SHARD, after_seq=0) as follower:
            await wait_until_async(lambda: no_consumer(streams), "the follower to stop its consumer")
            await append_many(log, [b"while it waits"] * 50)
            assert follower.restarts == 0
            held = await take_what_is_there(follower)
            assert 64 * KIB <= sum(len(message.payload) for message in held) < 128 * KIB

            rest = await receive(follower, len(payloads) + 50 - len(held))

            assert [message.payload for message in (held + rest)[: len(payloads)]] == payloads
            assert follower.restarts >= 2


async def test_flow_control_lets_a_large_stream_through_whole(log: JetStreamLog) -> None:
    size, count = 512 * KIB, 80
    for number in range(count):
        await append(log, outgoing(bytes([number]) * size))

    async with log.follow(SHARD, after_seq=0) as follower:
        received: list[LogMessage] = []
        while len(received) < count:
            # One at a time, so that the broker has to wait for the reader.
            received += await follower.next(messages_max=1, bytes_max=1, wait_seconds=SECONDS)

        # Held back by flow control, not by giving up and starting over.
        assert follower.restarts <= 1
    assert [(message.seq, message.payload[0], len(message.payload)) for message in received] == [
        (number + 1, number, size) for number in range(count)
    ]


async def test_a_broker_held_back_by_a_slow_reader_goes_on_with_the_reader(
    private_nats: EmbeddedServer, streams: JetStreamContext
) -> None:
    size, count = 512 * KIB, 60
    # Heartbeats offer the same chance to go on, so they are kept out of the way.
    async with opened(private_nats, replace(LIMITS, follow_bytes_max=12 * MIB, heartbeat_seconds=30)) as log:
        for _ in range(count):
            await append(log, outgoing(bytes(size)))
        async with log.follow(SHARD, after_seq=0) as follower:
            # It has stopped when it delivers no more for a while.
            looks: list[int] = []
            await wait_until_async(lambda: stands_still(streams, looks), "the broker to wait for the reader")
            assert 0 < looks[-1] < count
            began_at = time.monotonic()
            await receive(follower, count, messages_max=1)

            assert time.monotonic() - began_at < RESUMED_SECONDS_MAX
            assert follower.restarts == 0


async def stands_still(streams: JetStreamContext, looks: list[int]) -> bool:
    consumers = await streams.consumers_info(STREAM)
    looks += [consumer.delivered.consumer_seq for consumer in consumers if consumer.delivered is not None]
    return len(looks) > 10 and looks[-10] == looks[-1] > 0


async def test_a_follower_leaves_no_consumer_behind(log: JetStreamLog, streams: JetStreamContext) -> None:
    async with log.follow(SHARD, after_seq=0):
        await the_consumer(streams)

    # Sooner than the broker drops it by itself.
    deadline_seconds = LIMITS.inactive_seconds / 2
    await wait_until_async(lambda: no_consumer(streams), "the consumer to be gone", deadline_seconds=deadline_seconds)


async def no_consumer(streams: JetStreamContext) -> bool:
    return await streams.consumers_info(STREAM) == []


async def take_what_is_there(follower: Follower) -> list[LogMessage]:
    """One batch, so that the follower cannot fetch more in between."""
    return await follower.next(messages_max=MANY, bytes_max=MANY, wait_seconds=SECONDS)


async def publish_raw(server: EmbeddedServer, subject: str, headers: bytes) -> None:
    """Publish headers that no client library would write."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        await reader.readline()
        size = len(headers)
        writer.write(b'CONNECT {"headers":true,"verbose":false}\r\n')
        writer.write(f"HPUB {subject} {size} {size}\r\n".encode() + headers + b"\r\nPING\r\n")
        assert await reader.readuntil(b"PONG\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
