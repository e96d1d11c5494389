"""JSON values through the door: what is refused leaves no trace, what is accepted reads back as it was sent."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.support.door import Rig, Run, rig_in_memory

PLACES = ("input", "args", "result", "error", "output", "settle")


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    async with rig_in_memory() as rig:
        await rig.register()
        yield rig


async def put(rig: Rig, run: Run, step_id: str, place: str, value: bytes) -> httpx.Response:
    """Send a value in one of the places where a client's values stand."""
    match place:
        case "input":
            body = b'{"agent_id":"agent","input":' + value + b"}"
            return await rig.call("POST", "/v0/executions", content=body)
        case "args":
            body = b'{"kind":"tool_call","target":"t","args":' + value + b"}"
            return await run.send("POST", f"{run.path}/steps", body)
        case "result":
            return await run.send("POST", f"{run.path}/steps/{step_id}/complete", b'{"result":' + value + b"}")
        case "error":
            return await run.send("POST", f"{run.path}/steps/{step_id}/fail", b'{"error":' + value + b"}")
        case "output":
            return await run.send("POST", f"{run.path}/complete", b'{"output":' + value + b"}")
        case _:
            settle = b'"settle":[{"step_id":"%s","result":%s}]' % (step_id.encode(), value)
            body = b'{"kind":"tool_call","target":"t",' + settle + b"}"
            return await run.send("POST", f"{run.path}/steps", body)


REFUSED = {
    "nan": b"NaN",
    "infinity": b"[1,Infinity]",
    "minus infinity": b'{"a":-Infinity}',
    "1e400": b'{"a":[1e400]}',
    "-1e400": b"-1e400",
    "long integer": b"1" + b"0" * 400,
    "lone high": b'"\\ud800"',
    "lone low": b'{"\\udc00":1}',
    "raw surrogate": b'"\xed\xa0\x80"',
    "invalid utf-8": b'"\xff"',
    "overlong": b'"\xc0\x80"',
    "control": b'"\x00"',
    "leading zero": b"01",
    "trailing comma": b"[1,]",
    "single quotes": b"'a'",
}


# In an error a lone surrogate is replaced instead.
REFUSALS = [(place, name) for place in PLACES for name in REFUSED if (place, name[:4]) != ("error", "lone")]


@pytest.mark.parametrize(("place", "name"), REFUSALS)
async def test_what_is_no_json_value_is_refused_everywhere_without_a_trace(rig: Rig, place: str, name: str) -> None:
    run = await rig.started()
    step_id = await run.proceed()
    count = len(await rig.events(run.execution_id))
    response = await put(rig, run, step_id, place, REFUSED[name])
    assert (response.status_code, response.json()["code"]) == (400, "validation_error"), response.text
    assert response.json()["details"]["path"].startswith(place), response.text
    assert len(await rig.events(run.execution_id)) == count
    assert len((await rig.call("GET", "/v0/executions")).json()["executions"]) == 1
    # The counter of the call has not moved either.
    clean = await run.submit()
    step = (await rig.call("GET", f"{run.path}/steps/{clean.json()['step_id']}")).json()
    assert step["occurrence"] == 1


async def test_a_lone_surrogate_in_an_error_is_replaced(rig: Rig) -> None:
    run = await rig.started()
    first, second, third = [await run.proceed(target) for target in ("a", "b", "c")]
    await put(rig, run, first, "error", b'{"message":"x\\ud800y"}')
    await put(rig, run, second, "error", b'"\\udfff"')
    settle = b'"settle":[{"step_id":"%s","error":{"m":"\\ud800"}}]' % third.encode()
    await run.send("POST", f"{run.path}/fail", b'{"error":"agent_error: \\ud83d",' + settle + b"}")
    steps = {step["step_id"]: step["error"] for step in (await rig.call("GET", f"{run.path}/steps")).json()}
    assert steps == {first: {"message": "x\ufffdy"}, second: {"message": "\ufffd"}, third: {"m": "\ufffd"}}
    assert (await rig.call("GET", run.path)).json()["failure_reason"] == "agent_error: \ufffd"
    assert len(await rig.events(run.execution_id)) > 3


def nested(depth: int) -> bytes:
    """Return a value that makes the whole body so deep."""
    return b'{"a":' * (depth - 2) + b"[]" + b"}" * (depth - 2)


@pytest.mark.parametrize("place", PLACES)
async def test_512_containers_are_accepted_and_513_refused(rig: Rig, place: str) -> None:
    run = await rig.started()
    step_id = await run.proceed()
    extra = 2 if place == "settle" else 0
    refused = await put(rig, run, step_id, place, nested(513 - extra))
    assert refused.status_code == 400, refused.text
    accepted = await put(rig, run, step_id, place, nested(512 - extra))
    assert accepted.status_code in (200, 201, 204), accepted.text
    for path in (run.path, f"{run.path}/steps", f"{run.path}/events", "/v0/executions"):
        assert (await rig.call("GET", path)).status_code == 200


