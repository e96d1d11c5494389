"""The contract of the log for pieces of bodies: stored beside the shards, durably, each where it was said to be."""

import asyncio

import pytest

from kernel.domain.errors import InvariantBroken, LogUnavailable
from kernel.domain.framing import is_payload_sound
from kernel.ports import Acknowledged, Piece
from tests.contract.log_harness import SECONDS, SHARD, SHARDS, TENANT, LogHarness, append, outgoing, read_all

EXECUTION = "0199aaaa-0000-7000-8000-00000000aaaa"
ENTRY, ANOTHER = "0199aaaa-0000-7000-8000-00000000bbbb", "0199aaaa-0000-7000-8000-00000000cccc"


def piece(payload: bytes, *, entry_id: str = ENTRY, shard: int = SHARD) -> Piece:
    return Piece(shard=shard, tenant=TENANT, execution_id=EXECUTION, entry_id=entry_id, payload=payload)


async def put(harness: LogHarness, payload: bytes, *, entry_id: str = ENTRY, shard: int = SHARD) -> int:
    stored = await harness.log.put_piece(piece(payload, entry_id=entry_id, shard=shard), timeout_seconds=SECONDS)
    return stored.seq


class BodySuite:
    async def test_a_piece_is_read_back_where_it_was_put(self, harness: LogHarness) -> None:
        payloads = [b"", b"\x00\xff", bytes(range(256)) * 256]

        seqs = [await put(harness, each) for each in payloads]

        for seq, payload in zip(seqs, payloads, strict=True):
            found = await harness.log.piece(SHARD, seq)
            assert found is not None
            assert (found.tenant, found.execution_id, found.payload) == (TENANT, EXECUTION, payload)
            assert is_payload_sound(found.checksum, found.payload)

    async def test_the_same_piece_is_stored_once_and_another_entrys_is_its_own(self, harness: LogHarness) -> None:
        first = await harness.log.put_piece(piece(b"x"), timeout_seconds=SECONDS)
        again = await harness.log.put_piece(piece(b"x"), timeout_seconds=SECONDS)

        assert (first.is_duplicate, again) == (False, Acknowledged(first.seq, is_duplicate=True))
        assert await put(harness, b"x", entry_id=ANOTHER) != first.seq

    async def test_pieces_are_no_entries(self, harness: LogHarness) -> None:
        await put(harness, b"x")
        acknowledged = await append(harness.log, outgoing(b"entry"))

        assert acknowledged.seq == 1
        assert [message.payload for message in await read_all(harness.log)] == [b"entry"]

    async def test_shards_keep_their_pieces_apart(self, harness: LogHarness) -> None:
        assert await put(harness, b"x") == 1
        assert await put(harness, b"y", shard=SHARD + 1) == 1

        with pytest.raises(InvariantBroken):
            await put(harness, b"z", shard=SHARDS)

    async def test_where_nothing_was_put_nothing_is(self, harness: LogHarness) -> None:
        assert await harness.log.piece(SHARD, 1) is None
        state = await harness.log.bodies_state(SHARD)
        assert (state.first_seq, state.last_seq) == (1, 0)

    async def test_a_piece_that_is_dropped_is_gone_and_its_place_is_not_given_again(self, harness: LogHarness) -> None:
        seqs = [await put(harness, payload) for payload in (b"x", b"y", b"z")]

        await harness.log.drop_piece(SHARD, seqs[2])
        await harness.log.drop_piece(SHARD, seqs[0])
        await harness.log.drop_piece(SHARD, seqs[0])

        assert [await harness.log.piece(SHARD, seq) for seq in (seqs[0], seqs[2])] == [None, None]
        kept = await harness.log.piece(SHARD, seqs[1])
        assert kept is not None
        assert kept.payload == b"y"
        state, entries = await harness.log.bodies_state(SHARD), await harness.log.state(SHARD)
        assert (state.first_seq, state.last_seq) == (seqs[1], seqs[2])
        assert entries.last_seq == 0
        assert abs(state.broker_time - kept.stored_at) < SECONDS * 1_000_000
        assert await put(harness, b"w") == seqs[2] + 1

    async def test_many_at_once_are_all_there(self, harness: LogHarness) -> None:
        payloads = [b"%d" % number * 1000 for number in range(200)]

        seqs = await asyncio.gather(*(put(harness, each) for each in payloads))

        assert len(set(seqs)) == len(payloads)
        found = [await harness.log.piece(SHARD, seq) for seq in seqs]
        assert [None if each is None else each.payload for each in found] == payloads


class BodyOutageSuite:
    async def test_a_piece_that_cannot_be_sent_is_unavailable(self, lone_harness: LogHarness) -> None:
        await lone_harness.go_offline()

        with pytest.raises(LogUnavailable):
            await lone_harness.log.put_piece(piece(b"x"), timeout_seconds=0.3)
        with pytest.raises(LogUnavailable):
            await lone_harness.log.drop_piece(SHARD, 1)

    async def test_pieces_outlive_an_outage(self, lone_harness: LogHarness) -> None:
        seq = await put(lone_harness, b"x")

        await lone_harness.go_offline()
        await lone_harness.come_back()

        found = await lone_harness.log.piece(SHARD, seq)
        assert found is not None
        assert found.payload == b"x"
