"""The contract of the log for followers: everything once, in order, in bounded batches, across outages."""

import asyncio
import random
import time

import pytest

from kernel.ports import Acknowledged, Follower, LogMessage
from tests.contract.log_harness import SHARD, AnyLog, LogHarness, append, append_many, outgoing
from tests.support.wait import loop_turns, wait_until_async

SECONDS = 10.0
MANY = 1_000_000_000
SHORT_SECONDS = 0.05


async def receive(
    follower: Follower, count: int, *, messages_max: int = 256, bytes_max: int = MANY
) -> list[LogMessage]:
    """Return exactly the next `count` messages, and see that nothing follows at once."""
    received: list[LogMessage] = []
    async with asyncio.timeout(SECONDS):
        while len(received) < count:
            received += await follower.next(messages_max=messages_max, bytes_max=bytes_max, wait_seconds=SECONDS)
    assert len(received) == count
    return received


async def nothing_comes(follower: Follower) -> bool:
    return await follower.next(messages_max=1, bytes_max=MANY, wait_seconds=SHORT_SECONDS) == []


class FollowingSuite:
    async def test_what_is_there_and_what_is_appended_come_in_order(self, harness: LogHarness) -> None:
        await append_many(harness.log, [b"0", b"1"])
        async with harness.log.follow(SHARD, after_seq=0) as follower:
            await append_many(harness.log, [b"2", b"3"])

            received = await receive(follower, 4)

            assert [message.payload for message in received] == [b"0", b"1", b"2", b"3"]
            assert [message.seq for message in received] == [1, 2, 3, 4]
            assert follower.restarts == 0

    async def test_a_followed_message_is_the_one_that_a_direct_read_finds(self, harness: LogHarness) -> None:
        for _ in range(20):
            await append(harness.log, outgoing(b"body", reply_to="a1b2c3d4"))

        async with harness.log.follow(SHARD, after_seq=0) as follower:
            received = await receive(follower, 20)

        assert received == [await harness.log.get(SHARD, message.seq) for message in received]

    async def test_following_begins_after_the_given_sequence(self, harness: LogHarness) -> None:
        await append_many(harness.log, [b"0", b"1", b"2"])

        async with harness.log.follow(SHARD, after_seq=2) as follower:
            assert [message.seq for message in await receive(follower, 1)] == [3]

    async def test_following_from_beyond_the_head_waits_for_it(self, harness: LogHarness) -> None:
        await append_many(harness.log, [b"0"])
        async with harness.log.follow(SHARD, after_seq=3) as follower:
            await append_many(harness.log, [b"1", b"2"])
            assert await nothing_comes(follower)

            await append_many(harness.log, [b"3"])

            assert [message.seq for message in await receive(follower, 1)] == [4]

    async def test_a_batch_keeps_to_the_number_asked_for(self, harness: LogHarness) -> None:
        await append_many(harness.log, [b"x"] * 10)
        async with harness.log.follow(SHARD, after_seq=0) as follower:
            await all_arrived(harness.log, follower)

            sizes = [len(await follower.next(messages_max=4, bytes_max=MANY, wait_seconds=SECONDS)) for _ in range(3)]

            assert sizes == [4, 4, 2]

    async def test_a_batch_keeps_to_the_bytes_asked_for_and_one_message_may_exceed_them(
        self, harness: LogHarness
    ) -> None:
        await append_many(harness.log, [b"x" * size for size in (40, 60, 1, 500, 30, 30, 30)])
        async with harness.log.follow(SHARD, after_seq=0) as follower:
            await all_arrived(harness.log, follower)

            sizes = []
            while sum(len(batch) for batch in sizes) < 7:
                batch = await follower.next(messages_max=100, bytes_max=100, wait_seconds=SECONDS)
                sizes.append([len(message.payload) for message in batch])

            assert sizes == [[40, 60], [1], [500], [30, 30, 30]]

    async def test_waiting_ends_with_nothing_when_nothing_comes(self, harness: LogHarness) -> None:
        async with harness.log.follow(SHARD, after_seq=0) as follower:
            began_at = time.monotonic()
            assert await follower.next(messages_max=1, bytes_max=MANY, wait_seconds=SHORT_SECONDS) == []
            assert SHORT_SECONDS * 0.9 <= time.monotonic() - began_at < SECONDS
            assert await follower.next(messages_max=1, bytes_max=MANY, wait_seconds=0) == []

    async def test_waiting_ends_with_the_first_message(self, harness: LogHarness) -> None:
        async with harness.log.follow(SHARD, after_seq=0) as follower:
            waiting = asyncio.create_task(follower.next(messages_max=100, bytes_max=MANY, wait_seconds=SECONDS))
            await loop_turns()
            await append(harness.log, outgoing(b"first"))

            assert [message.payload for message in await waiting] == [b"first"]

    async def test_a_cancelled_wait_takes_nothing(self, harness: LogHarness) -> None:
        async with harness.log.follow(SHARD, after_seq=0) as follower:
            for number in range(20):
                waiting = asyncio.create_task(follower.next(messages_max=1, bytes_max=MANY, wait_seconds=SECONDS))
                await loop_turns(number % 3)
                appending = asyncio.create_task(append(harness.log, outgoing(b"%d" % number)))
                await loop_turns(number % 5)
                waiting.cancel()
                taken, _ = await asyncio.gather(waiting, appending, return_exceptions=True)
                if isinstance(taken, BaseException):
                    taken = await receive(follower, 1)
                assert [message.payload for message in taken] == [b"%d" % number]

    async def test_a_lost_record_shows_as_a_jump_in_the_sequences(self, harness: LogHarness) -> None:
        await append_many(harness.log, [b"0", b"1", b"2"])
        await harness.lose(SHARD, 2)

        async with harness.log.follow(SHARD, after_seq=0) as follower:
            assert [message.seq for message in await receive(follower, 2)] == [1, 3]

    async def test_followers_do_not_disturb_each_other(self, harness: LogHarness) -> None:
        await append_many(harness.log, [b"0", b"1"])
        async with (
            harness.log.follow(SHARD, after_seq=0) as first,
            harness.log.follow(SHARD, after_seq=1) as second,
            harness.log.follow(0, after_seq=0) as other_shard,
        ):
            assert [message.payload for message in await receive(first, 2)] == [b"0", b"1"]
            assert [message.payload for message in await receive(second, 1)] == [b"1"]
            assert await nothing_comes(other_shard)

    async def test_any_bounds_give_the_same_messages(self, harness: LogHarness, seed: int) -> None:
        chance = random.Random(seed)
        payloads = [bytes(chance.randrange(200)) for _ in range(60)]
        await append_many(harness.log, payloads)

        async with harness.log.follow(SHARD, after_seq=0) as follower:
            received: list[LogMessage] = []
            while len(received) < len(payloads):
                messages_max, bytes_max = chance.randint(1, 9), chance.randint(1, 400)
                batch = await follower.next(messages_max=messages_max, bytes_max=bytes_max, wait_seconds=SECONDS)
                assert 1 <= len(batch) <= messages_max
                assert len(batch) == 1 or sum(len(message.payload) for message in batch) <= bytes_max
                received += batch

        assert [message.payload for message in received] == payloads
        assert [message.seq for message in received] == list(range(1, len(payloads) + 1))

    async def test_a_reader_that_fails_ends_its_following(self, harness: LogHarness) -> None:
        with pytest.raises(RuntimeError, match="the reader's own"):
            async with harness.log.follow(SHARD, after_seq=0):
                raise RuntimeError("the reader's own")


