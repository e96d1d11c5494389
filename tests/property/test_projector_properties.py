"""Loading, batching and forgetting change nothing: the view holds what folding a plain list gives."""

import itertools
import random

import pytest

from kernel.domain.framing import checksum
from kernel.ports import Batch, LogMessage, Ownership, Watermark
from kernel.view.memory import MemoryView
from schemas.entries import Lease, encode_entry
from schemas.events import decode_event
from schemas.ids import uuid7_from
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
from tests.support.folding import DISPATCH, ListLog, result_of
from workers.projecting.batch import fold_batch, inspect
from workers.projecting.memory import ShardMemory

EXECUTIONS = 5
ENTRIES = 260
TOOLS = [("tool", 1), ("tool", 2), ("pay", 1)]


class World:
    """Several executions whose entries share one log; every choice comes from one seeded source."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        sequences = itertools.count(1)
        self.logs: list[ListLog] = []
        self.order: list[tuple[ListLog, int]] = []
        for number in range(EXECUTIONS):
            log = ListLog(sequences, ids_from=10_000 * (number + 1))
            log.execution_id = uuid7_from(1_760_000_000_000 + number, rng.randbytes(10))
            self.logs.append(log)

    def act(self) -> None:
        log = self.rng.choice(self.logs)
        before = len(log.entries)
        if log.header is None:
            log.create()
        elif log.live_header.lease is None:
            self.rng.choice([log.claim, log.claim, log.cancel])()
        else:
            self.act_under_lease(log)
        self.order.extend((log, index) for index in range(before, len(log.entries)))

    def act_under_lease(self, log: ListLog) -> None:
        rng = self.rng
        lease = Lease(DISPATCH, log.lease.attempt + rng.choice([0, 0, 0, 0, -1, 1]))
        known = list(log.records.steps) or ["0" * 64]
        call = rng.choice(TOOLS)
        key = rng.choice(["", "", f"{call}", "k"])
        mode = rng.choice(["safe_to_retry", "at_most_once"])
        actions = [
            *[lambda: log.submit(*call, lease=lease, key=key, idempotency=mode)] * 8,
            *[lambda: log.submit(*call, lease=lease, settle=[result_of(rng.choice(known), "settled")])] * 2,
            *[lambda: log.complete_step(rng.choice(known), rng.randrange(3), lease=lease, key=rng.choice(["", "o"]))]
            * 4,
            lambda: log.fail_step(rng.choice(known), {"message": "no"}, lease=lease),
            log.expire,
            *[log.claim] * 2,
            lambda: log.delivered(lease),
            lambda: log.delivery_failed(rng.choice(["timeout", "unreachable"]), lease),
            lambda: log.heartbeat(lease),
            lambda: (
                log.complete("x" * rng.choice([1, 9000]), lease=lease, key=rng.choice(["", "e"]))
                if rng.random() < 0.1
                else log.heartbeat(lease)
            ),
            lambda: log.later(rng.randrange(3)),
        ]
        rng.choice(actions)()

    def message(self, log: ListLog, index: int) -> LogMessage:
        entry, position = log.entries[index]
        payload = encode_entry(entry)
        return LogMessage(
            shard=0,
            seq=position.seq,
            stored_at=position.stored_at,
            tenant=entry.tenant,
            entry_id=entry.id,
            execution_id=entry.execution_id,
            checksum=checksum(tenant=entry.tenant, execution_id=entry.execution_id, entry_id=entry.id, payload=payload),
            reply_to="",
            payload=payload,
        )


async def project(world: World, view: MemoryView, ownership: Ownership, watermark: Watermark) -> None:
    """Fold the world's log in batches of random size, now and then with an empty memory."""
    messages = [world.message(log, index) for log, index in world.order]
    memory = ShardMemory(executions_max=2)
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
        watermark = reached
        memory.settle(change.after.execution_id for change in folded.changes)
        done += folded.count
        if world.rng.random() < 0.3:
            memory = ShardMemory(executions_max=2)


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


@pytest.mark.parametrize("run", range(8))
async def test_the_view_equals_a_fold_of_the_list_whatever_the_batches(run: int, seed: int):
    rng = random.Random(f"{seed}-{run}")
    world = World(rng)
    while len(world.order) < ENTRIES:
        world.act()
    view = MemoryView()
    ownership = await view.acquire(0, owner="owner", ttl_ms=60_000, lease_ms=10_000)
    assert ownership is not None
    watermark = await view.wipe(ownership, created_at="now", lease_ms=10_000)

    await project(world, view, ownership, watermark)

    for log in world.logs:
        await assert_view_equals(log, view)
