"""The view is a view: whatever happens to it, it becomes again what the log says."""

import random

import pytest
from msgspec.structs import replace

from kernel.domain.identity import shard_of
from kernel.ports import Outgoing
from schemas.entries import decode_entry
from schemas.ids import new_uuid7
from tests.support.projecting import Projection
from tests.support.wait import wait_until_async
from tests.support.worlds import World


def world_now(seed: int, projection: Projection, entries: int = 150) -> list[Outgoing]:
    return World(random.Random(seed), entries=entries, now=projection.now).outgoing()


async def test_a_lost_view_is_built_anew_byte_for_byte(seed: int):
    projection = Projection()
    await projection.append(*world_now(seed, projection))
    async with projection.projector():
        await projection.level()
        before = projection.contents()
        projection.view.lose_everything()
        await projection.level()
    assert projection.contents() == before
    assert before["hashes"]


async def test_a_view_that_went_back_is_folded_forward_to_the_same(seed: int):
    projection = Projection()
    outgoing = world_now(seed, projection)
    async with projection.projector():
        await projection.append(*outgoing[:60])
        await projection.level()
        snapshot = projection.view.snapshot()
        await projection.append(*outgoing[60:])
        await projection.level()
        before = projection.contents()
        projection.view.go_back(snapshot)
        await projection.level()
    assert projection.contents() == before


async def test_a_batch_that_failed_half_way_is_sent_again_and_nothing_is_lost(seed: int):
    projection = Projection()
    undisturbed = Projection(now=projection.now)
    outgoing = world_now(seed, projection)
    await undisturbed.append(*outgoing)
    async with undisturbed.projector():
        await undisturbed.level()
    async with projection.projector():
        for start in range(0, len(outgoing), 50):
            projection.view.fail_next_apply(0)
            await projection.append(*outgoing[start : start + 50])
            await projection.level()
    assert comparable(projection) == comparable(undisturbed)


def comparable(projection: Projection) -> dict[str, object]:
    """Contents without the watermark: two logs differ in the time they were created."""
    return {name: value for name, value in projection.contents().items() if name != "watermark"}


async def test_a_half_way_batch_whose_owner_died_is_rebuilt_by_the_next(seed: int):
    projection = Projection()
    outgoing = world_now(seed, projection)
    await projection.append(*outgoing)
    async with projection.projector():
        await projection.level()
    before = projection.contents()
    state = projection.view.shard(0)
    assert state.watermark is not None
    state.dirty = state.watermark
    next(iter(state.hashes.values())).clear()

    async with projection.projector("successor"):
        await wait_until_async(lambda: projection.view.shard(0).dirty is None, "the dirty view to be rebuilt")
        await projection.level()

    assert projection.contents() == before


@pytest.mark.parametrize("damage", ["a field is gone", "the header is gone", "a field too many"])
async def test_a_view_that_contradicts_itself_is_rebuilt(damage: str):
    projection = Projection()
    stamped = World(random.Random(1), entries=40, now=projection.now)
    outgoing = stamped.outgoing()
    await projection.append(*outgoing[:-1])
    async with projection.projector():
        await projection.level()
    place = (outgoing[-1].tenant, outgoing[-1].execution_id)
    fields = projection.view.shard(0).hashes[place]
    match damage:
        case "a field is gone":
            del fields[b"e1"]
        case "the header is gone":
            fields.clear()
        case _:
            fields[b"e99999"] = b""

    async with projection.projector("successor"):
        await projection.append(outgoing[-1])
        await projection.level()
        damaged = projection.contents()
        projection.view.lose_everything()
        await projection.level()

    assert projection.contents() == damaged


async def test_readers_wait_until_a_rebuild_is_level(seed: int):
    projection = Projection()
    await projection.append(*world_now(seed, projection, entries=600))
    seen: list[bool] = []
    apply = projection.view.apply

    async def watched(ownership: object, batch: object) -> None:
        seen.append(batch.is_rebuilding)  # type: ignore[attr-defined]  # the port's own Batch, seen in passing
        await apply(ownership, batch)  # type: ignore[arg-type]  # handed on as it came

    projection.view.apply = watched  # type: ignore[method-assign]  # watches the real adapter, replaces nothing
    async with projection.projector():
        await projection.level()
    assert seen[0]
    assert not seen[-1]
    assert seen == sorted(seen, reverse=True)


def test_a_world_spans_every_kind_of_entry(seed: int):
    """What the tests above rest on: the made-up logs are not trivial."""
    outgoing = World(random.Random(seed), entries=400).outgoing()
    kinds = {type(decode_entry(each.payload)).__name__ for each in outgoing}
    assert len(kinds) >= 8
    assert len({shard_of(each.execution_id, 8) for each in outgoing}) >= 1


async def test_another_executions_header_in_the_view_is_damage_and_rebuilt(seed: int):
    projection = Projection()
    outgoing = world_now(seed, projection, entries=60)
    last = next(each for each in reversed(outgoing) if each.execution_id != outgoing[0].execution_id)
    await projection.append(*outgoing)
    async with projection.projector():
        await projection.level()
    before = projection.contents()
    hashes = projection.view.shard(0).hashes
    place = (last.tenant, last.execution_id)
    other = next(fields for at, fields in hashes.items() if at != place)
    hashes[place] = dict(hashes[place]) | {b"h": other[b"h"]}

    async with projection.projector("successor"):
        await projection.append(replace(last, entry_id=new_uuid7(), payload=b"{}"))
        await projection.level()

    after = projection.contents()
    assert set(after["parked"]) == {len(outgoing) + 1}  # type: ignore[call-overload]  # a dict, as contents says
    assert set(after["hashes"]) == set(before["hashes"])  # type: ignore[call-overload]  # a dict, as contents says
