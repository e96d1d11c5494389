"""Large bodies are fetched from the entry that brought them, and from no other."""

import asyncio
import time
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from kernel.domain.errors import InvariantBroken, Unavailable
from kernel.door.fetching import Shelf
from kernel.log.memory import MemoryLog
from kernel.ports import Outgoing
from schemas.bodies import Body
from schemas.entries import Lease, Outcome, StepFailed, StepSubmitted, Verdict, encode_entry
from schemas.ids import new_uuid7
from tests.support.wait import loop_turns

EXECUTION_ID = "0199aaaa-0000-7000-8000-0000000000ff"
OTHER_ID = "0199aaaa-0000-7000-8000-0000000000fe"
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
        outgoing = Outgoing(0, entry.tenant, entry.execution_id, entry.id, encode_entry(entry), "")
        await log.append(outgoing, timeout_seconds=1)
    return log


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
