"""Large bodies are fetched from the entry that brought them, and from no other."""

import asyncio
import time
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from kernel.domain.errors import InvariantBroken, Unavailable
from kernel.domain.spilling import spilled_as
from kernel.door.fetching import Shelf
from kernel.log.memory import MemoryLog
from kernel.ports import LogMessage, Outgoing, Piece
from schemas.bodies import Body, Spilled
from schemas.entries import Lease, Outcome, StepFailed, StepSubmitted, Verdict, encode_entry
from schemas.ids import new_uuid7
from tests.support.wait import loop_turns

EXECUTION_ID = "0199aaaa-0000-7000-8000-0000000000ff"
OTHER_ID = "0199aaaa-0000-7000-8000-0000000000fe"
ENTRY_ID = "0199aaaa-0000-7000-8000-0000000000fd"
STEP = "ab" * 32
LEASE = Lease("0199aaaa-0000-7000-8000-000000000001", 1)
ARGS = b'{"b":1.0,"a":[1e2]}'


def stamp(**members: Any) -> dict[str, Any]:
    return {"id": new_uuid7(), "tenant": "default", "execution_id": EXECUTION_ID, "at": time.time_ns(), **members}


def submitted(**members: Any) -> StepSubmitted:
    return StepSubmitted(
        **stamp(**members),
        lease=LEASE,
        kind="local",
        target="t",
        args=Raw(ARGS),
        args_hash="cd" * 32,
        idempotency="safe_to_retry",
        verdict=Verdict("allow", "local", 0),
        settle=(Outcome(STEP, result=Raw(b"[1]")), Outcome(STEP, error=Raw(b'{"m":1}'))),
    )


async def logged(*entries: Any) -> MemoryLog:
    log = MemoryLog(shards=1)
    for entry in entries:
        await append(log, entry)
    return log


async def append(log: MemoryLog, entry: Any) -> None:
    outgoing = Outgoing(0, entry.tenant, entry.execution_id, entry.id, encode_entry(entry), "")
    await log.append(outgoing, timeout_seconds=1)


def body(place: str, size_bytes: int, *, seq: int = 1) -> Body:
    return Body(json=b"", seq=seq, place=place, size_bytes=size_bytes)


async def fetched(log: MemoryLog, *bodies: Body | None, seconds: float = 5.0) -> list[bytes]:
    deadline = asyncio.get_running_loop().time() + seconds
    texts = await Shelf(log).texts(0, EXECUTION_ID, bodies, deadline=deadline)
    return [bytes(texts.raw(each)) for each in bodies]


async def test_every_place_of_an_entry_gives_its_own_bytes() -> None:
    failed = StepFailed(**stamp(), lease=LEASE, step_id=STEP, error=Raw(b'{"message":"x"}'))
    log = await logged(submitted(), failed)
    small = Body(json=b"7", seq=9, place="result", size_bytes=1)
    found = await fetched(
        log,
        body("args", len(ARGS)),
        body("settle.0", 3),
        body("settle.1", 7),
        body("error", 15, seq=2),
        small,
        None,
    )
    assert found == [ARGS, b"[1]", b'{"m":1}', b'{"message":"x"}', b"7", b"null"]


async def apart(log: MemoryLog, *payloads: bytes, execution_id: str = EXECUTION_ID) -> Spilled:
    """Put pieces beside the log and return where the text that they are is."""
    pieces = [Piece(0, "default", execution_id, ENTRY_ID, each) for each in payloads]
    stored = [await log.put_piece(each, timeout_seconds=1) for each in pieces]
    return spilled_as(b"".join(payloads) + b"]", [each.seq for each in stored], "]")


