"""A20: requests that are lost, refused for now, or meet a door that is away are repeated, and are one request."""

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from kernel.domain.signatures import verify
from stepwell import APIError, ConflictError, KernelClient, Lease, LeaseSuperseded, NetworkError
from tests.support.peers import Connection, Peer, peer, refusing

SECRET = "a secret of an agent"
LEASE = Lease("0199aaaa-0000-7000-8000-0000000000ff", 3)
EXECUTION = "0199aaaa-0000-7000-8000-00000000aaaa"
PROCEED = b'{"decision":"proceed","step_id":"' + b"a" * 64 + b'"}'


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "", "")).encode() + body


def envelope(code: str) -> bytes:
    return b'{"code":"%b","message":"m"}' % code.encode()


class Request:
    """A request as it arrived."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def is_signed(self) -> bool:
        return verify(
            [SECRET.encode()],
            self.headers["rebuno-signature"],
            method=self.method,
            target=self.target,
            timestamp=self.headers["rebuno-timestamp"],
            dispatch_id=self.headers["rebuno-dispatch-id"],
            attempt=self.headers["rebuno-dispatch-attempt"],
            body=self.body,
            require_v1=True,
        )


@asynccontextmanager
async def door(*answers: bytes) -> AsyncIterator[Peer]:
    """A door that gives these answers in turn, one to a connection; an empty one is a connection that is cut."""
    left = list(answers)

    async def serve(connection: Connection) -> None:
        await connection.read_request()
        said = left.pop(0)
        if said:
            await connection.send(said)

    async with peer(serve) as found:
        yield found


@asynccontextmanager
async def client(*ports: int, path: str = "") -> AsyncIterator[KernelClient]:
    urls = [f"http://127.0.0.1:{port}{path}" for port in ports]
    kernel = KernelClient(agent_id="agent", secret=SECRET, base_url=urls, timeout=5)
    try:
        yield kernel
    finally:
        await kernel.close()


async def submit(kernel: KernelClient, *, give_up_seconds: float = 10) -> str:
    decision = await kernel.submit_step(
        EXECUTION, lease=LEASE, kind="tool_call", target="t", args={"n": 1}, give_up_seconds=give_up_seconds
    )
    return decision.decision


async def test_a20_what_was_lost_or_refused_for_now_is_repeated_as_one_request() -> None:
    refusals = (b"", answer(503, envelope("unavailable")), answer(429, envelope("rate_limited")), answer(504, b"{}"))
    async with door(*refusals, answer(200, PROCEED)) as found, client(found.port) as kernel:
        assert await submit(kernel) == "proceed"

        requests = [Request(raw) for raw in found.requests]
    assert len(requests) == 5
    assert len({request.headers["idempotency-key"] for request in requests}) == 1
    assert len({request.body for request in requests}) == 1
    assert all(request.is_signed() for request in requests)


async def test_a20_two_requests_have_two_keys() -> None:
    async with door(*[answer(200, PROCEED)] * 2) as found, client(found.port) as kernel:
        await submit(kernel)
        await submit(kernel)

        keys = {Request(raw).headers["idempotency-key"] for raw in found.requests}
    assert len(keys) == 2


async def test_a20_every_repeat_is_signed_as_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(1_000_000, 1_000_100))
    monkeypatch.setattr("stepwell.kernel.time", SimpleNamespace(time=lambda: next(moments)))
    async with door(answer(503), answer(200, PROCEED)) as found, client(found.port) as kernel:
        await submit(kernel)

        stamps = [Request(raw).headers["rebuno-timestamp"] for raw in found.requests]
    assert stamps == ["1000000", "1000001"]


async def test_a20_retry_after_is_honoured_and_bounded_by_the_lease() -> None:
    async with door(answer(503, retry_after="1"), answer(200, PROCEED)) as found, client(found.port) as kernel:
        started_at = time.monotonic()
        await submit(kernel)
        assert time.monotonic() - started_at >= 1.0

    refusal = answer(503, envelope("unavailable"), retry_after="30")
    async with door(refusal) as found, client(found.port) as kernel:
        started_at = time.monotonic()
        with pytest.raises(APIError) as refused:
            await submit(kernel, give_up_seconds=2)
        assert (refused.value.code, refused.value.status_code) == ("unavailable", 503)
        assert time.monotonic() - started_at < 2.0


async def test_a20_another_door_is_asked_where_one_is_away() -> None:
    bound = refusing()
    async with door(answer(200, PROCEED)) as found, client(bound.getsockname()[1], found.port) as kernel:
        assert await submit(kernel) == "proceed"
    bound.close()


async def test_a20_a_kernel_that_stays_away_is_given_up() -> None:
    bound = refusing()
    async with client(bound.getsockname()[1]) as kernel:
        with pytest.raises(NetworkError):
            await submit(kernel, give_up_seconds=0.3)
    bound.close()


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [(409, "conflict", ConflictError), (409, "lease_superseded", LeaseSuperseded), (400, "validation_error", APIError)],
)
async def test_a_refusal_that_stands_is_raised_at_once(status: int, code: str, expected: type[BaseException]) -> None:
    async with door(answer(status, envelope(code))) as found, client(found.port) as kernel:
        with pytest.raises(expected):
            await submit(kernel)
        assert len(found.requests) == 1


async def test_a_redirect_is_not_followed() -> None:
    async with door(answer(307, location="http://127.0.0.1:1/")) as found, client(found.port) as kernel:
        with pytest.raises(APIError, match="307"):
            await submit(kernel)


async def test_the_path_before_the_kernels_own_is_sent_and_signed() -> None:
    async with door(answer(200, PROCEED)) as found, client(found.port, path="/kernel/") as kernel:
        await submit(kernel)

        request = Request(found.requests[0])
    assert request.target == f"/kernel/v0/executions/{EXECUTION}/steps"
    assert request.is_signed()


async def test_arguments_that_json_cannot_carry_are_refused_before_anything_is_sent() -> None:
    async with door() as found, client(found.port) as kernel:
        with pytest.raises(TypeError, match=re.escape("args.f: ")):
            await kernel.submit_step(EXECUTION, lease=LEASE, kind="local", target="t", args={"f": object()})
        assert found.connections == []
