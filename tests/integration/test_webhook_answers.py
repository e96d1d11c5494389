"""The sender of webhooks: what it sends, and what it makes of answers, endless ones too."""

import pytest

from kernel.domain.signatures import verify_body
from tests.support.peers import Connection, Handler, answering, peer
from tests.support.wait import wait_until_async
from tests.support.webhooks import (
    BODY,
    LONG_SECONDS,
    OK,
    PROMPT_SECONDS,
    SECRET,
    SHORT_SECONDS,
    at,
    headers_of,
    outcome,
    sender,
    silent,
    timed,
)
from workers.webhook import TIMEOUT, Delivered, Undelivered

# ---------------------------------------------------------------- what is sent


async def test_the_request_is_the_one_of_the_contract_and_the_signature_covers_its_bytes() -> None:
    async with peer(answering(OK)) as found:
        assert await sender().post(at(found.port, "/a%2Fb?x=1&y=%20")) == Delivered()

    (raw,) = found.requests
    head, _, body = raw.partition(b"\r\n\r\n")
    headers = headers_of(raw)
    assert head.split(b"\r\n")[0] == b"POST /a%2Fb?x=1&y=%20 HTTP/1.1"
    assert headers[b"Host"] == b"127.0.0.1:%d" % found.port
    assert headers[b"Content-Type"] == b"application/json"
    assert headers[b"Content-Length"] == b"%d" % len(BODY)
    assert headers[b"Rebuno-Execution-Id"] == b"0199aaaa-0000-7000-8000-0000000000ff"
    assert body == BODY
    assert verify_body([SECRET], headers[b"Rebuno-Signature"], body)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("", b"/"),
        ("?token=a", b"/?token=a"),
        ("/café", b"/caf%C3%A9"),
        ("/a b#fragment", b"/a%20b"),
        ("/%e9/%7Euser;v=1", b"/%e9/%7Euser;v=1"),
    ],
)
async def test_the_target_is_that_of_the_url(path: str, target: bytes) -> None:
    async with peer(answering(OK)) as found:
        await sender().post(at(found.port, path))

    assert found.requests[0].split(b"\r\n")[0] == b"POST %s HTTP/1.1" % target


# ---------------------------------------------------------------- what the answer means


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_every_2xx_is_delivered(status: int) -> None:
    assert await outcome(answering(b"HTTP/1.1 %d Fine\r\n\r\n" % status)) == Delivered()


@pytest.mark.parametrize("status", [300, 304, 400, 401, 404, 410, 429, 500, 503, 599])
async def test_every_other_status_is_a_failure_named_by_it(status: int) -> None:
    answer = b"HTTP/1.1 %d Other\r\nContent-Length: 0\r\n\r\n" % status

    assert await outcome(answering(answer)) == Undelivered(reason=f"http_{status}")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failure_and_its_target_is_never_called(status: int) -> None:
    async with peer(answering(OK)) as target:
        location = b"http://127.0.0.1:%d/" % target.port
        answer = b"HTTP/1.1 %d Moved\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % (status, location)
        assert await outcome(answering(answer)) == Undelivered(reason=f"http_{status}")

    assert target.connections == []


@pytest.mark.parametrize(
    ("status", "value", "wait_ms"),
    [(503, b"3", 3000), (429, b"3600", 60_000), (503, b"soon", 0), (500, b"3", 0), (302, b"3", 0)],
)
async def test_retry_after_counts_on_429_and_503_alone(status: int, value: bytes, wait_ms: int) -> None:
    answer = b"HTTP/1.1 %d No\r\nRetry-After: %s\r\nContent-Length: 0\r\n\r\n" % (status, value)

    assert await outcome(answering(answer)) == Undelivered(reason=f"http_{status}", retry_after_ms=wait_ms)


async def test_early_hints_are_not_the_answer() -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"

    assert await outcome(answering(early + OK)) == Delivered()


async def test_an_answer_before_the_request_was_read_counts() -> None:
    async def handler(connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await connection.hang_up()

    assert await outcome(handler) == Undelivered(reason="http_413")


# ---------------------------------------------------------------- answers that never end


async def dripping_head(connection: Connection) -> None:
    await connection.read_request()
    await drip(connection, b"HTTP/1.1 200 OK\r\nX-Slow: " + b"a" * 10_000)


async def dripping_body(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
    await drip(connection, b"a" * 10_000)


async def drip(connection: Connection, data: bytes) -> None:
    for byte in data:
        await connection.send(bytes([byte]))
        if await connection.hang_up(wait_seconds=0.02):
            return


@pytest.mark.parametrize("handler", [silent, dripping_head])
async def test_without_a_whole_head_the_deadline_ends_the_attempt(handler: Handler) -> None:
    result, took_seconds = await timed(handler, SHORT_SECONDS)

    assert result == TIMEOUT
    assert SHORT_SECONDS <= took_seconds < SHORT_SECONDS + 1.0


async def test_a_dripping_body_costs_nothing() -> None:
    result, took_seconds = await timed(dripping_body, LONG_SECONDS)

    assert result == Delivered()
    assert took_seconds < PROMPT_SECONDS


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2147483648\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2147483648\r\n\r\n\x1f\x8b\x08",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
)
async def test_a_body_of_two_gigabytes_is_cut(head: bytes) -> None:
    chunk = b"\0" * 65536

    async def handler(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(head)
        for _ in range(2**31 // len(chunk)):
            await connection.send(chunk)

    async with peer(handler) as found:
        assert await sender().post(at(found.port)) == Delivered()
        await wait_until_async(lambda: found.ended == 1, "the flood to be cut off")

    # What the two sockets can hold between them, and nothing beyond.
    assert found.connections[0].sent_bytes < 32 * 1024 * 1024


async def test_a_flood_is_cut_by_its_size_before_any_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.webhook.COURTESY_SECONDS", LONG_SECONDS)

    async def handler(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await connection.send(b"a" * 65536)

    result, took_seconds = await timed(handler, LONG_SECONDS)

    assert result == Delivered()
    assert took_seconds < PROMPT_SECONDS


async def test_endless_chunks_are_cut() -> None:
    async def handler(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await connection.send(b"1\r\na\r\n" * 1000)

    result, took_seconds = await timed(handler, LONG_SECONDS)

    assert result == Delivered()
    assert took_seconds < PROMPT_SECONDS


@pytest.mark.parametrize("line", [b"X-More: aaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n", b"a" * 4096, b"\r\n"])
async def test_an_endless_head_is_given_up_before_the_deadline(line: bytes) -> None:
    async def handler(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nX: " if line != b"\r\n" else b"")
        while True:
            await connection.send(line * 10)

    result, took_seconds = await timed(handler, LONG_SECONDS)

    assert result == TIMEOUT
    assert took_seconds < PROMPT_SECONDS


async def test_endless_hints_are_given_up_before_the_deadline() -> None:
    async def handler(connection: Connection) -> None:
        await connection.read_request()
        while True:
            await connection.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)

    result, took_seconds = await timed(handler, LONG_SECONDS)

    assert result == TIMEOUT
    assert took_seconds < PROMPT_SECONDS


async def test_a_deadline_in_the_body_does_not_undo_the_head() -> None:
    async def handler(connection: Connection) -> None:
        await connection.read_request()
        await connection.hang_up(wait_seconds=SHORT_SECONDS - 0.05)
        await connection.send(b"HTTP/1.1 500 No\r\nContent-Length: 5\r\n\r\n")
        await connection.hang_up()

    assert await outcome(handler, SHORT_SECONDS) == Undelivered(reason="http_500")
