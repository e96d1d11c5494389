"""Putting bodies beside the log: what is put, and what is known when it could not be."""

import asyncio
from typing import Any

import pytest
from msgspec import UNSET, Raw

from kernel.domain.errors import LogUnavailable
from kernel.domain.spilling import ENTRY_BODIES_BYTES_MAX, SHARED_BYTES_MIN
from kernel.door import spilling
from kernel.door.spilling import Spilling, Stored
from kernel.log.memory import MemoryLog
from kernel.ports import Acknowledged, Piece
from schemas.entries import (
    SCHEMA_VERSION,
    SPILLED_SCHEMA,
    ExecutionCompleted,
    ExecutionFailed,
    Lease,
    Outcome,
    StepFailed,
    StepKind,
    StepSubmitted,
    Verdict,
)
from schemas.ids import new_uuid7

EXECUTION_ID = "0199aaaa-0000-7000-8000-0000000000ff"
STEP = "ab" * 32
LEASE = Lease("0199aaaa-0000-7000-8000-000000000001", 1)
NULL = Raw(b"null")
LARGE = b'"' + b"x" * ENTRY_BODIES_BYTES_MAX + b'"'


def stamp() -> dict[str, Any]:
    return {"id": new_uuid7(), "tenant": "default", "execution_id": EXECUTION_ID, "at": 1}


def submitted(args: bytes, *, kind: StepKind = "llm_call", settle: tuple[Outcome, ...] = ()) -> StepSubmitted:
    return StepSubmitted(
        **stamp(),
        lease=LEASE,
        kind=kind,
        target="t",
        args=Raw(args),
        args_hash="cd" * 32,
        idempotency="safe_to_retry",
        verdict=Verdict("allow", "local", 0),
        settle=settle,
    )


async def put(door: Spilling, entry: Any, *, seconds: float = 10.0) -> tuple[Any, Stored]:
    """Put what is large in an entry that is not in the log yet."""
    return await door.spilled(entry, shard=0, deadline=asyncio.get_running_loop().time() + seconds)


async def spilled(door: Spilling, entry: Any, *, seconds: float = 10.0) -> Any:
    """Return an entry as it comes into the log."""
    moved, stored = await put(door, entry, seconds=seconds)
    door.keep(stored)
    return moved


@pytest.fixture
async def log() -> MemoryLog:
    return MemoryLog(shards=1)


@pytest.fixture
async def door(log: MemoryLog) -> Spilling:
    return Spilling(log)


async def test_small_entries_stay_as_they_are(log: MemoryLog, door: Spilling) -> None:
    large = b'"' + b"x" * SHARED_BYTES_MIN + b'"'
    for entry in (submitted(b"1"), submitted(large, kind="tool_call")):
        assert await spilled(door, entry) is entry
        assert entry.schema == SCHEMA_VERSION
    assert log.bodies(0).last_seq == 0


async def test_only_what_is_large_leaves_null_behind(door: Spilling) -> None:
    kept = Outcome(STEP, error=Raw(b'{"message":"x"}'))
    settle = (Outcome(STEP, result=Raw(LARGE)), kept, Outcome(STEP, error=Raw(LARGE)))
    for entry in (
        submitted(b"1", settle=settle),
        ExecutionCompleted(**stamp(), lease=LEASE, output=Raw(b"1"), settle=settle),
        ExecutionFailed(**stamp(), lease=LEASE, error="no", settle=settle),
    ):
        moved = await spilled(door, entry)

        assert moved.settle == (Outcome(STEP, result=NULL), kept, Outcome(STEP, error=NULL))
        assert set(moved.spilled) == {"settle.0", "settle.2"}
        assert moved.schema == SPILLED_SCHEMA
    failed = await spilled(door, StepFailed(**stamp(), lease=LEASE, step_id=STEP, error=Raw(LARGE)))
    ended = await spilled(
        door, ExecutionCompleted(**stamp(), lease=LEASE, output=Raw(b"1"), state=Raw(LARGE), settle=())
    )
    assert (failed.error, set(failed.spilled)) == (NULL, {"error"})
    assert (bytes(ended.output), ended.state, set(ended.spilled)) == (b"1", NULL, {"state"})
    assert (await spilled(door, ExecutionCompleted(**stamp(), lease=LEASE, output=NULL, settle=()))).state is UNSET


