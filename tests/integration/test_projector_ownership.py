"""Owning shards: shared among projectors, handed over, taken from the dead; answers told and kept."""

import random

from msgspec.structs import replace

from kernel.domain.identity import shard_of
from kernel.ports import Outgoing, answers_channel, changes_channel, due_channel
from schemas.answers import AnswerBatch, Created, Decided, decode_answer, decode_batch
from schemas.entries import encode_entry
from schemas.ids import new_uuid7
from tests.support.folding import ListLog
from tests.support.projecting import Projection
from tests.support.wait import wait_until_async
from tests.support.worlds import World


def creation(projection: Projection, *, reply_to: str = "", age_seconds: int = 0) -> Outgoing:
    log = ListLog()
    log.execution_id = new_uuid7()
    log.now = projection.now - age_seconds * 1_000_000
    log.create()
    entry = replace(log.entries[0][0], id=new_uuid7())
    return Outgoing(
        shard=shard_of(entry.execution_id, projection.settings.shards),
        tenant=entry.tenant,
        execution_id=entry.execution_id,
        entry_id=entry.id,
        payload=encode_entry(entry),
        reply_to=reply_to,
    )


async def test_shards_are_shared_and_handed_over():
    projection = Projection(shards=4)
    async with projection.projector("one") as one:
        await wait_until_async(lambda: len(one.owned) == 4, "the only projector to own every shard")
        async with projection.projector("two") as two:
            await wait_until_async(
                lambda: len(one.owned) == 2 and len(two.owned) == 2, "two projectors to share the shards"
            )
            assert set(one.owned).isdisjoint(two.owned)
        await wait_until_async(lambda: len(one.owned) == 4, "the shards to come back")


async def test_a_dead_owners_shard_is_taken_and_its_waiting_entries_are_folded():
    projection = Projection()
    ttl_ms = int(projection.settings.owner_ttl_seconds * 1000)
    ghost = await projection.view.acquire(0, owner="ghost", ttl_ms=ttl_ms, lease_ms=10_000)
    assert ghost is not None
    await projection.append(creation(projection))
    async with projection.projector() as projector:
        assert projector.owned == ()
        await wait_until_async(lambda: projector.owned == (0,), "the shard to be taken", deadline_seconds=3)
        await projection.level()


async def test_a_fold_is_told_stored_and_announced():
    projection = Projection()
    told: list[AnswerBatch] = []
    due: list[bytes] = []
    changed: list[bytes] = []
    await projection.wakes.listen(answers_channel("door12345"), lambda raw: told.append(decode_batch(raw)))
    await projection.wakes.listen(due_channel(0), due.append)
    await projection.wakes.listen(changes_channel(0), changed.append)
    outgoing = creation(projection, reply_to="door12345")
    async with projection.projector():
        await projection.level()
        await projection.append(outgoing)
        await wait_until_async(lambda: bool(told), "the answer to be told")
    ((entry_id, raw),) = told[0].answers
    assert (entry_id, decode_answer(raw)) == (outgoing.entry_id, Created(outgoing.execution_id))
    assert told[0].watermark_seq == 1
    assert (await projection.view.stored_answer(0, outgoing.entry_id)).value == raw
    assert due
    assert outgoing.execution_id.encode() in changed[0]


async def test_a_rebuild_answers_nobody(seed: int):
    projection = Projection()
    told: list[bytes] = []
    await projection.wakes.listen(answers_channel("door12345"), told.append)
    world = World(random.Random(seed), entries=30, now=projection.now)
    old = [replace(each, reply_to="door12345") for each in world.outgoing()]
    await projection.append(*old)
    for seq in range(1, len(old) + 1):
        message = await projection.log.get(0, seq)
        assert message is not None
        await projection.damaged(seq, stored_at=message.stored_at - 3600 * 1_000_000)
    async with projection.projector():
        await projection.level()
    assert told == []
    assert await projection.view.recent_entry_ids(0) == []
    assert projection.view.shard(0).hashes


async def test_an_entry_stored_twice_counts_once_also_after_a_take_over():
    projection = Projection()
    log = ListLog()
    log.now = projection.now
    log.create()
    log.claim()
    log.submit("pay", 1)
    entries = [replace(entry, id=new_uuid7()) if entry.expires else entry for entry, _ in log.entries]
    outgoing = [
        Outgoing(
            shard=0,
            tenant=entry.tenant,
            execution_id=entry.execution_id,
            entry_id=entry.id,
            payload=encode_entry(entry),
            reply_to="",
        )
        for entry in entries
    ]
    async with projection.projector():
        await projection.append(*outgoing)
        await projection.level()
    first = await projection.log.get(0, 3)
    assert first is not None
    # The broker forgot the id: a second copy lies in the log.
    await projection.append(replace(outgoing[2], entry_id=new_uuid7()))
    await projection.damaged(4, payload=first.payload, entry_id=first.entry_id, checksum=first.checksum)
    async with projection.projector("successor"):
        await projection.level()
    header = next(iter(projection.view.shard(0).headers("default")))
    assert (header.entry_count, header.step_count) == (4, 1)
    answer = (await projection.view.stored_answer(0, first.entry_id)).value
    assert answer is not None
    decided = decode_answer(answer)
    assert isinstance(decided, Decided)
    assert decided.decision == "proceed"