@pytest.mark.parametrize("depth", [1_000, 100_000, 2_000_000])
async def test_a_deeper_body_is_refused_at_once(rig: Rig, depth: int) -> None:
    run = await rig.started()
    for body in (b"[" * depth, b'{"kind":"local","target":"t","args":' + b"[" * depth, b'{"a":' * (depth // 5)):
        async with asyncio.timeout(2):
            response = await run.send("POST", f"{run.path}/steps", body)
        assert response.status_code == 400, response.text


@pytest.mark.parametrize(
    "literal",
    [
        b"9007199254740992",
        b"9007199254740993",
        b"18446744073709551616",
        b"123456789012345678901234567890",
        b"1",
        b"1.0",
        b"1e0",
        b"1E0",
        b"-0",
        b"0",
        b"1e21",
        b"1.50",
        b"true",
        b'"1"',
        b'"\\u0000"',
        '"e\u0301é\u00e9"'.encode(),
    ],
)
async def test_a_literal_reads_back_as_it_was_sent(rig: Rig, literal: bytes) -> None:
    run = await rig.started()
    value = b'{"z":' + literal + b',"a":[' + literal + b"]}"
    submitted = await put(rig, run, "", "args", value)
    step_id = submitted.json()["step_id"]
    await put(rig, run, step_id, "result", value)
    step = await rig.call("GET", f"{run.path}/steps/{step_id}")
    assert b'"args":' + value in step.content
    assert b'"result":' + value in step.content
    await rig.expire(run)
    run.lease = await rig.claim(run.execution_id)
    assert b'"result":' + value in (await put(rig, run, "", "args", value)).content


async def test_values_that_differ_never_share_a_step(rig: Rig) -> None:
    run = await rig.started()
    literals = [b"1", b"1.0", b"1e0", b"true", b'"1"', b"-0", b"0", b"null", b"9007199254740992", b"9007199254740993"]
    literals += ['"é"'.encode(), '"e\u0301"'.encode()]
    ids = [(await put(rig, run, "", "args", b'{"n":' + literal + b"}")).json()["step_id"] for literal in literals]
    hashes = {
        step["args_hash"] for step in (await rig.call("GET", f"{run.path}/steps")).json() if step["step_id"] in ids
    }
    assert len(hashes) == len(literals)


async def test_of_duplicate_members_the_last_is_hashed_recorded_and_answered(rig: Rig) -> None:
    run = await rig.started()
    body = b'{"kind":"local","target":"a","args":{"x":1,"n":2,"\\u0078":3},"target":"b"}'
    step_id = (await run.send("POST", f"{run.path}/steps", body)).json()["step_id"]
    step = await rig.call("GET", f"{run.path}/steps/{step_id}")
    assert b'"args":{"x":3,"n":2}' in step.content
    assert step.json()["target"] == "b"
    same = await run.send("POST", f"{run.path}/steps", b'{"kind":"local","target":"b","args":{"n":2,"x":3}}')
    other = (await rig.call("GET", f"{run.path}/steps/{same.json()['step_id']}")).json()
    assert (other["args_hash"], other["occurrence"]) == (step.json()["args_hash"], 1)


@pytest.mark.parametrize("body", [b"\xef\xbb\xbf{}", b"{}x", b"{}{}", b"[]", b"null", b"1", b'"x"', b" ", b"\x00"])
async def test_a_body_that_is_not_one_object_is_refused_on_every_route(rig: Rig, body: bytes) -> None:
    run = await rig.started()
    step_id = await run.proceed()
    signed = ["/steps", f"/steps/{step_id}/complete", f"/steps/{step_id}/fail", "/heartbeat", "/complete", "/fail"]
    for part in signed:
        assert (await run.send("POST", run.path + part, body)).status_code == 400, part
    assert (await run.send("PUT", "/v0/agents/agent/metadata", body)).status_code == 400
    for path in ("/v0/executions", "/v0/agents", f"{run.path}/cancel"):
        assert (await rig.call("POST", path, content=body)).status_code == 400, path


async def test_unknown_members_are_ignored_on_every_route(rig: Rig) -> None:
    extra = {"x": {"y": [1]}, "": None, "resources": ["r"], "captures": [1], "capture_failures": "no"}
    run = await rig.started(**extra)
    step_id = await run.proceed(**extra)
    steps = f"{run.path}/steps/{step_id}"
    assert (await run.send("POST", f"{steps}/complete", {"result": 1, **extra})).status_code == 200
    assert (await run.send("POST", f"{run.path}/heartbeat", extra)).status_code == 204
    assert (await run.send("PUT", "/v0/agents/agent/metadata", extra)).status_code == 204
    assert (await run.send("POST", f"{run.path}/complete", {"output": 1, **extra})).status_code == 204
    other = await rig.started()
    assert (await rig.call("POST", f"{other.path}/cancel", json=extra)).status_code == 204


async def test_a_zero_character_is_an_ordinary_one_everywhere(rig: Rig) -> None:
    run = await rig.started()
    step_id = await run.proceed("t\x00", {"a\x00": "\x00"})
    await run.fail_step(step_id, {"message": "\x00"})
    step = (await rig.call("GET", f"{run.path}/steps/{step_id}")).json()
    assert (step["target"], step["args"], step["error"]) == ("t\x00", {"a\x00": "\x00"}, {"message": "\x00"})
    assert any(event["payload"].get("target") == "t\x00" for event in await rig.events(run.execution_id))


async def test_200_000_members_are_no_trouble(rig: Rig) -> None:
    run = await rig.started()
    args = {f"k{number}": number for number in range(200_000)}
    async with asyncio.timeout(10):
        step_id = await run.proceed(args=args)
        step = (await rig.call("GET", f"{run.path}/steps/{step_id}")).json()
    assert step["args"] == args
