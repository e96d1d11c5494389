"""K12 to K16: the two signature schemes, what they cover, and when they are refused."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from tests.conformance.harness.agent import Agent
from tests.conformance.harness.answers import accepted, envelope
from tests.conformance.harness.calls import (
    AGENT_ID,
    ATTEMPT,
    DISPATCH_ID,
    SIGNATURE,
    TIMESTAMP,
    Call,
    sha256_signature,
    v1_signature,
)
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.routes import AGENT_ROUTES, BY_NAME, UNKNOWN_ID, Route, Scene
from tests.conformance.harness.wire import exchange, request_bytes

ALPHA = "/v0/executions/alpha"
DISPATCH = "01920000-0000-7000-8000-000000000001"
V1_VECTORS = (
    (
        "test-secret",
        {"method": "GET", "target": ALPHA, "timestamp": "1700000000"},
        "v1=d0f262ef4226bcdf886ec35a7ce4cf77286055b563078faca8b307caa8ca5839",
    ),
    (
        "test-secret",
        {
            "method": "POST",
            "target": f"{ALPHA}/heartbeat",
            "timestamp": "1700000000",
            "dispatch_id": DISPATCH,
            "attempt": "3",
        },
        "v1=63a3e161395bd65728afa785799ddb9e52c01f8e0a61d1d6a4089f582d334b0e",
    ),
    (
        "test-secret",
        {
            "method": "POST",
            "target": "/prefix/v0/executions/alpha%2Fbeta/steps?x=a%20b&x=%2F",
            "timestamp": "1700000000",
            "dispatch_id": DISPATCH,
            "attempt": "3",
            "body": '{"text":"héllo € 🙂\\n"}'.encode(),
        },
        "v1=08e2b66ec89c95a677798a9aa048949c38668f770f28a2beede0591e2860820b",
    ),
    (
        "k1",
        {
            "method": "POST",
            "target": f"/v0/executions/{UNKNOWN_ID}/heartbeat",
            "timestamp": "1760000000",
            "dispatch_id": "0199aaaa-0000-7000-8000-000000000001",
            "attempt": "2",
        },
        "v1=b4c9474c5d6c24a161458e52a8a7c4ac4539179efc4f38f0c7a492a3ebd93119",
    ),
)
SHA256_VECTORS = (
    (b"", "sha256=a41bc6d81d6413576ae0994995e0ad89a416ec97389515c3604f47722122eeeb"),
    (b'{"result":1}', "sha256=2cdbfa6e42df2a3bc554ce746feda964ecb7d9e10bd5b01ecc8199744328aed0"),
)


@pytest.mark.parametrize(("secret", "parts", "signature"), V1_VECTORS)
def test_k12_the_recipe_reproduces_the_v1_vectors(secret: str, parts: dict[str, Any], signature: str) -> None:
    assert v1_signature(secret, **parts) == signature


@pytest.mark.parametrize(("body", "signature"), SHA256_VECTORS)
def test_k12_the_recipe_reproduces_the_sha256_vectors(body: bytes, signature: str) -> None:
    assert sha256_signature("test-secret", body) == signature


@pytest.mark.parametrize("scheme", ["v1", "sha256"])
@pytest.mark.parametrize("route", [*AGENT_ROUTES, BY_NAME["get_execution"], BY_NAME["get_step"]], ids=lambda r: r.name)
async def test_k12_a_request_signed_by_the_recipe_is_accepted(kernel: Kernel, route: Route, scheme: str) -> None:
    scene = await Scene.of(kernel)

    call = scene.unsigned(route).signed(scene.agent.id, scene.agent.secret, scheme=scheme)

    assert (await kernel.send(call)).status_code in {200, 204}


@pytest.mark.parametrize(
    "query",
    [
        "?",
        "?x=a%20b&x=%2F",
        "?x=a+b",
        "?x=%2f&X=%2F",
        "?x=1&&y",
        "?%F0%9F%99%82=%00",
        "?x='()*!~",
        "?x=a/b?c:d@e,f;g$h",
    ],
)
async def test_k12_the_target_is_signed_exactly_as_it_is_sent(kernel: Kernel, query: str) -> None:
    scene = await Scene.of(kernel)
    for name in ("submit", "get_execution"):
        route = BY_NAME[name]
        unsigned = scene.unsigned(route)
        call = unsigned.but(target=unsigned.target + query).signed(scene.agent.id, scene.agent.secret)

        answer = await exchange(kernel.url, request_bytes(call))

        assert answer.status == 200, answer.body


async def test_k12_text_beyond_ascii_is_signed_as_the_bytes_of_the_body(kernel: Kernel) -> None:
    scene = await Scene.of(kernel)
    body = '{"kind":"tool_call","target":"t","args":{"text":"héllo € 🙂\\n"} }'.encode()

    for scheme in ("v1", "sha256"):
        accepted(await scene.lease.request("/steps", body, scheme=scheme))


async def test_k12_a_secret_is_its_utf8_bytes(kernel: Kernel) -> None:
    agent = await kernel.agent(secret="sécret € 🙂 of at least sixteen bytes")
    agent.secret = "sécret € 🙂 of at least sixteen bytes"

    accepted(await (await agent.start()).heartbeat(), 204)


def _altered(call: Call, other: Scene) -> dict[str, Call]:
    """The same signed request, one part of it changed after the signature was made."""
    changes = {
        "query": call.but(target=f"{call.target}?x=1"),
        "timestamp": call.with_headers({TIMESTAMP: str(int(call.headers[TIMESTAMP]) + 1)}),
        "timestamp spelled otherwise": call.with_headers({TIMESTAMP: "0" + call.headers[TIMESTAMP]}),
        "case of the path": call.but(target=call.target.replace(other.execution_id, other.execution_id.upper())),
        "signature": call.with_headers({SIGNATURE: _flipped(call.headers[SIGNATURE])}),
        "half of the signature": call.with_headers({SIGNATURE: call.headers[SIGNATURE][:35]}),
        "case of the signature": call.with_headers({SIGNATURE: "v1=" + call.headers[SIGNATURE][3:].upper()}),
        "agent": call.with_headers({AGENT_ID: other.agent.id.upper()}),
    }
    if DISPATCH_ID in call.headers:
        changes |= {
            "dispatch id": call.with_headers({DISPATCH_ID: UNKNOWN_ID}),
            "no dispatch id": call.without_headers(DISPATCH_ID),
            "attempt": call.with_headers({ATTEMPT: "2"}),
            "attempt spelled otherwise": call.with_headers({ATTEMPT: "01"}),
            "no attempt": call.without_headers(ATTEMPT),
        }
    return changes


def _flipped(signature: str) -> str:
    return signature[:-1] + ("0" if signature[-1] != "0" else "1")


@pytest.mark.parametrize("route", AGENT_ROUTES, ids=lambda route: route.name)
async def test_k13_v1_covers_method_target_time_and_lease(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)
    call = scene.call(route)
    before = await kernel.trace(scene.execution_id)

    for label, altered in _altered(call, scene).items():
        if altered.target == call.target and dict(altered.headers) == dict(call.headers):
            continue
        response = await kernel.send(altered)
        assert response.status_code == 401, f"{label}: {response.status_code} {response.text}"
        envelope(response, 401, "unauthorized")

    assert await kernel.trace(scene.execution_id) == before
    assert (await kernel.send(call)).status_code in {200, 204}


async def test_k13_v1_covers_the_path_and_the_method_of_another_request(kernel: Kernel) -> None:
    scene = await Scene.of(kernel)
    other = await Scene.of(kernel, scene.agent)
    complete = scene.call(BY_NAME["complete_step"], body=b"{}")

    envelope(await kernel.send(complete.but(target=f"/v0/executions/{scene.execution_id}/complete")), 401)
    envelope(await kernel.send(complete.but(target=other.target(BY_NAME["complete_step"]))), 401)
    reading = scene.call(BY_NAME["list_steps"])
    envelope(await kernel.send(reading.but(method="POST").with_headers(scene.unsigned(BY_NAME["submit"]).headers)), 401)


@pytest.mark.parametrize("scheme", ["v1", "sha256"])
@pytest.mark.parametrize("route", [r for r in AGENT_ROUTES if r.takes_body], ids=lambda route: route.name)
async def test_k13_one_changed_byte_of_the_body_is_401(kernel: Kernel, route: Route, scheme: str) -> None:
    scene = await Scene.of(kernel)
    before = await kernel.trace(scene.execution_id)
    call = scene.unsigned(route, body=b'{"kind":"local","target":"t","error":"abc"}')
    call = call.signed(scene.agent.id, scene.agent.secret, scheme=scheme)

    for body in (call.body.replace(b"abc", b"abd"), call.body + b" ", call.body[:-1], b"", b" " + call.body):
        envelope(await kernel.send(call.but(body=body)), 401, "unauthorized")

    assert await kernel.trace(scene.execution_id) == before
    assert (await kernel.send(call)).status_code in {200, 204}


async def _within_one_second(kernel: Kernel, call_at: Any) -> httpx.Response:
    """Send what `call_at` makes of the current second, until sending and answer fall into the same one."""
    for _ in range(20):
        second = int(time.time())
        response = await kernel.send(call_at(second))
        if int(time.time()) == second:
            return response
    raise AssertionError("no request was answered within the second in which it was sent")


@pytest.mark.parametrize(
    ("offset_seconds", "status"), [(-299, 204), (299, 204), (-300, 204), (300, 204), (-301, 401), (301, 401)]
)
async def test_k14_a_timestamp_may_be_300_seconds_off_and_no_more(
    kernel: Kernel, offset_seconds: int, status: int
) -> None:
    scene = await Scene.of(kernel)
    unsigned = scene.unsigned(BY_NAME["heartbeat"])

    def call_at(second: int) -> Call:
        return unsigned.signed(scene.agent.id, scene.agent.secret, timestamp=second + offset_seconds)

    assert (await _within_one_second(kernel, call_at)).status_code == status


@pytest.mark.parametrize("spelled", ["", "now", "+{}", "-{}", "{}.0", "{}e0", "{}x", "0x{}", "{}000", "{}_0", "1e9"])
async def test_k14_a_timestamp_that_is_not_decimal_is_401(kernel: Kernel, spelled: str) -> None:
    scene = await Scene.of(kernel)
    timestamp = spelled.format(int(time.time()))

    call = scene.unsigned(BY_NAME["heartbeat"]).signed(scene.agent.id, scene.agent.secret, timestamp=timestamp)

    envelope(await kernel.send(call), 401, "unauthorized")


async def test_k14_a_missing_timestamp_is_401_for_v1_and_nothing_to_sha256(kernel: Kernel) -> None:
    scene = await Scene.of(kernel)
    unsigned = scene.unsigned(BY_NAME["heartbeat"])

    v1 = unsigned.signed(scene.agent.id, scene.agent.secret, timestamp="").without_headers(TIMESTAMP)
    sha256 = unsigned.signed(scene.agent.id, scene.agent.secret, scheme="sha256").without_headers(TIMESTAMP)

    envelope(await kernel.send(v1), 401, "unauthorized")
    accepted(await kernel.send(sha256), 204)


async def test_k14_equal_requests_of_one_second_are_all_accepted(kernel: Kernel) -> None:
    scene = await Scene.of(kernel)
    call = scene.call(BY_NAME["submit"])

    responses = await asyncio.gather(*(kernel.send(call) for _ in range(5)))

    assert len({accepted(response)["step_id"] for response in responses}) == 5


def _unusable(call: Call, agent: Agent) -> dict[str, Call]:
    plain = call.headers[SIGNATURE].partition("=")[2]
    return {
        "unknown agent": call.with_headers({AGENT_ID: "nobody-of-this-name"}),
        "no agent": call.without_headers(AGENT_ID),
        "empty agent": call.with_headers({AGENT_ID: ""}),
        "odd agent": call.with_headers({AGENT_ID: "a b/c"}),
        "long agent": call.with_headers({AGENT_ID: "x" * 4000}),
        "no signature": call.without_headers(SIGNATURE),
        "no headers at all": call.without_headers(SIGNATURE, AGENT_ID, TIMESTAMP),
        "empty signature": call.with_headers({SIGNATURE: ""}),
        "no scheme": call.with_headers({SIGNATURE: plain}),
        "unknown scheme": call.with_headers({SIGNATURE: f"v2={plain}"}),
        "scheme in upper case": call.with_headers({SIGNATURE: f"V1={plain}"}),
        "older scheme": call.with_headers({SIGNATURE: f"sha1={plain}"}),
        "nothing after the scheme": call.with_headers({SIGNATURE: "v1="}),
        "nothing after sha256": call.with_headers({SIGNATURE: "sha256="}),
        "two signatures": call.with_headers({SIGNATURE: f"v1={plain},v1={plain}"}),
        "not hex": call.with_headers({SIGNATURE: "v1=" + "z" * 64}),
        "long signature": call.with_headers({SIGNATURE: "v1=" + "0" * 8000}),
        "another agent's secret": call.signed(agent.id, agent.secret + "x"),
    }


@pytest.mark.parametrize("route", AGENT_ROUTES, ids=lambda route: route.name)
async def test_k15_what_names_no_agent_or_no_known_scheme_is_one_401(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)

    answers = {label: await kernel.send(call) for label, call in _unusable(scene.call(route), scene.agent).items()}

    bodies = {response.content for response in answers.values()}
    assert {label for label, response in answers.items() if response.status_code != 401} == set()
    assert len(bodies) == 1
    envelope(answers["no signature"], 401, "unauthorized")


@pytest.mark.parametrize("value", [b"\xe9", b"v1=\xe9", b"v1=" + b"\xff" * 64, b"\x01", b"sha256=\xc3\xa9"])
async def test_k15_a_header_beyond_ascii_is_401_and_no_fault(kernel: Kernel, value: bytes) -> None:
    scene = await Scene.of(kernel)
    call = scene.call(BY_NAME["heartbeat"])

    for name in (SIGNATURE, AGENT_ID, TIMESTAMP):
        plain = request_bytes(call)
        line = f"{name}: {call.headers[name]}\r\n".encode()
        assert line in plain
        answer = await exchange(kernel.url, plain.replace(line, f"{name}: ".encode() + value + b"\r\n"))
        # A control character is not HTTP, and such a request gets a bare 400.
        assert answer.status == 400 if value == b"\x01" else answer.status == 401


async def test_k15_a_repeated_signature_header_is_not_one_of_them(kernel: Kernel) -> None:
    scene = await Scene.of(kernel)
    call = scene.call(BY_NAME["heartbeat"])
    wrong = f"{SIGNATURE}: v1={'0' * 64}\r\n".encode()

    for name in (SIGNATURE, AGENT_ID):
        head, _, rest = request_bytes(call).partition(f"{name}: ".encode())
        twice = head + (wrong if name == SIGNATURE else b"Rebuno-Agent-Id: nobody\r\n") + f"{name}: ".encode() + rest
        assert (await exchange(kernel.url, twice)).status == 401


async def test_k16_an_agent_that_requires_v1_refuses_sha256(kernel: Kernel) -> None:
    strict = await kernel.agent(require_v1=True)
    lease = await strict.start()
    step_id = await lease.proceed()
    before = await kernel.trace(lease.execution_id)

    envelope(await lease.request("/heartbeat", scheme="sha256"), 401, "unauthorized")
    envelope(await lease.request(f"/steps/{step_id}/complete", {"result": 1}, scheme="sha256"), 401, "unauthorized")
    envelope(await strict.request("GET", lease.path, scheme="sha256"), 401, "unauthorized")

    assert await kernel.trace(lease.execution_id) == before
    accepted(await lease.request("/heartbeat", scheme="v1"), 204)
    assert accepted(await kernel.get(f"/v0/agents/{strict.id}"))["require_v1"] is True


async def test_k16_by_default_both_schemes_are_accepted_and_the_choice_can_change(kernel: Kernel) -> None:
    agent = await kernel.agent()
    lease = await agent.start()
    assert accepted(await kernel.get(f"/v0/agents/{agent.id}"))["require_v1"] is False
    for scheme in ("v1", "sha256"):
        accepted(await lease.request("/heartbeat", scheme=scheme), 204)

    update = {"id": agent.id, "webhook_url": agent.endpoint.url}
    accepted(await kernel.post("/v0/agents", update | {"require_v1": True}))
    envelope(await lease.request("/heartbeat", scheme="sha256"), 401)
    # An absent optional field stays as it was.
    accepted(await kernel.post("/v0/agents", update))
    envelope(await lease.request("/heartbeat", scheme="sha256"), 401)
    accepted(await kernel.post("/v0/agents", update | {"require_v1": False}))
    accepted(await lease.request("/heartbeat", scheme="sha256"), 204)
