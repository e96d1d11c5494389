"""No request whatever is answered 500, or without the envelope."""

import random
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest_asyncio

from kernel.door.routes import ROUTES, Route
from tests.support.door import API_KEY, MemoryRig, Run, rig_in_memory

REQUESTS = 1500
CODES = {
    400: "validation_error",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "payload_too_large",
    429: "rate_limited",
}
CONFLICTS = {"conflict", "execution_terminal", "lease_superseded"}
NAMES = [
    "agent_id",
    "input",
    "idempotency_key",
    "session",
    "kind",
    "target",
    "args",
    "idempotency",
    "settle",
    "resources",
    "result",
    "usage",
    "error",
    "output",
    "state",
    "id",
    "webhook_url",
    "secret",
    "next_secret",
    "require_v1",
    "max_concurrency",
    "description",
    "input_schema",
    "output_schema",
    "step_id",
]
WORDS = ("", "agent", "tool_call", "local", "at_most_once", "x" * 2000, "é🙂\x00", "http://8.8.8.8/", "0", "-1", "null")
QUERY_NAMES = ("limit", "cursor", "status", "agent_id", "after_seq", "created_after", "created_before", "wait", "x")
QUERY_VALUES = ("", "0", "1", "-1", "x", "9" * 40, "running", "2026-01-01T00:00:00Z", "%ff", "é", "a&b", "terminal")
RAW_BODIES = (b"", b"{", b"[]", b"null", b"\xff", b"\xef\xbb\xbf{}", b"{}{}", b"{" * 3000, b"NaN", b'{"a":1e999}')


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[MemoryRig]:
    async with rig_in_memory(body_bytes_max=8192) as rig:
        await rig.register()
        yield rig


class Fuzz:
    """Random requests over all routes, more often nearly right than plainly wrong."""

    def __init__(self, seed: int, run: Run, step_id: str) -> None:
        self.random = random.Random(seed)
        self.run = run
        self.step_id = step_id

    def value(self, depth: int = 0) -> Any:
        kind = self.random.randrange(9 if depth < 3 else 6)
        match kind:
            case 0 | 1 | 2:
                return self.random.choice((*WORDS, self.step_id, self.run.execution_id))
            case 3:
                return self.random.choice((0, 1, -1, 2**63, 10**30, 1.5, True, False))
            case 4 | 5:
                return None
            case 6:
                return [self.value(depth + 1) for _ in range(self.random.randrange(3))]
            case _:
                return {self.random.choice(NAMES): self.value(depth + 1) for _ in range(self.random.randrange(4))}

    def body(self) -> bytes:
        if self.random.random() < 0.2:
            return self.random.choice(RAW_BODIES)
        members = {name: self.value() for name in self.random.sample(NAMES, self.random.randrange(6))}
        usual = {"agent_id": "agent", "kind": "local", "target": "t", "error": "x", "id": "b", "secret": "s" * 16}
        body = msgspec.json.encode((usual if self.random.random() < 0.6 else {}) | members)
        return body if self.random.random() < 0.97 else body + b" " * 9000

    def path(self, route: Route) -> str:
        segments = {
            "execution_id": (
                self.run.execution_id,
                self.run.execution_id.upper(),
                "0199aaaa-0000-7000-8000-0000000000ff",
                "x",
            ),
            "step_id": (self.step_id, "ab" * 32, "%C3%A9", "x" * 300),
            "agent_id": ("agent", "nobody", "%00", "a%2Fb"),
        }
        path = re.sub(r"{(\w+)}", lambda match: self.random.choice(segments.get(match[1], ("x",))), route.path)
        if self.random.random() < 0.05:
            path += self.random.choice(("/", "//", "/x", "/%2e%2e", "?"))
        if self.random.random() < 0.4:
            pairs = [f"{self.random.choice(QUERY_NAMES)}={self.random.choice(QUERY_VALUES)}" for _ in range(2)]
            path += "?" + "&".join(pairs).replace("wait=1", "wait=0")
        return path

    def headers(self, method: str, target: str, body: bytes) -> list[tuple[bytes, bytes]]:
        headers = self.run.headers(method, target, body) if self.random.random() < 0.7 else {}
        if self.random.random() < 0.6:
            headers["authorization"] = f"Bearer {API_KEY}"
        if self.random.random() < 0.2:
            headers["idempotency-key"] = self.random.choice(("k", "", "a b", "x" * 300))
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        if self.random.random() < 0.1:
            name = self.random.choice(
                (b"rebuno-dispatch-id", b"rebuno-dispatch-attempt", b"rebuno-tenant", b"content-encoding")
            )
            raw.append((name, self.random.choice((b"", b"\xe9", b"x", b"1", b"gzip"))))
        return raw

    async def send(self, client: httpx.AsyncClient) -> httpx.Response:
        route = self.random.choice(ROUTES)
        method = (
            route.method if self.random.random() < 0.9 else self.random.choice(("GET", "POST", "PUT", "DELETE", "X"))
        )
        body = b"" if method == "GET" and self.random.random() < 0.9 else self.body()
        request = client.build_request(method, self.path(route), content=body)
        # Signed as httpx will send it.
        request.headers = httpx.Headers(self.headers(method, request.url.raw_path.decode(), body))
        request.headers["content-length"] = str(len(body))
        return await client.send(request)


async def test_no_request_is_answered_with_a_fault_of_ours(rig: MemoryRig, seed: int) -> None:
    run = await rig.started()
    fuzz = Fuzz(seed, run, await run.proceed())
    statuses: dict[int, int] = {}
    for number in range(REQUESTS):
        if number % 100 == 99:
            # What it works on may have ended, and its agent may be gone.
            await rig.register()
            fuzz.run = await rig.started()
            fuzz.step_id = await fuzz.run.proceed()
        response = await fuzz.send(rig.client)
        statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        if response.status_code < 300:
            continue
        told = f"{response.request.method} {response.request.url} {response.request.content!r}: {response.text}"
        assert response.status_code != 500, told
        assert response.headers["content-type"] == "application/json; charset=utf-8", told
        envelope = response.json()
        assert set(envelope) <= {"code", "message", "details"}, told
        assert isinstance(envelope["message"], str), told
        if response.status_code == 409:
            assert envelope["code"] in CONFLICTS, told
        else:
            assert envelope["code"] == CODES[response.status_code], told
    assert statuses.keys() >= {200, 201, 204, 400, 401, 404, 405, 413}, statuses
