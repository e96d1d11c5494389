"""What a projector believes: contiguous entries of the stream it knows, sound headers, versions it can fold."""

import random

import pytest

from kernel.domain.framing import checksum
from kernel.ports import LogMessage, Outgoing
from kernel.view.memory import MemoryView
from schemas.records import HEADER_FIELD, Header, decode_header
from tests.support.projecting import Projection
from tests.support.wait import wait_until_async
from tests.support.worlds import World


def said(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return any(words in record.getMessage() and record.levelname == "CRITICAL" for record in caplog.records)


def world_of(projection: Projection, seed: int, entries: int = 60) -> list[Outgoing]:
    return World(random.Random(seed), entries=entries, now=projection.now).outgoing()


def header_of(projection: Projection, outgoing: Outgoing) -> Header:
    fields = projection.view.shard(0).hashes[outgoing.tenant, outgoing.execution_id]
    return decode_header(fields[HEADER_FIELD])


def resealed(message: LogMessage, payload: bytes) -> dict[str, object]:
    """Changes that make a message carry another payload with matching checksums."""
    sums = checksum(
        tenant=message.tenant, execution_id=message.execution_id, entry_id=message.entry_id, payload=payload
    )
    return {"payload": payload, "checksum": sums}


async def test_a_recreated_stream_stops_the_shard(seed: int, caplog: pytest.LogCaptureFixture):
    projection = Projection()
    outgoing = world_of(projection, seed)
    await projection.append(*outgoing)
    async with projection.projector():
        await projection.level()
        before = projection.contents()
        projection.log.recreate(0)
        await projection.append(*outgoing)
        await wait_until_async(lambda: said(caplog, "is not the one the view was built from"), "the shard to stop")
        assert projection.contents() == before


async def test_a_log_restored_from_an_older_backup_stops_the_shard(seed: int, caplog: pytest.LogCaptureFixture):
    projection = Projection()
    await projection.append(*world_of(projection, seed))
    async with projection.projector():
        await projection.level()
    state = projection.view.shard(0)
    assert state.watermark is not None
    for seq in range(state.watermark.seq - 5, state.watermark.seq + 1):
        projection.log.delete(0, seq)
    await projection.damaged(1)
    before = projection.contents()
    async with projection.projector("successor"):
        await wait_until_async(lambda: said(caplog, "shard 0"), "the shard to stop")
    assert projection.contents() == before


async def test_another_entry_at_the_watermark_stops_the_shard(seed: int, caplog: pytest.LogCaptureFixture):
    projection = Projection()
    await projection.append(*world_of(projection, seed))
    async with projection.projector():
        await projection.level()
    head = (await projection.log.state(0)).last_seq
    message = await projection.log.get(0, head)
    assert message is not None
    await projection.damaged(head, **resealed(message, b"{}"))
    async with projection.projector("successor"):
        await wait_until_async(
            lambda: said(caplog, f"entry {head} is not the one the view was built from"), "the shard to stop"
        )


async def test_fields_that_were_lost_under_a_running_projector_are_folded_anew(seed: int):
    # given
    projection = Projection()
    outgoing = world_of(projection, seed)
    half = len(outgoing) // 2
    await projection.append(*outgoing[:half])
    async with projection.projector():
        await projection.level()
        again = next(
            each for each in outgoing[half:] if (each.tenant, each.execution_id) in projection.view.shard(0).hashes
        )

        # when
        del projection.view.shard(0).hashes[again.tenant, again.execution_id]
        await projection.append(*outgoing[half:])
        await projection.level()
        healed = projection.contents()

    # then
    projection.view = MemoryView()
    async with projection.projector("successor"):
        await projection.level()
    assert healed == projection.contents()


async def test_a_gap_stops_the_shard_before_it(seed: int, caplog: pytest.LogCaptureFixture):
    projection = Projection()
    await projection.append(*world_of(projection, seed))
    projection.log.delete(0, 31)
    async with projection.projector():
        await wait_until_async(lambda: said(caplog, "entries 31 to 31 are not in the log"), "the shard to stop")
        state = projection.view.shard(0)
        assert state.watermark is not None
        assert state.watermark.seq <= 30


@pytest.mark.parametrize(
    "changes", [{"execution_id": "0" * 36}, {"entry_id": "x"}, {"checksum": ""}, {"tenant": "other"}]
)
async def test_headers_that_cannot_be_trusted_stop_the_shard(
    changes: dict[str, str], seed: int, caplog: pytest.LogCaptureFixture
):
    projection = Projection()
    await projection.append(*world_of(projection, seed))
    await projection.damaged(20, **changes)
    async with projection.projector():
        await wait_until_async(lambda: said(caplog, "headers of entry 20 cannot be trusted"), "the shard to stop")


@pytest.mark.parametrize("damage", ["a flipped byte", "not an entry", "another entry's"])
async def test_a_damaged_payload_halts_its_execution_alone(damage: str, seed: int):
    projection = Projection()
    outgoing = world_of(projection, seed)
    await projection.append(*outgoing)
    first_seqs = {each.execution_id: seq for seq, each in reversed(list(enumerate(outgoing, 1)))}
    seq = next(seq for seq, each in enumerate(outgoing, 1) if seq > 20 and first_seqs[each.execution_id] < seq)
    message = await projection.log.get(0, seq)
    assert message is not None
    match damage:
        case "a flipped byte":
            # Still JSON, still an entry: the checksum alone tells.
            await projection.damaged(seq, payload=message.payload.replace(b'"at":1', b'"at":2'))
        case "not an entry":
            await projection.damaged(seq, **resealed(message, b'{"schema":1,"rules":1,"type":"nothing"}'))
        case _:
            other = next(each for each in outgoing if each.execution_id != message.execution_id)
            await projection.damaged(seq, **resealed(message, other.payload))

    async with projection.projector():
        await projection.level()

    assert list(projection.view.shard(0).parked) == [seq]
    halted = {each.execution_id for each in outgoing if header_of(projection, each).halted}
    assert halted == {message.execution_id}


async def test_a_damaged_creation_is_parked_and_leaves_nothing(seed: int):
    projection = Projection()
    outgoing = world_of(projection, seed)
    await projection.append(*outgoing)
    await projection.damaged(1, payload=b"damaged")
    async with projection.projector():
        await projection.level()
    assert 1 in projection.view.shard(0).parked
    assert outgoing[0].execution_id not in projection.view.shard(0).directory


async def test_an_entry_of_a_newer_version_gives_the_shard_up(seed: int, caplog: pytest.LogCaptureFixture):
    projection = Projection()
    await projection.append(*world_of(projection, seed))
    message = await projection.log.get(0, 10)
    assert message is not None
    newer = message.payload.replace(b'"rules":1', b'"rules":2')
    assert newer != message.payload
    await projection.damaged(10, **resealed(message, newer))
    async with projection.projector():
        await wait_until_async(lambda: said(caplog, "of a version this build cannot fold"), "the shard to be given up")
        assert projection.view.shard(0).parked == {}