async def test_what_goes_on_is_put_once(log: MemoryLog, door: Spilling) -> None:
    text = b'"' + b"".join(b"%07d " % number for number in range(8 * SHARED_BYTES_MIN // 8))
    before = await spilled(door, submitted(text + b'"'))
    stored = log.bodies(0).last_seq
    longer = await spilled(door, submitted(text + b"and so on" * 1000 + b'"'))
    log.bodies(0).forget_ids()

    assert longer.spilled["args"].pieces[: len(before.spilled["args"].pieces)] == before.spilled["args"].pieces
    assert log.bodies(0).last_seq <= stored + 3
    assert (await spilled(door, submitted(text + b'"'))).spilled == before.spilled


async def test_what_is_forgotten_is_put_again(log: MemoryLog, door: Spilling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling, "KNOWN_MAX", 2)
    text = b'"' + b"".join(b"%07d " % number for number in range(SHARED_BYTES_MIN // 4)) + b'"'
    first = await spilled(door, submitted(text))
    stored = log.bodies(0).last_seq
    log.bodies(0).forget_ids()

    again = await spilled(door, submitted(text))

    assert len(first.spilled["args"].pieces) == stored > 2
    assert log.bodies(0).last_seq == 2 * stored - 2
    assert again.spilled["args"].sha256 == first.spilled["args"].sha256


async def test_what_no_entry_refers_to_yet_is_put_again(log: MemoryLog, door: Spilling) -> None:
    """Nothing refers to a piece that was put for an entry which never came: it is removed some day."""
    text = b'"' + b"".join(b"%07d " % number for number in range(SHARED_BYTES_MIN // 4)) + b'"'
    lost, _ = await put(door, submitted(text))
    stored = log.bodies(0).last_seq

    moved = await spilled(door, submitted(text))

    assert log.bodies(0).last_seq == 2 * stored
    assert not set(moved.spilled["args"].pieces) & set(lost.spilled["args"].pieces)


async def test_what_was_put_before_a_stream_went_back_is_not_remembered(log: MemoryLog, door: Spilling) -> None:
    text = b'"' + b"".join(b"%07d " % number for number in range(SHARED_BYTES_MIN // 4)) + b'"'
    _, stored = await put(door, submitted(text))
    log.bodies(0).restore(0)
    with pytest.raises(LogUnavailable):
        await put(door, submitted(LARGE, kind="tool_call"))
    door.keep(stored)

    end = log.bodies(0).last_seq
    moved = await spilled(door, submitted(text))

    assert min(moved.spilled["args"].pieces) > end


async def test_what_nobody_acknowledged_certainly_did_not_happen(log: MemoryLog, door: Spilling) -> None:
    """A piece may be stored without anybody knowing; nothing refers to it."""
    log.drop_acks = True

    with pytest.raises(LogUnavailable):
        await spilled(door, submitted(LARGE), seconds=0.05)

    log.drop_acks = False
    assert (await spilled(door, submitted(LARGE))).spilled["args"].size_bytes == len(LARGE)


async def test_what_another_request_found_to_be_gone_is_not_referred_to() -> None:
    go_on, is_put = asyncio.Event(), asyncio.Event()

    class Slow(MemoryLog):
        """Its acknowledgement of one piece comes late."""

        async def put_piece(self, piece: Piece, *, timeout_seconds: float) -> Acknowledged:
            stored = await super().put_piece(piece, timeout_seconds=timeout_seconds)
            if b"late" in piece.payload:
                is_put.set()
                await go_on.wait()
            return stored

    log = Slow(shards=1)
    door = Spilling(log)
    await spilled(door, submitted(LARGE))
    late = asyncio.create_task(spilled(door, submitted(LARGE[:-1] + b"late" * 20_000 + b'"', kind="tool_call")))
    await is_put.wait()
    log.bodies(0).restore(0)
    with pytest.raises(LogUnavailable):
        await spilled(door, submitted(LARGE, kind="tool_call"))
    go_on.set()

    with pytest.raises(LogUnavailable):
        await late


async def test_nothing_is_put_when_the_time_is_up(log: MemoryLog, door: Spilling) -> None:
    with pytest.raises(LogUnavailable):
        await spilled(door, submitted(LARGE), seconds=0.0)

    assert log.bodies(0).last_seq == 0
