"""K11: whatever is sent, the answer is no 500 and comes in the envelope."""

import asyncio
import json

import pytest

from tests.conformance.harness.answers import CODES, JSON_TYPE, accepted
from tests.conformance.harness.fuzzing import Fuzzer
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.routes import Scene
from tests.conformance.harness.wire import WireAnswer, exchange

REQUESTS = 1500
AT_ONCE = 8
_OTHER_TYPES = ("text/html", "text/plain")


def _fault(answer: WireAnswer, *, is_head: bool) -> str:
    """What is wrong with an answer to a request that is HTTP; "" for nothing."""
    if answer.status in {200, 201, 204}:
        return _fault_of_success(answer)
    if answer.status not in CODES or answer.status >= 500:
        return f"status {answer.status}"
    if is_head:
        return ""
    if answer.headers.get("content-type") != JSON_TYPE:
        # What a parser of HTTP refuses gets a bare 400 and a closed connection.
        return "" if answer.status == 400 and answer.is_closed else "no envelope"
    found = json.loads(answer.body)
    if found.get("code") not in CODES[answer.status] or not isinstance(found.get("message"), str):
        return f"envelope {answer.body[:200]!r}"
    if not found.keys() <= {"code", "message", "details"} or not isinstance(found.get("details", {}), dict):
        return f"envelope {answer.body[:200]!r}"
    return ""


def _fault_of_success(answer: WireAnswer) -> str:
    if answer.status == 204:
        return "a body with 204" if answer.body else ""
    if answer.headers.get("content-type", "").startswith(_OTHER_TYPES):
        return ""
    json.loads(answer.body)
    return "" if answer.headers.get("content-type") == JSON_TYPE else "type of a success"


async def test_k11_no_request_is_answered_500_or_without_the_envelope(kernel: Kernel, seed: int) -> None:
    agent = await kernel.agent()
    scenes = [await Scene.of(kernel, agent) for _ in range(6)]
    accepted(await scenes[0].lease.complete_execution(), 204)
    fuzzer = Fuzzer(seed, scenes)
    requests = [fuzzer.request() for _ in range(REQUESTS)]
    slots = asyncio.Semaphore(AT_ONCE)
    statuses: list[int] = []

    async def send(data: bytes, is_head: bool) -> str:
        async with slots:
            answer = await exchange(kernel.url, data, is_head=is_head)
        statuses.append(answer.status)
        fault = _fault(answer, is_head=is_head)
        return f"{fault}: {data[:600]!r}" if fault else ""

    found = await asyncio.gather(*(send(*request) for request in requests))

    assert [fault for fault in found if fault] == []
    # The run has got past the first checks, and has not only been refused.
    assert {200, 400, 401, 404, 405, 409} <= set(statuses)
    await _cancel_all(kernel, agent.id)
    further = await (await kernel.agent()).start()
    await further.done()
    accepted(await further.complete_execution(), 204)


NO_HTTP = {
    "random bytes": b"\x00\x01\x02\xff\xfe\r\n\r\n",
    "a greeting of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.0\r\n\r\n",
    "no target": b"GET\r\n\r\n",
    "a space in the target": b"GET /v0/he alth HTTP/1.1\r\nHost: x\r\n\r\n",
    "a control character in the target": b"GET /v0/\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a header without a colon": b"GET /v0/health HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n",
    "a header without a name": b"GET /v0/health HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n",
    "a space in a header's name": b"GET /v0/health HTTP/1.1\r\nHost: x\r\nA B: y\r\n\r\n",
    "a NUL in a header": b"GET /v0/health HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n",
    "a length that is no number": b"POST /v0/agents HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    "a negative length": b"POST /v0/agents HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"POST /v0/agents HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a chunk without a size": b"POST /v0/agents HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
}


@pytest.mark.parametrize("name", NO_HTTP)
async def test_k11_bytes_that_are_no_http_get_a_400_and_a_closed_connection(kernel: Kernel, name: str) -> None:
    answer = await exchange(kernel.url, NO_HTTP[name])

    assert answer.status == 400
    assert answer.is_closed
    accepted(await kernel.get("/v0/health"))


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", b"2\r\n{}\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: gzip, chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n", b"{}"),
        (b"Expect: 100-continue\r\nContent-Length: 2\r\n", b"{}"),
        (b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: 2\r\n", b"{}"),
        (b"X: " + b"y" * 50_000 + b"\r\nContent-Length: 2\r\n", b"{}"),
        (b"".join(b"X-%d: y\r\n" % n for n in range(500)) + b"Content-Length: 2\r\n", b"{}"),
    ],
)
async def test_k11_an_odd_frame_is_answered_in_the_envelope_or_refused(
    kernel: Kernel, headers: bytes, body: bytes
) -> None:
    head = b"POST /v0/agents HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + kernel.api_key.encode() + b"\r\n"

    answer = await exchange(kernel.url, head + headers + b"\r\n" + body)

    assert _fault(answer, is_head=False) == ""
    assert answer.status == 400


async def _cancel_all(kernel: Kernel, agent_id: str) -> None:
    """What the run created without being told, too."""
    page = accepted(await kernel.get("/v0/executions", agent_id=agent_id, status="running", limit=200))
    await asyncio.gather(*(kernel.cancel(execution["id"]) for execution in page["executions"]))
