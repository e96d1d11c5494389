"""The contract of the log for entries: appended, read back, and what is said where one is not stored."""

import asyncio
import time

import pytest

from kernel.domain.errors import InvariantBroken, LogUnavailable, OutcomeUnknown
from kernel.domain.framing import are_headers_sound, checksum, is_payload_sound
from kernel.ports import Acknowledged, Outgoing, Rejected
from tests.contract.log_harness import SHARD, SHARDS, TENANT, LogHarness, Spoken, append, outgoing, read_all
from tests.support.wait import loop_turns, wait_until_async

MIB = 1024 * 1024
CLOCK_TOLERANCE_MICROSECONDS = 1_000_000
IMPATIENT_SECONDS = 0.4
"""For an append that is to run out of time."""


class EntrySuite:
    async def test_an_entry_is_read_back_as_it_was_sent(self, harness: LogHarness) -> None:
        sent = outgoing(b'{"text":"h\xc3\xa9llo \\u0000"}\n', reply_to="a1b2c3d4")

        acknowledged = await append(harness.log, sent)

        found = await harness.log.get(SHARD, acknowledged.seq)
        assert found is not None
        assert (found.shard, found.seq, found.tenant) == (SHARD, acknowledged.seq, TENANT)
        assert (found.entry_id, found.execution_id) == (sent.entry_id, sent.execution_id)
        assert (found.reply_to, found.payload) == ("a1b2c3d4", sent.payload)

    async def test_an_entry_that_nobody_waits_for_names_nobody(self, harness: LogHarness) -> None:
        acknowledged = await append(harness.log, outgoing(reply_to=""))

        found = await harness.log.get(SHARD, acknowledged.seq)

        assert found is not None
        assert found.reply_to == ""

    async def test_the_checksum_in_the_log_covers_headers_and_payload(self, harness: LogHarness) -> None:
        sent = outgoing(bytes(range(256)))

        acknowledged = await append(harness.log, sent)

        found = await harness.log.get(SHARD, acknowledged.seq)
        assert found is not None
        assert found.checksum == checksum(
            tenant=sent.tenant, execution_id=sent.execution_id, entry_id=sent.entry_id, payload=sent.payload
        )
        assert are_headers_sound(
            found.checksum, tenant=found.tenant, execution_id=found.execution_id, entry_id=found.entry_id
        )
        assert is_payload_sound(found.checksum, found.payload)

    async def test_an_empty_payload_is_an_entry_too(self, harness: LogHarness) -> None:
        acknowledged = await append(harness.log, outgoing(b""))

        found = await harness.log.get(SHARD, acknowledged.seq)

        assert found is not None
        assert found.payload == b""

    async def test_sequences_of_a_shard_count_from_one_without_holes(self, harness: LogHarness) -> None:
        acknowledged = [await append(harness.log, outgoing(b"%d" % number)) for number in range(5)]

        assert [said.seq for said in acknowledged] == [1, 2, 3, 4, 5]
        assert not any(said.is_duplicate for said in acknowledged)
        assert [message.payload for message in await read_all(harness.log)] == [b"0", b"1", b"2", b"3", b"4"]

    async def test_shards_are_apart(self, harness: LogHarness) -> None:
        for shard in range(SHARDS):
            assert (await append(harness.log, outgoing(b"%d" % shard, shard=shard))).seq == 1

        for shard in range(SHARDS):
            assert [message.payload for message in await read_all(harness.log, shard)] == [b"%d" % shard]

    async def test_a_repeated_id_is_stored_once_and_named_by_its_first_sequence(self, harness: LogHarness) -> None:
        sent = outgoing(b"first")
        first = await append(harness.log, sent)
        await append(harness.log)

        again = await append(harness.log, sent)

        assert again == Acknowledged(seq=first.seq, is_duplicate=True)
        assert len(await read_all(harness.log)) == 2

    async def test_an_id_is_known_in_its_own_shard_only(self, harness: LogHarness) -> None:
        entry_id = outgoing().entry_id
        await append(harness.log, outgoing(shard=0, entry_id=entry_id))

        elsewhere = await append(harness.log, outgoing(shard=2, entry_id=entry_id))

        assert elsewhere == Acknowledged(seq=1, is_duplicate=False)

    async def test_nothing_is_found_where_nothing_is(self, harness: LogHarness) -> None:
        lost = (await append(harness.log)).seq
        await append(harness.log)
        await harness.lose(SHARD, lost)

        assert await harness.log.get(SHARD, lost) is None
        assert await harness.log.get(SHARD, 99) is None

    async def test_an_empty_shard_begins_one_after_its_end(self, harness: LogHarness) -> None:
        empty = await harness.log.state(SHARD)
        await append(harness.log)
        one = await harness.log.state(SHARD)

        assert (empty.first_seq, empty.last_seq) == (1, 0)
        assert (one.first_seq, one.last_seq) == (1, 1)

    async def test_the_state_names_the_incarnation_and_the_brokers_time(self, harness: LogHarness) -> None:
        before = await harness.log.state(SHARD)
        stored = await harness.log.get(SHARD, (await append(harness.log)).seq)
        after = await harness.log.state(SHARD)

        assert stored is not None
        assert before.created_at == after.created_at != ""
        assert before.broker_time <= stored.stored_at <= after.broker_time
        assert abs(after.broker_time - time.time_ns() // 1000) < CLOCK_TOLERANCE_MICROSECONDS

    async def test_of_the_marks_of_a_shard_the_last_one_is_kept(self, harness: LogHarness) -> None:
        assert await harness.log.mark(SHARD) is None
        for payload in (b'{"first":1}', b'{"second":2}'):
            await harness.log.put_mark(SHARD, payload, timeout_seconds=5)

        assert await harness.log.mark(SHARD) == b'{"second":2}'
        assert await harness.log.mark(SHARD + 1) is None
        assert (await harness.log.state(SHARD)).last_seq == 0

    async def test_a_mark_outlives_an_outage(self, lone_harness: LogHarness) -> None:
        await lone_harness.log.put_mark(SHARD, b"{}", timeout_seconds=5)
        await lone_harness.go_offline()
        with pytest.raises(LogUnavailable):
            await lone_harness.log.mark(SHARD)
        with pytest.raises(LogUnavailable):
            await lone_harness.log.put_mark(SHARD, b"[]", timeout_seconds=IMPATIENT_SECONDS)
        await lone_harness.come_back()

        assert await lone_harness.log.mark(SHARD) == b"{}"

    @pytest.mark.parametrize("tenant", ["", "a.b", "*", ">", "a b", "a\r\nb", "é"])
    async def test_an_entry_without_a_proper_tenant_is_not_sent(self, harness: LogHarness, tenant: str) -> None:
        with pytest.raises(InvariantBroken):
            harness.log.send(outgoing(tenant=tenant), Spoken())
        with pytest.raises(InvariantBroken):
            await append(harness.log, outgoing(tenant=tenant))

        assert (await harness.log.state(SHARD)).last_seq == 0

    @pytest.mark.parametrize("entry_id", ["", "a b", "a\r\nNats-Expected-Stream: x", "é"])
    async def test_an_id_that_a_header_would_change_is_not_sent(self, harness: LogHarness, entry_id: str) -> None:
        changed = Outgoing(
            shard=SHARD,
            tenant=TENANT,
            execution_id=outgoing().execution_id,
            entry_id=entry_id,
            payload=b"{}",
            reply_to="",
        )

        with pytest.raises(InvariantBroken):
            harness.log.send(changed, Spoken())

    @pytest.mark.parametrize("shard", [-1, SHARDS])
    async def test_a_shard_that_is_none_is_refused(self, harness: LogHarness, shard: int) -> None:
        with pytest.raises(InvariantBroken):
            harness.log.send(outgoing(shard=shard), Spoken())
        with pytest.raises(InvariantBroken):
            await harness.log.state(shard)
        with pytest.raises(InvariantBroken):
            await harness.log.get(shard, 1)
        with pytest.raises(InvariantBroken):
            async with harness.log.follow(shard, after_seq=0):
                pass


class SendSuite:
    async def test_every_send_is_called_back_once(self, harness: LogHarness) -> None:
        callbacks = [Spoken() for _ in range(300)]

        for callback in callbacks:
            harness.log.send(outgoing(), callback)
        assert not any(callback.said for callback in callbacks)

        await wait_until_async(lambda: all(callback.said for callback in callbacks), "every send to be acknowledged")
        assert [callback.said for callback in callbacks] == [
            [Acknowledged(seq=seq, is_duplicate=False)] for seq in range(1, 301)
        ]

    async def test_a_callback_that_fails_harms_nobody_else(self, harness: LogHarness) -> None:
        def fail(_: Acknowledged | Rejected) -> None:
            raise RuntimeError("a listener at fault")

        other = Spoken()
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        harness.log.send(outgoing(), fail)
        harness.log.send(outgoing(), other)

        await wait_until_async(lambda: other.said, "the second send to be acknowledged")
        assert (await append(harness.log)).seq == 3

    async def test_an_entry_of_five_mebibytes_passes_whole(self, harness: LogHarness) -> None:
        payload = bytes(range(256)) * (5 * MIB // 256)

        acknowledged = await append(harness.log, outgoing(payload))

        found = await harness.log.get(SHARD, acknowledged.seq)
        assert found is not None
        assert found.payload == payload
        assert is_payload_sound(found.checksum, found.payload)

    @pytest.mark.parametrize("size", [8 * MIB - 100, 8 * MIB, 9 * MIB])
    async def test_an_oversize_entry_is_refused_and_its_neighbours_go_on(self, harness: LogHarness, size: int) -> None:
        neighbours = [Spoken() for _ in range(3)]
        async with harness.log.follow(SHARD, after_seq=0) as follower:
            harness.log.send(outgoing(b"0"), neighbours[0])
            with pytest.raises(LogUnavailable):
                harness.log.send(outgoing(bytes(size)), Spoken())
            harness.log.send(outgoing(b"1"), neighbours[1])
            # An append does not try until its time is up what can never be stored.
            with pytest.raises(LogUnavailable):
                await asyncio.wait_for(append(harness.log, outgoing(bytes(size))), 5)
            harness.log.send(outgoing(b"2"), neighbours[2])

            await wait_until_async(lambda: all(one.said for one in neighbours), "the neighbours to be acknowledged")
            assert harness.log.is_connected
            assert follower.restarts == 0
        assert [message.payload for message in await read_all(harness.log)] == [b"0", b"1", b"2"]


class RefusalSuite:
    async def test_a_full_shard_refuses_keeps_what_it_has_and_takes_again(self, harness: LogHarness) -> None:
        kept = [outgoing(b"x" * 100) for _ in range(3)]
        for entry in kept:
            await append(harness.log, entry)
        await harness.fill(SHARD)

        spoken = Spoken()
        harness.log.send(outgoing(b"too much"), spoken)
        await wait_until_async(lambda: spoken.said, "the refusal")
        with pytest.raises(LogUnavailable) as caught:
            # Waiting makes no room: it does not take until the time is up.
            await asyncio.wait_for(append(harness.log), 5)

        assert isinstance(spoken.said[0], Rejected)
        assert spoken.said[0].is_full
        assert caught.value.reason == "log_full"
        state = await harness.log.state(SHARD)
        assert (state.first_seq, state.last_seq) == (1, 3)
        assert [message.entry_id for message in await read_all(harness.log)] == [entry.entry_id for entry in kept]

        await harness.make_room(SHARD)
        assert (await append(harness.log)).seq == 4

    async def test_a_full_shard_still_knows_what_it_has(self, harness: LogHarness) -> None:
        sent = outgoing(b"x" * 100)
        first = await append(harness.log, sent)
        await harness.fill(SHARD)

        assert await append(harness.log, sent) == Acknowledged(seq=first.seq, is_duplicate=True)


class OutageSuite:
    """Each test has a log, and a broker, of its own."""

    async def test_what_is_refused_in_an_outage_is_never_sent_later(self, lone_harness: LogHarness) -> None:
        log = lone_harness.log
        await append(log, outgoing(b"before"))
        await lone_harness.go_offline()

        spoken = Spoken()
        assert not log.is_connected
        for _ in range(20):
            with pytest.raises(LogUnavailable):
                log.send(outgoing(b"refused"), spoken)
        with pytest.raises(LogUnavailable):
            await log.append(outgoing(b"refused"), timeout_seconds=IMPATIENT_SECONDS)
        await lone_harness.come_back()

        await append(log, outgoing(b"after"))
        await loop_turns()
        assert [message.payload for message in await read_all(log)] == [b"before", b"after"]
        assert spoken.said == []

    async def test_reading_in_an_outage_says_so(self, lone_harness: LogHarness) -> None:
        await lone_harness.go_offline()

        with pytest.raises(LogUnavailable):
            await lone_harness.log.get(SHARD, 1)
        with pytest.raises(LogUnavailable):
            await lone_harness.log.state(SHARD)

    async def test_an_append_waits_out_an_outage(self, lone_harness: LogHarness) -> None:
        await lone_harness.go_offline()
        appending = asyncio.create_task(append(lone_harness.log))
        await loop_turns()
        assert not appending.done()

        await lone_harness.come_back()

        assert await appending == Acknowledged(seq=1, is_duplicate=False)

    async def test_entries_and_their_ids_outlive_an_outage(self, lone_harness: LogHarness) -> None:
        log = lone_harness.log
        sent = [outgoing(b"%d" % number) for number in range(3)]
        first = [await append(log, entry) for entry in sent]
        created_at = (await log.state(SHARD)).created_at

        await lone_harness.go_offline()
        await lone_harness.come_back()

        again = [await append(log, entry) for entry in sent]
        assert again == [Acknowledged(seq=said.seq, is_duplicate=True) for said in first]
        assert [message.payload for message in await read_all(log)] == [b"0", b"1", b"2"]
        assert (await log.state(SHARD)).created_at == created_at

    async def test_an_unanswered_append_is_called_unknown_and_repeating_it_settles_it(
        self, lone_harness: LogHarness
    ) -> None:
        log = lone_harness.log
        sent = outgoing(b"once")
        await lone_harness.fall_silent()
        # Long enough to publish it a second time.
        with pytest.raises(OutcomeUnknown):
            await log.append(sent, timeout_seconds=2 * IMPATIENT_SECONDS)

        await lone_harness.speak_again()

        assert (await append(log, sent)).seq == 1
        assert [message.payload for message in await read_all(log)] == [b"once"]

    async def test_a_cancelled_append_leaves_the_log_in_order(self, lone_harness: LogHarness) -> None:
        log = lone_harness.log
        await lone_harness.fall_silent()
        appending = asyncio.create_task(append(log, outgoing(b"cancelled")))
        await loop_turns()
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending
        await lone_harness.speak_again()

        await append(log, outgoing(b"next"))

        payloads = [message.payload for message in await read_all(log)]
        assert payloads == [b"cancelled", b"next"]