class FollowingOutageSuite:
    """Each test has a log, and a broker, of its own."""

    async def test_a_follower_goes_on_where_it_was_and_counts_its_restarts(self, lone_harness: LogHarness) -> None:
        log = lone_harness.log
        await append_many(log, [b"0", b"1"])
        async with log.follow(SHARD, after_seq=0) as follower:
            await receive(follower, 2)
            for number in range(2, 6):
                await lone_harness.go_offline()
                assert await nothing_comes(follower)
                await lone_harness.come_back()
                await append(log, outgoing(b"%d" % number))

                received = await receive(follower, 1)

                assert [message.payload for message in received] == [b"%d" % number]
                assert follower.restarts == number - 1

    async def test_what_was_received_before_an_outage_can_be_read_in_it(self, lone_harness: LogHarness) -> None:
        log = lone_harness.log
        await append_many(log, [b"0", b"1", b"2"])
        async with log.follow(SHARD, after_seq=0) as follower:
            first = await follower.next(messages_max=1, bytes_max=MANY, wait_seconds=SECONDS)
            await all_arrived(log, follower, extra=1)
            await lone_harness.go_offline()

            rest = await receive(follower, 3)

            assert [message.payload for message in first + rest] == [b"0", b"1", b"2", b"more"]

    async def test_everything_acknowledged_across_outages_is_received_once_in_order(
        self, lone_harness: LogHarness
    ) -> None:
        log = lone_harness.log
        acknowledged: dict[int, bytes] = {}

        async def publish(sender: int) -> None:
            for number in range(60):
                payload = b"%d-%d" % (sender, number)
                said = await log.append(outgoing(payload), timeout_seconds=4 * SECONDS)
                assert isinstance(said, Acknowledged)
                acknowledged[said.seq] = payload

        async with log.follow(SHARD, after_seq=0) as follower:
            senders = [asyncio.create_task(publish(sender)) for sender in range(4)]
            for outages in range(1, 4):
                await wait_until_async(lambda aim=outages * 40: len(acknowledged) >= aim, "entries to be acknowledged")
                await lone_harness.go_offline()
                await lone_harness.come_back()
            await asyncio.gather(*senders)
            received = await receive(follower, 240)

        assert [message.seq for message in received] == list(range(1, 241))
        assert {message.seq: message.payload for message in received} == acknowledged


async def all_arrived(log: AnyLog, follower: Follower, *, extra: int = 0) -> None:
    """Return when all that is in the shard lies with the follower: another follower, made later, has seen it too.

    With `extra`, that many entries are appended first, so that there is something to see.
    """
    await append_many(log, [b"more"] * extra)
    last_seq = (await log.state(SHARD)).last_seq
    async with log.follow(SHARD, after_seq=last_seq - 1) as later:
        await receive(later, 1)
    await loop_turns()