async def test_a_body_that_stands_in_pieces_is_put_together_and_the_others_of_its_entry_stand_in_it() -> None:
    log = MemoryLog(shards=1)
    spilled = {"args": await apart(log, b"[1,", b"2"), "settle.0": await apart(log, b"[", b"2")}
    await append(log, replace(submitted(), args=Raw(b"null"), spilled=spilled))

    found = await fetched(log, body("args", 5), body("settle.0", 3), body("settle.1", 7))

    assert found == [b"[1,2]", b"[2]", b'{"m":1}']


async def test_a_piece_that_two_bodies_share_is_fetched_once() -> None:
    asked: list[int] = []

    class Counted(MemoryLog):
        async def piece(self, shard: int, seq: int) -> LogMessage | None:
            asked.append(seq)
            return await super().piece(shard, seq)

    log = Counted(shards=1)
    spilled = await apart(log, b"[1,", b"2")
    for _ in range(3):
        await append(log, replace(submitted(), args=Raw(b"null"), spilled={"args": spilled}))

    assert await fetched(log, *(body("args", 5, seq=seq) for seq in (1, 2, 3))) == [b"[1,2]"] * 3
    assert sorted(asked) == [1, 2]


@pytest.mark.parametrize("fault", ["missing", "foreign", "damaged", "other", "size"])
async def test_a_piece_that_is_not_the_one_that_was_stored_is_never_shown(fault: str) -> None:
    log = MemoryLog(shards=1)
    spilled = await apart(log, b"[1,", b"2", execution_id=OTHER_ID if fault == "foreign" else EXECUTION_ID)
    await append(log, replace(submitted(), args=Raw(b"null"), spilled={"args": spilled}))
    stored = await log.piece(0, 1)
    assert stored is not None
    match fault:
        case "missing":
            log.bodies(0).delete(1)
        case "damaged":
            log.bodies(0).replace(replace(stored, payload=b"[7,"))
        case "other":
            other = await log.put_piece(Piece(0, "default", EXECUTION_ID, ENTRY_ID, b"[7,"), timeout_seconds=1)
            found = await log.piece(0, other.seq)
            assert found is not None
            log.bodies(0).replace(replace(found, seq=1))

    with pytest.raises(Unavailable if fault == "missing" else InvariantBroken):
        await fetched(log, body("args", 6 if fault == "size" else 5))


async def test_small_bodies_ask_nothing_of_the_log() -> None:
    log = await logged()
    log.go_offline()
    assert await fetched(log, Body(json=b"7", seq=9, place="result", size_bytes=1), None) == [b"7", b"null"]


@pytest.mark.parametrize(
    ("place", "size_bytes"), [("args", 5), ("output", 3), ("target", 3), ("settle.1", 3), ("nothing", 1)]
)
async def test_an_entry_without_that_body_is_a_contradiction(place: str, size_bytes: int) -> None:
    with pytest.raises(InvariantBroken):
        await fetched(await logged(submitted()), body(place, size_bytes))


async def test_a_body_of_another_execution_is_never_shown() -> None:
    with pytest.raises(InvariantBroken):
        await fetched(await logged(submitted(execution_id=OTHER_ID)), body("args", len(ARGS)))


async def test_a_damaged_entry_is_never_shown() -> None:
    log = await logged(submitted())
    message = await log.get(0, 1)
    assert message is not None
    log.replace(replace(message, payload=message.payload.replace(b"1.0", b"9.9")))
    with pytest.raises(InvariantBroken):
        await fetched(log, body("args", len(ARGS)))


async def test_a_missing_entry_is_no_null() -> None:
    with pytest.raises(Unavailable):
        await fetched(await logged(), body("args", len(ARGS)))


async def test_a_log_that_is_away_is_waited_for_until_the_deadline() -> None:
    log = await logged(submitted())
    log.go_offline()
    with pytest.raises(Unavailable):
        await fetched(log, body("args", len(ARGS)), seconds=0.1)
    reading = asyncio.create_task(fetched(log, body("args", len(ARGS))))
    await loop_turns(1)
    log.come_back()
    assert await reading == [ARGS]
