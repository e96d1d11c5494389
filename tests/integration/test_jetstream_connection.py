"""The connection and the driver under it: what a dead peer, a full socket, a lost answer and a broker's error do."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from nats.aio.client import Client

from kernel.domain.errors import LogUnavailable, OutcomeUnknown
from kernel.embedded import EmbeddedServer, free_port
from kernel.log.driver import Delivery, Driver, DriverError
from kernel.log.jetstream import JetStreamLog
from kernel.log.limits import LogLimits
from kernel.ports import Acknowledged
from tests.contract.log_following import receive
from tests.contract.log_harness import (
    LIMITS,
    SECONDS,
    SHARD,
    SHARDS,
    TENANT,
    Spoken,
    append,
    outgoing,
    read_all,
)
from tests.integration.jetstream_proxy import lossy_proxy
from tests.support.wait import loop_turns, wait_until_async

MIB = 1024 * 1024
DEAD_PEER = replace(LIMITS, ping_seconds=1, pings_unanswered_max=1, close_seconds=0.5)
DEAD_PEER_FOUND_SECONDS_MAX = 4.0


@asynccontextmanager
async def opened(url: str, limits: LogLimits = LIMITS) -> AsyncGenerator[JetStreamLog]:
    log = await JetStreamLog.connect(url, shards=SHARDS, name="connection", limits=limits)
    try:
        await log.ensure_streams()
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def driver(
    url: str, *, ping_seconds: int = 60, ended: Callable[[], None] = lambda: None
) -> AsyncGenerator[Driver]:
    opened_driver = Driver(ended)
    await opened_driver.open(
        [url], name="driver", try_seconds=SECONDS, ping_seconds=ping_seconds, pings_unanswered_max=1
    )
    try:
        yield opened_driver
    finally:
        await opened_driver.close()


# ---------------------------------------------------------------- what is relied on inside the driver


async def test_the_driver_publishes_without_waiting_and_hears_in_order(nats_url: str) -> None:
    async with driver(nats_url) as one:
        heard: list[Delivery] = []
        one.hear("pinned.>", heard.append, group="")
        tasks = len(asyncio.all_tasks())

        # More than any buffer of the driver's own holds, in one turn of the loop.
        for number in range(5_000):
            one.publish_now(f"pinned.{number}", bytes(1024), reply="pinned.reply", headers={"Name": f"{number}"})

        assert one.is_connected
        assert one.pending_data_size > 5_000 * 1024
        assert len(asyncio.all_tasks()) == tasks
        await wait_until_async(lambda: len(heard) == 5_000, "every message to be heard")
        assert [delivery.subject for delivery in heard] == [f"pinned.{number}" for number in range(5_000)]
        assert heard[7] == Delivery("pinned.7", "pinned.reply", bytes(1024), {"Name": "7"})
        assert one.pending_data_size < 1024


async def test_the_driver_hears_no_more_after_unhearing(nats_url: str) -> None:
    async with driver(nats_url) as one:
        gone: list[Delivery] = []
        heard: list[Delivery] = []
        subscription = one.hear("pinned", gone.append, group="")
        one.hear("pinned", heard.append, group="")
        one.unhear(subscription)

        one.publish_now("pinned", b"", reply="", headers=None)

        await wait_until_async(lambda: heard, "the message to be heard")
        assert gone == []


async def test_an_aborted_driver_ends_and_refuses(nats_url: str) -> None:
    ends: list[None] = []
    async with driver(nats_url, ended=lambda: ends.append(None)) as one:
        one.abort()

        await wait_until_async(lambda: one.is_closed, "the driver to see its end")
        assert ends
        with pytest.raises(DriverError):
            one.publish_now("pinned", b"", reply="", headers=None)


async def test_a_driver_never_reconnects_by_itself(private_nats: EmbeddedServer) -> None:
    async with driver(private_nats.url) as one:
        await private_nats.restart()

        await wait_until_async(lambda: one.is_closed, "the driver to end")


async def test_a_driver_drops_what_waits_the_moment_its_peer_is_given_up(private_nats: EmbeddedServer) -> None:
    is_ended = asyncio.Event()
    async with driver(private_nats.url, ping_seconds=1, ended=is_ended.set) as one:
        private_nats.pause()
        for _ in range(20):
            one.publish_now("pinned", bytes(4 * MIB), reply="", headers=None)

        async with asyncio.timeout(DEAD_PEER_FOUND_SECONDS_MAX):
            await is_ended.wait()
        with pytest.raises(DriverError):
            one.publish_now("pinned", b"", reply="", headers=None)
        await wait_until_async(lambda: unsent_bytes(one) == 0, "the rest to be dropped")
        private_nats.resume()


def unsent_bytes(one: Driver) -> int:
    """What still lies in front of the socket."""
    return one._transport._io_writer.transport.get_write_buffer_size()  # type: ignore[union-attr] - of a TCP transport


# ---------------------------------------------------------------- dead peers and full sockets


async def test_a_peer_that_is_there_but_dead_is_given_up_and_found_again(private_nats: EmbeddedServer) -> None:
    async with opened(private_nats.url, DEAD_PEER) as log:
        spoken = Spoken()
        private_nats.pause()
        # More than the sockets take, so that an orderly close would wait for the peer to read.
        for _ in range(12):
            log.send(outgoing(bytes(5 * MIB)), spoken)
        began_at = time.monotonic()
        await wait_until_async(lambda: not log.is_connected, "the dead peer to be found")
        assert time.monotonic() - began_at < DEAD_PEER_FOUND_SECONDS_MAX
        with pytest.raises(LogUnavailable):
            log.send(outgoing(), spoken)

        private_nats.resume()

        async with log.follow(SHARD, after_seq=0) as follower:
            sent = outgoing(b"after")
            said = await append(log, sent)
            received = await receive(follower, said.seq)
            assert received[-1].entry_id == sent.entry_id
            while late := await follower.next(messages_max=10, bytes_max=64 * MIB, wait_seconds=1.0):
                received += late
        # What the dead peer's socket still held may have been stored; what had not left is gone for good.
        stored = {message.seq for message in received if len(message.payload) == 5 * MIB}
        assert len(stored) < 12
        assert {said.seq for said in spoken.said if isinstance(said, Acknowledged)} <= stored


async def test_closing_does_not_wait_for_a_dead_peer(private_nats: EmbeddedServer) -> None:
    async with opened(private_nats.url, DEAD_PEER) as log:
        private_nats.pause()
        for _ in range(12):
            log.send(outgoing(bytes(5 * MIB)), Spoken())
        await loop_turns()

        began_at = time.monotonic()
        await log.close()

        assert time.monotonic() - began_at < 2 * DEAD_PEER.close_seconds
        private_nats.resume()


async def test_a_cancelled_or_late_connect_always_ends(seed: int) -> None:
    chance = random.Random(seed)
    url = f"nats://127.0.0.1:{free_port()}"
    limits = replace(LIMITS, connect_seconds=0.003, reconnect_seconds_min=0.001, reconnect_seconds_max=0.002)
    for _ in range(200):
        connecting = asyncio.create_task(JetStreamLog.connect(url, name="nobody", limits=limits))
        await asyncio.wait([connecting], timeout=chance.random() * 0.006)
        connecting.cancel()
        async with asyncio.timeout(SECONDS):
            await asyncio.wait([connecting])
        assert connecting.cancelled() or isinstance(connecting.exception(), LogUnavailable)


async def test_closing_in_an_outage_is_quick(private_nats: EmbeddedServer, seed: int) -> None:
    chance = random.Random(seed)
    logs = [await JetStreamLog.connect(private_nats.url, name=f"{number}", limits=LIMITS) for number in range(20)]
    await private_nats.kill()
    for log in logs:
        await asyncio.wait([asyncio.ensure_future(log.connection.lost)], timeout=chance.random() * 0.05)
        began_at = time.monotonic()
        await log.close()
        assert time.monotonic() - began_at < SECONDS / 2


async def test_what_is_sent_just_before_an_orderly_close_arrives(nats_url: str, fresh_nats: Client) -> None:
    async with opened(nats_url) as log:
        for _ in range(8):
            log.send(outgoing(bytes(4 * MIB)), Spoken())
        await log.close()

    async with opened(nats_url) as log:
        await wait_until_async(lambda: is_stored(log, 8), "everything sent to be stored")


async def is_stored(log: JetStreamLog, count: int) -> bool:
    return (await log.state(SHARD)).last_seq == count


async def test_the_send_buffer_is_bounded(private_nats: EmbeddedServer) -> None:
    async with opened(private_nats.url, replace(LIMITS, send_buffer_bytes_max=MIB)) as log:
        spoken = Spoken()
        for _ in range(4):
            log.send(outgoing(bytes(MIB // 4)), spoken)
        with pytest.raises(LogUnavailable, match="buffer"):
            log.send(outgoing(b"refused"), spoken)

        await wait_until_async(lambda: len(spoken.said) == 4, "what was taken to be acknowledged")
        await append(log, outgoing(b"after"))
        assert [len(message.payload) for message in await read_all(log)] == [MIB // 4] * 4 + [len(b"after")]


async def test_unanswered_sends_are_bounded_and_forgotten_in_time(private_nats: EmbeddedServer) -> None:
    limits = replace(LIMITS, unacknowledged_max=3, acknowledgement_seconds_max=0.3)
    async with opened(private_nats.url, limits) as log:
        private_nats.pause()
        forgotten = Spoken()
        for _ in range(3):
            log.send(outgoing(b"forgotten"), forgotten)
        with pytest.raises(LogUnavailable, match="waits"):
            log.send(outgoing(b"refused"), Spoken())

        heard = Spoken()
        await wait_until_async(lambda: is_taken(log, heard), "the unanswered sends to be forgotten")
        private_nats.resume()
        await wait_until_async(lambda: heard.said, "the later send to be acknowledged")

        assert forgotten.said == []
        assert b"refused" not in {message.payload for message in await read_all(log)}


def is_taken(log: JetStreamLog, spoken: Spoken) -> bool:
    try:
        log.send(outgoing(b"later"), spoken)
    except LogUnavailable:
        return False
    return True


# ---------------------------------------------------------------- lost answers and the broker's errors


async def test_a_lost_acknowledgement_is_made_up_by_publishing_again(private_nats: EmbeddedServer) -> None:
    async with lossy_proxy(private_nats) as proxy, opened(proxy.url) as log:
        proxy.lose_next("_INBOX")

        assert await append(log, outgoing(b"once")) == Acknowledged(seq=1, is_duplicate=True)

        assert [message.payload for message in await read_all(log)] == [b"once"]


async def test_without_any_acknowledgement_the_outcome_is_unknown_and_one_entry_is_stored(
    private_nats: EmbeddedServer,
) -> None:
    async with lossy_proxy(private_nats) as proxy, opened(proxy.url) as log:
        proxy.is_lost = lambda subject, _: subject.startswith("_INBOX")
        sent = outgoing(b"once")
        with pytest.raises(OutcomeUnknown):
            await log.append(sent, timeout_seconds=1.0)

        proxy.is_lost = lambda _subject, _reply: False
        assert await append(log, sent) == Acknowledged(seq=1, is_duplicate=True)
        assert (await log.state(SHARD)).last_seq == 1


async def test_a_question_to_a_lost_connection_fails_at_once(private_nats: EmbeddedServer) -> None:
    async with lossy_proxy(private_nats) as proxy, opened(proxy.url) as log:
        proxy.is_lost = lambda subject, _: subject.startswith("_INBOX")
        asking = asyncio.create_task(log.state(SHARD))
        await loop_turns()
        began_at = time.monotonic()
        await private_nats.kill()

        with pytest.raises(LogUnavailable):
            await asking
        assert time.monotonic() - began_at < LIMITS.request_seconds / 2


async def test_an_error_that_ends_the_connection_does_not_end_the_log(nats_url: str, fresh_nats: Client) -> None:
    async with opened(nats_url) as log, log.follow(SHARD, after_seq=0) as follower:
        await append(log, outgoing(b"0"))
        await receive(follower, 1)

        # Headers beyond max_payload, past our own check: the server says so and hangs up, for good by its own protocol.
        lost = log.connection.lost
        log.connection.publish(f"stepwell.{SHARD}.{TENANT}.0", b"", headers={"Large": "x" * 9 * MIB})
        await wait_until_async(lost.done, "the server to hang up")

        await append(log, outgoing(b"1"))
        assert [message.payload for message in await receive(follower, 1)] == [b"1"]


async def test_large_bodies_and_small_steps_of_another_tenant_go_side_by_side(
    nats_url: str, fresh_nats: Client
) -> None:
    sizes = [9 * MIB // 10, MIB, 11 * MIB // 10, 3 * MIB, 5 * MIB, 8 * MIB, 50 * MIB]
    is_over = asyncio.Event()
    small_seconds: list[float] = []

    async with opened(nats_url) as log:

        async def small_steps() -> None:
            while not is_over.is_set():
                began_at = time.monotonic()
                await log.append(outgoing(b"small", shard=0, tenant="small"), timeout_seconds=SECONDS)
                small_seconds.append(time.monotonic() - began_at)

        lost = log.connection.lost
        stepping = asyncio.create_task(small_steps())
        refused: list[int] = []
        for size in sizes * 2:
            try:
                await append(log, outgoing(bytes(size)))
            except LogUnavailable:
                refused.append(size)
        is_over.set()
        await stepping

        assert refused == [8 * MIB, 50 * MIB] * 2
        assert not lost.done()
        assert len(small_seconds) > 10
        assert max(small_seconds) < SECONDS / 5
        assert [len(message.payload) for message in await read_all(log)] == sizes[:5] * 2
