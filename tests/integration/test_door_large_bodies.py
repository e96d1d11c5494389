"""Bodies to 32 MiB, and conversations that are sent again with every call: stored beside the log, read back as sent."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace
from nats.aio.client import Client
from redis.asyncio import Redis

from kernel.domain.spilling import ENTRY_BODIES_BYTES_MAX, FINE_BYTES, SHARED_BYTES_MIN
from kernel.door.app import Door, build_app
from kernel.ports import Piece
from schemas.entries import SCHEMA_VERSION, SPILLED_SCHEMA, AnyEntry, decode_entry
from tests.support.door import MemoryRig, Rig, Run, rig_in_memory, rig_on_servers
from tests.support.wait import wait_until_async

MIB = 1024 * 1024
ENTRY_BYTES_MAX = 512 * 1024
TURNS = 200


@pytest_asyncio.fixture
async def rig(nats_url: str, redis_url: str, fresh_nats: Client, fresh_redis: Redis) -> AsyncIterator[Rig]:
    async with rig_on_servers(nats_url, redis_url) as rig:
        await rig.register()
        yield rig


@pytest_asyncio.fixture
async def memory() -> AsyncIterator[MemoryRig]:
    async with rig_in_memory() as rig:
        await rig.register()
        yield rig


def words(size: int, *, seed: int = 1) -> str:
    """A text of so many characters, some of more than a byte, that nothing compresses or repeats."""
    choose = random.Random(seed)
    return "".join(choose.choices('abcdefghij \n"\\<é世🙂', k=size))


async def entries(rig: Rig) -> list[AnyEntry]:
    found: list[AnyEntry] = []
    for shard in range(rig.settings.shards):
        for seq in range(1, (await rig.log.state(shard)).last_seq + 1):
            message = await rig.log.get(shard, seq)
            assert message is not None
            assert len(message.payload) < ENTRY_BYTES_MAX
            found.append(decode_entry(message.payload))
    return found


async def shown(rig: Rig, run: Run, step_id: str) -> Any:
    return (await rig.call("GET", f"{run.path}/steps/{step_id}")).json()


# ---------------------------------------------------------------- large ones


@pytest.mark.parametrize("size", [FINE_BYTES, 400_000, 1 * MIB, 5 * MIB])
async def test_every_body_is_read_back_as_it_was_sent(rig: Rig, size: int) -> None:
    given, args, result, error, output = (words(size // 2, seed=seed) for seed in range(5))
    run = await rig.started(input=given)
    step_id, failing = await run.proceed("t", {"text": args}), await run.proceed("f")
    assert (await run.complete_step(step_id, result)).status_code == 200
    assert (await run.fail_step(failing, {"message": error})).status_code == 200
    settled = await run.proceed("s")
    ended = await run.complete(output, settle=[{"step_id": settled, "result": [result]}])
    assert ended.status_code == 204, ended.text

    execution = (await rig.call("GET", run.path)).json()
    step, failed = await shown(rig, run, step_id), await shown(rig, run, failing)
    assert (execution["input"], execution["output"]) == (given, output)
    assert (step["args"], step["result"]) == ({"text": args}, result)
    assert failed["error"]["message"] == error
    assert (await shown(rig, run, settled))["result"] == [result]
    found = await entries(rig)
    assert {entry.schema for entry in found} == (
        {SCHEMA_VERSION} if size < 400_000 else {SCHEMA_VERSION, SPILLED_SCHEMA}
    )


async def test_a_large_result_is_replayed_to_the_next_attempt_literal_for_literal(rig: Rig) -> None:
    run = await rig.started()
    step_id = await run.proceed()
    raw = b'{"b":1.0,"a":"' + b"x" * MIB + b'","n":1e300}'
    sent = b'{"result": ' + raw.replace(b",", b" , ") + b"}"
    assert (await run.send("POST", f"{run.path}/steps/{step_id}/complete", sent)).status_code == 200
    await rig.expire(run)
    again = Run(rig, run.execution_id, await rig.claim(run.execution_id))

    answer = await again.submit()

    assert raw in answer.content
    assert answer.json()["decision"] == "replay"


async def test_32_mib_are_taken_and_one_byte_more_is_not(memory: MemoryRig) -> None:
    run = await memory.started()
    step_id = await run.proceed()
    around = len(b'{"result":""}')
    text = "x" * (32 * MIB - around)

    refused = await run.send("POST", f"{run.path}/steps/{step_id}/complete", b'{"result":"%b"}' % (text + "x").encode())
    taken = await run.send("POST", f"{run.path}/steps/{step_id}/complete", b'{"result":"%b"}' % text.encode())

    assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
    assert taken.json() == {"decision": "recorded"}
    assert (await shown(memory, run, step_id))["result"] == text


async def test_many_outcomes_that_travel_together_fit_into_one_entry(memory: MemoryRig) -> None:
    run = await memory.started()
    step_ids = [await run.proceed(str(number)) for number in range(40)]
    results = [words(20_000, seed=number) for number in range(40)]
    settle = [{"step_id": step_id, "result": result} for step_id, result in zip(step_ids, results, strict=True)]

    await run.proceed("next", settle=settle)

    assert sum(map(len, results)) > ENTRY_BODIES_BYTES_MAX
    assert [(await shown(memory, run, step_id))["result"] for step_id in step_ids] == results
    await entries(memory)


# ---------------------------------------------------------------- conversations


async def test_a_conversation_of_200_turns_is_stored_a_few_times_and_not_200(rig: Rig, fresh_nats: Client) -> None:
    run = await rig.started()
    messages: list[dict[str, str]] = []
    sent: list[Any] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": words(1200, seed=turn)})
        body = {"messages": list(messages), "model": "m", "stream": False}
        sent.append(body)
        step_id = await run.proceed("m", body, kind="llm_call")
        answer = {"role": "assistant", "content": words(1200, seed=10_000 + turn)}
        result = {"status": 200, "body": msgspec.json.encode(answer).decode()}
        assert (await run.complete_step(step_id, result)).status_code == 200
        messages.append(answer)

    transcript = len(msgspec.json.encode(messages))
    streams = await fresh_nats.jetstream().streams_info()
    stored = sum(stream.state.bytes for stream in streams)
    assert [step["args"] async for step in _steps(rig, run)] == sent
    assert sum(len(msgspec.json.encode(body)) for body in sent) > 50 * transcript
    assert stored <= 3 * transcript, stored / transcript


async def _steps(rig: Rig, run: Run) -> AsyncIterator[Any]:
    """The steps of an execution: their arguments together are more than a page takes."""
    query = "?limit=1000"
    while query:
        page = await rig.call("GET", f"{run.path}/steps{query}")
        assert page.status_code == 200, page.text
        for step in page.json():
            yield step
        cursor = page.headers.get("rebuno-next-cursor")
        query = cursor and f"?limit=1000&cursor={cursor}"


async def test_a_step_is_the_same_whether_its_arguments_are_shared_or_not(memory: MemoryRig) -> None:
    run = await memory.started()
    body = {"messages": [words(SHARED_BYTES_MIN)], "model": "m"}
    first = await run.proceed("m", body, kind="llm_call")
    other = await memory.started()

    assert (await shown(memory, run, first))["args"] == body
    assert (await other.submit("m", body, kind="llm_call")).json()["decision"] == "proceed"
    assert {
        step["args_hash"] for each in (run, other) for step in (await memory.call("GET", f"{each.path}/steps")).json()
    } == {(await shown(memory, run, first))["args_hash"]}


# ---------------------------------------------------------------- what goes wrong


async def test_what_cannot_be_stored_never_happened(memory: MemoryRig, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await memory.started()
    step_id = await run.proceed()
    before = await memory.events(run.execution_id)
    memory.memory_log.reject_full = True

    response = await run.complete_step(step_id, words(MIB))

    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    memory.memory_log.reject_full = False
    assert await memory.events(run.execution_id) == before
    assert (await run.complete_step(step_id, "small")).json() == {"decision": "recorded"}


async def test_a_piece_that_is_gone_is_told_and_all_else_goes_on(memory: MemoryRig) -> None:
    run = await memory.started()
    step_id, other = await run.proceed("a"), await run.proceed("b")
    await run.complete_step(step_id, words(MIB))
    await run.complete_step(other, "small")
    for shard in range(memory.settings.shards):
        bodies = memory.memory_log.bodies(shard)
        if bodies.last_seq:
            bodies.delete(3)

    response = await memory.call("GET", f"{run.path}/steps/{step_id}")

    assert response.status_code == 503, response.text
    assert (await shown(memory, run, other))["result"] == "small"


async def test_nothing_refers_to_pieces_of_a_stream_that_went_back(memory: MemoryRig) -> None:
    """A door that remembers pieces which are gone may let no entry refer to them."""
    run = await memory.started()
    first = {"messages": [words(4 * SHARED_BYTES_MIN)], "model": "m"}
    longer = {"messages": [*first["messages"], words(SHARED_BYTES_MIN, seed=2)], "model": "m"}
    await run.proceed("m", first, kind="llm_call")
    for shard in range(memory.settings.shards):
        memory.memory_log.bodies(shard).restore(0)

    refused = await run.submit("m", longer, kind="llm_call")
    step_id = await run.proceed("m", longer, kind="llm_call")

    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert (await shown(memory, run, step_id))["args"] == longer


async def test_a_conversation_goes_on_at_a_door_that_has_never_seen_it(rig: Rig) -> None:
    run = await rig.started()
    messages = [words(SHARED_BYTES_MIN)]
    await run.proceed("m", {"messages": messages}, kind="llm_call")
    other = build_app(
        settings=rig.settings, log=rig.log, view=rig.view, wakes=rig.wakes, control=rig.control, name="another"
    )
    body = {"messages": [*messages, words(SHARED_BYTES_MIN, seed=2)]}
    async with serving(other) as client:
        raw = msgspec.json.encode({"kind": "llm_call", "target": "m", "args": body})
        headers = run.headers("POST", f"{run.path}/steps", raw)
        answer = await client.post(f"{run.path}/steps", content=raw, headers=headers)

    assert answer.json()["decision"] == "proceed"
    assert (await shown(rig, run, answer.json()["step_id"]))["args"] == body


@asynccontextmanager
async def serving(door: Door) -> AsyncIterator[httpx.AsyncClient]:
    running = asyncio.create_task(door.run())
    transport = httpx.ASGITransport(app=door)  # type: ignore[arg-type] - its scope is a plain dict
    try:
        await wait_until_async(door.is_ready, "the other door to be ready")
        async with httpx.AsyncClient(transport=transport, base_url="http://door", timeout=40) as client:
            yield client
    finally:
        running.cancel()
        await asyncio.wait((running,))


async def test_a_piece_of_another_execution_is_never_shown(memory: MemoryRig) -> None:
    mine, theirs = await memory.started(), await memory.started()
    step_id = await mine.proceed()
    await mine.complete_step(step_id, words(MIB))
    for shard in range(memory.settings.shards):
        bodies = memory.memory_log.bodies(shard)
        found = bodies.get(2)
        if found is not None:
            stored = await memory.memory_log.put_piece(
                Piece(shard, "default", theirs.execution_id, "of-theirs", found.payload), timeout_seconds=5
            )
            foreign = bodies.get(stored.seq)
            assert foreign is not None
            bodies.replace(replace(foreign, seq=2))

    response = await memory.call("GET", f"{mine.path}/steps/{step_id}")

    assert response.status_code >= 500


async def test_neighbours_are_answered_while_32_mib_come_in(memory: MemoryRig) -> None:
    large, small = await memory.started(), await memory.started()
    step_id = await large.proceed()
    storing = asyncio.ensure_future(large.complete_step(step_id, "x" * (31 * MIB)))
    answered = 0
    while not storing.done():
        await small.proceed(str(answered))
        answered += 1

    assert (await storing).status_code == 200
    assert answered > 3
