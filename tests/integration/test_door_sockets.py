"""The door behind its HTTP server: what only shows on a real connection."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from kernel.listener import Listener
from tests.support.door import API_KEY, MemoryRig, Run, rig_in_memory
from tests.support.wait import wait_until_async

BODY_BYTES_MAX = 1024 * 1024
AUTHORIZATION = f"Authorization: Bearer {API_KEY}\r\n".encode()


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[MemoryRig]:
    async with rig_in_memory(body_bytes_max=BODY_BYTES_MAX, budget_seconds=3.0) as rig:
        await rig.register()
        yield rig


@pytest_asyncio.fixture
async def port(rig: MemoryRig) -> AsyncIterator[int]:
    listener = Listener(host="127.0.0.1", port=0)
    serving = asyncio.create_task(listener.run(rig.door))
    yield listener.port
    listener.stop()
    await asyncio.wait((serving,))


class Wire:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the next response."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head[1:] if line}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, body


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


def post(path: str, *, length: int | None, extra: bytes = b"") -> bytes:
    framing = b"Transfer-Encoding: chunked\r\n" if length is None else b"Content-Length: %d\r\n" % length
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode() + framing + extra + b"\r\n"


async def test_a_body_announced_above_the_limit_is_refused_unread_and_the_connection_lives(port: int) -> None:
    async with connected(port) as wire:
        wire.write(post("/v0/executions", length=BODY_BYTES_MAX + 1))
        status, _, body = await wire.answer()
        assert (status, json.loads(body)["code"]) == (413, "payload_too_large")
        # A client that sends its body all the same is not cut off before it has read the answer.
        wire.write(b"x" * (BODY_BYTES_MAX + 1))
        wire.write(b"GET /v0/health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await wire.answer())[0] == 200


async def test_a_chunked_body_above_the_limit_is_refused_while_it_is_read(port: int) -> None:
    async with connected(port) as wire:
        wire.write(post("/v0/executions", length=None))
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        for _ in range(BODY_BYTES_MAX // 0x10000 + 1):
            wire.write(chunk)
        status, _, body = await wire.answer()
        assert (status, json.loads(body)["code"]) == (413, "payload_too_large")


async def test_a_chunked_body_at_the_limit_is_read(port: int) -> None:
    body = b'{"agent_id":"agent","input":"' + b"x" * 100_000 + b'"}'
    async with connected(port) as wire:
        wire.write(post("/v0/executions", length=None, extra=AUTHORIZATION))
        for start in range(0, len(body), 1000):
            part = body[start : start + 1000]
            wire.write(b"%x\r\n%b\r\n" % (len(part), part))
        wire.write(b"0\r\n\r\n")
        assert (await wire.answer())[0] == 201


async def test_a_body_that_never_comes_is_given_up(port: int) -> None:
    async with connected(port) as wire:
        wire.write(post("/v0/executions", length=10, extra=AUTHORIZATION) + b"{")
        status, _, body = await wire.answer()
        assert (status, json.loads(body)["code"]) == (400, "validation_error")


async def test_a_client_that_waits_for_a_go_ahead_gets_it_only_for_a_body_that_is_wanted(port: int) -> None:
    expect = AUTHORIZATION + b"Expect: 100-continue\r\n"
    async with connected(port) as wire:
        wire.write(post("/v0/executions", length=BODY_BYTES_MAX + 1, extra=expect))
        assert (await wire.answer())[0] == 413
    async with connected(port) as wire:
        body = b'{"agent_id":"agent"}'
        wire.write(post("/v0/executions", length=len(body), extra=expect))
        assert (await wire.answer())[0] == 100
        wire.write(body)
        assert (await wire.answer())[0] == 201


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"NO\r\n\r\n",
        b"GET /v0/health\r\n\r\n",
    ],
)
async def test_bytes_that_are_not_http_get_a_bare_400_and_a_closed_connection(port: int, raw: bytes) -> None:
    async with connected(port) as wire:
        wire.write(raw)
        async with asyncio.timeout(10):
            answer = await wire.reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")


async def test_every_answer_has_its_length_and_a_204_has_nothing(port: int, rig: MemoryRig) -> None:
    execution_id = await rig.create()
    async with connected(port) as wire:
        wire.write(b"GET /v0/executions HTTP/1.1\r\nHost: x\r\n" + AUTHORIZATION + b"\r\n")
        status, headers, body = await wire.answer()
        assert (status, headers["content-type"]) == (200, "application/json; charset=utf-8")
        assert json.loads(body)["executions"][0]["id"] == execution_id
        wire.write(post(f"/v0/executions/{execution_id}/cancel", length=0, extra=AUTHORIZATION))
        status, headers, body = await wire.answer()
        assert (status, body) == (204, b"")
        assert not {"content-type", "transfer-encoding"} & headers.keys()
        wire.write(b"HEAD /v0/health HTTP/1.1\r\nHost: x\r\n\r\nGET /v0/health HTTP/1.1\r\nHost: x\r\n\r\n")
        head = (await wire.reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("HTTP/1.1 405 ")
        assert (await wire.answer())[2] == b'{"status":"ok"}'


async def test_a_client_that_leaves_does_not_lose_its_entry(port: int, rig: MemoryRig) -> None:
    # Given a log whose acknowledgements nobody hears, and a projector that is told nothing
    run = await rig.started()
    rig.memory_log.go_offline()
    body = b'{"kind":"tool_call","target":"t"}'
    target = f"{run.path}/steps"
    lines = "".join(f"{name}: {value}\r\n" for name, value in run.headers("POST", target, body).items())
    # When the client goes away before its entry could be sent
    async with connected(port) as wire:
        wire.write(post(target, length=len(body), extra=lines.encode()) + body)
        await wait_until_async(lambda: _in_flight(rig) == 1, "the request to wait for the log")
    rig.memory_log.come_back()

    # Then it is sent and folded all the same
    async def is_folded() -> bool:
        return (await rig.header(run.execution_id)).step_count == 1

    await wait_until_async(is_folded, "the submission to be folded")
    await wait_until_async(lambda: _in_flight(rig) == 0, "the request to be over")


def _in_flight(rig: MemoryRig) -> int:
    return rig.door.in_flight


async def test_answers_go_to_the_requests_they_belong_to(port: int, rig: MemoryRig) -> None:
    await rig.register("other", secret="another-secret-of-an-agent")
    runs = [await rig.started(), await rig.started("other")]
    runs[1].secret = "another-secret-of-an-agent"

    async def submit(run: Run, number: int) -> None:
        response = await run.submit(f"{run.agent_id}-{number}", {"n": number})
        step = (await rig.call("GET", f"{run.path}/steps/{response.json()['step_id']}")).json()
        assert (step["execution_id"], step["target"]) == (run.execution_id, f"{run.agent_id}-{number}")

    async def leave(run: Run, number: int) -> None:
        """Send a request and go away at some point of its way."""
        body = b'{"kind":"local","target":"left-%d"}' % number
        lines = run.headers("POST", f"{run.path}/steps", body).items()
        async with connected(port) as wire:
            extra = "".join(f"{name}: {value}\r\n" for name, value in lines).encode()
            wire.write(post(f"{run.path}/steps", length=len(body), extra=extra) + body[: number % len(body)])
            await wire.writer.drain()

    work = [submit(run, number) for run in runs for number in range(40)]
    work += [leave(run, number) for run in runs for number in range(40)]
    await asyncio.gather(*work)
