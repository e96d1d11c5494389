"""Loading, batching and forgetting change nothing: the view holds what folding a plain list gives."""

import random
from collections.abc import Sequence

import pytest

from kernel.ports import ApprovalQuery, Batch, ExecutionChange, Ownership, Watermark
from kernel.view.memory import MemoryView
from schemas.events import decode_event
from schemas.records import (
    HEADER_FIELD,
    counter_field,
    decode_counter,
    decode_header,
    decode_key,
    decode_step,
    entry_field,
    event_field,
    key_field,
    order_field,
    step_field,
)
from tests.support.folding import ListLog
from tests.support.worlds import World
from workers.projecting.batch import fold_batch, inspect
from workers.projecting.memory import ShardMemory

ENTRIES = 260


async def project(world: World, view: MemoryView, ownership: Ownership, watermark: Watermark) -> None:
    """Fold the world's log in batches of random size, now and then with an empty memory."""
    messages = [world.message(log, index) for log, index in world.order]
    memory = ShardMemory(executions_max=2)
    listed: dict[str, str] = {}
    done = 0
    while done < len(messages):
        chunk = messages[done : done + world.rng.randint(1, 40)]
        folded = await fold_batch(view, memory, [inspect(message) for message in chunk])
        assert folded.parked == ()
        last = chunk[folded.count - 1]
        reached = Watermark(created_at=watermark.created_at, seq=last.seq, checksum=last.checksum)
        batch = Batch(
            expected=watermark,
            watermark=reached,
            changes=folded.changes,
            answers=(),
            create_keys=folded.create_keys,
            parked=folded.parked,
            is_rebuilding=False,
        )
        await view.apply(ownership, batch)
        list_approvals(listed, folded.changes)
        watermark = reached
        memory.settle(change.after.execution_id for change in folded.changes)
        done += folded.count
        if world.rng.random() < 0.3:
            memory = ShardMemory(executions_max=2)
    asked = [approval for log in world.logs for approval in log.records.approvals.values()]
    assert listed == {approval.approval_id: approval.status for approval in asked}


def list_approvals(listed: dict[str, str], changes: Sequence[ExecutionChange]) -> None:
    """Move approvals between lists as a view does, which takes them from where the change says they are."""
    for approval in (approval for change in changes for approval in change.approvals):
        assert listed.get(approval.after.approval_id) == approval.before
        listed[approval.after.approval_id] = approval.after.status


async def assert_view_equals(log: ListLog, view: MemoryView) -> None:
    if log.header is None:
        return
    header, records = log.live_header, log.records
    steps = sorted(records.steps.values(), key=lambda step: step.ordinal)
    fields = [
        HEADER_FIELD,
        *(step_field(step.step_id) for step in steps),
        *(order_field(step.ordinal) for step in steps),
        *(counter_field(digest) for digest in records.counters),
        *(key_field(digest) for digest in records.keys),
        *(event_field(seq) for seq in range(1, header.event_count + 1)),
        *(entry_field(ordinal) for ordinal in range(1, header.entry_count + 1)),
    ]
    values = iter((await view.fields(0, "default", header.execution_id, fields)).value)

    def take(count: int) -> list[bytes]:
        taken = [next(values) for _ in range(count)]
        assert None not in taken
        return [value for value in taken if value is not None]

    assert decode_header(take(1)[0]) == header
    assert [decode_step(raw) for raw in take(len(steps))] == steps
    assert [raw.hex() for raw in take(len(steps))] == [step.step_id for step in steps]
    assert [decode_counter(raw) for raw in take(len(records.counters))] == list(records.counters.values())
    assert [decode_key(raw) for raw in take(len(records.keys))] == list(records.keys.values())
    assert [decode_event(raw) for raw in take(header.event_count)] == log.events
    sequences = [position.seq for _, position in log.entries]
    assert [int(raw) for raw in take(header.entry_count)] == sequences
    listed = await view.approvals(0, "default", ApprovalQuery(execution_id=header.execution_id, limit=ENTRIES))
    by_id = sorted(records.approvals.values(), key=lambda approval: approval.approval_id)
    assert [each.record for each in listed.value] == by_id


@pytest.mark.parametrize("run", range(8))
async def test_the_view_equals_a_fold_of_the_list_whatever_the_batches(run: int, seed: int):
    rng = random.Random(f"{seed}-{run}")
    world = World(rng, entries=ENTRIES)
    view = MemoryView()
    ownership = await view.acquire(0, owner="owner", ttl_ms=60_000, lease_ms=10_000)
    assert ownership is not None
    watermark = await view.wipe(ownership, created_at="now", lease_ms=10_000)

    await project(world, view, ownership, watermark)

    for log in world.logs:
        await assert_view_equals(log, view)
