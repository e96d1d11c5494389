"""The sender of webhooks: broken connections, TLS, and which addresses it connects to."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kernel.settings import Settings
from tests.support.peers import Connection, Handler, answering, peer, self_signed
from tests.support.ports import free_port
from tests.support.wait import wait_until_async
from tests.support.webhooks import (
    LONG_SECONDS,
    OK,
    PROMPT_SECONDS,
    SHORT_SECONDS,
    at,
    headers_of,
    outcome,
    request,
    sender,
    silent,
    timed,
)
from workers.webhook import TIMEOUT, UNREACHABLE, Delivered, WebhookSender

# ---------------------------------------------------------------- connections that break


async def closing_at_once(connection: Connection) -> None:
    return


async def closing_after_the_request(connection: Connection) -> None:
    await connection.read_request()


async def closing_in_the_head(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Le")


async def speaking_something_else(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    await connection.hang_up()


@pytest.mark.parametrize(
    "handler", [closing_at_once, closing_after_the_request, closing_in_the_head, speaking_something_else]
)
async def test_a_connection_that_breaks_after_sending_is_a_timeout_at_once(handler: Handler) -> None:
    result, took_seconds = await timed(handler, LONG_SECONDS)

    assert result == TIMEOUT
    assert took_seconds < PROMPT_SECONDS


async def test_one_attempt_is_sent_at_most_once() -> None:
    async with peer(closing_after_the_request) as found:
        assert await sender().post(at(found.port)) == TIMEOUT

    assert len(found.connections) == 1


async def test_a_body_that_breaks_off_does_not_undo_the_head() -> None:
    async def handler(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")

    assert await outcome(handler) == Delivered()


async def test_a_refused_connection_is_unreachable() -> None:
    assert await sender().post(at(free_port())) == UNREACHABLE


# ---------------------------------------------------------------- TLS


async def test_a_stalled_handshake_ends_with_the_deadline() -> None:
    async def handler(connection: Connection) -> None:
        await connection.hang_up()

    async with peer(handler) as found:
        started = time.monotonic()
        result = await sender(SHORT_SECONDS).post(request(f"https://127.0.0.1:{found.port}/"))
        took_seconds = time.monotonic() - started
        await wait_until_async(lambda: found.ended == 1, "the stalled connection to be dropped")

    assert result == TIMEOUT
    assert took_seconds < SHORT_SECONDS + 1.0


async def test_a_certificate_nobody_signed_is_unreachable_and_gets_no_request(tmp_path: Path) -> None:
    server, _ = self_signed(tmp_path, "127.0.0.1")

    async with peer(answering(OK), tls=server) as found:
        assert await sender().post(request(f"https://127.0.0.1:{found.port}/")) == UNREACHABLE

    assert found.requests == []


async def test_a_certificate_of_another_name_is_unreachable(tmp_path: Path) -> None:
    server, client = self_signed(tmp_path, "other.example")

    async with peer(answering(OK), tls=server) as found:
        assert await sender(tls=client).post(request(f"https://127.0.0.1:{found.port}/")) == UNREACHABLE

    assert found.requests == []


async def test_a_server_without_tls_is_unreachable_over_https() -> None:
    async def handler(connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await connection.hang_up()

    async with peer(handler) as found:
        assert await sender().post(request(f"https://127.0.0.1:{found.port}/")) == UNREACHABLE


async def test_the_name_is_proven_though_the_address_is_connected_to(tmp_path: Path) -> None:
    server, client = self_signed(tmp_path, "localhost")

    async with peer(answering(OK), tls=server) as found:
        assert await sender(tls=client).post(request(f"https://localhost:{found.port}/")) == Delivered()

    assert headers_of(found.requests[0])[b"Host"] == b"localhost:%d" % found.port


# ---------------------------------------------------------------- addresses and names


@asynccontextmanager
async def names(monkeypatch: pytest.MonkeyPatch, table: dict[str, list[str]]) -> AsyncIterator[list[str]]:
    """Let the system's resolver answer from a table; yields the names it was asked for."""
    asked: list[str] = []

    def getaddrinfo(host: str, *_rest: object, **_more: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in table[host]]

    with monkeypatch.context() as patch:
        patch.setattr("socket.getaddrinfo", getaddrinfo)
        yield asked


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "[::ffff:127.0.0.1]"])
async def test_a_server_contacts_no_loopback_address_however_it_is_spelt(host: str) -> None:
    async with peer(answering(OK)) as found:
        strict = WebhookSender(Settings(mode="server"))
        assert await strict.post(request(f"http://{host}:{found.port}/")) == UNREACHABLE

    assert found.connections == []


async def test_a_name_that_turns_to_a_refused_address_is_not_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with names(monkeypatch, {"agent.example": ["169.254.169.254"]}):
        assert await sender().post(request("http://agent.example/")) == UNREACHABLE


async def test_of_several_addresses_only_allowed_ones_are_tried_until_one_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = ["169.254.169.254", "10.0.0.1", "127.0.0.2", "127.0.0.1"]
    async with peer(answering(OK)) as found, names(monkeypatch, {"agent.example": addresses}) as asked:
        assert await sender().post(request(f"http://agent.example:{found.port}/")) == Delivered()

    assert asked == ["agent.example"]
    assert headers_of(found.requests[0])[b"Host"] == b"agent.example:%d" % found.port


@pytest.mark.parametrize(
    "url",
    [
        "http://nothing.invalid/",
        "http://" + "a" * 64 + ".example/",
        "http://a..example/",
        "http://user:secret@127.0.0.1/",
        "ftp://127.0.0.1/",
        "http:///path",
        "http://127.0.0.1:99999/",
        "http://[::1/",
        "",
    ],
)
async def test_a_url_that_leads_nowhere_is_unreachable(url: str) -> None:
    assert await sender().post(request(url)) == UNREACHABLE


async def test_names_that_hang_cost_one_thread_each_and_delay_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    asked: list[str] = []

    def getaddrinfo(host: str, *_rest: object, **_more: object) -> list[tuple[object, ...]]:
        asked.append(host)
        if host == "hangs.example":
            release.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)
    async with peer(answering(OK)) as found:
        webhooks = sender(SHORT_SECONDS)
        stuck = [asyncio.ensure_future(webhooks.post(request("http://hangs.example/"))) for _ in range(20)]
        healthy = await webhooks.post(request(f"http://healthy.example:{found.port}/"))
        results = await asyncio.gather(*stuck)

    release.set()
    assert healthy == Delivered()
    assert set(results) == {TIMEOUT}
    assert asked.count("hangs.example") == 1


async def test_a_cancelled_delivery_leaves_no_connection_behind() -> None:
    async with peer(silent) as found:
        delivery = asyncio.ensure_future(sender().post(at(found.port)))
        await wait_until_async(lambda: len(found.requests) == 1, "the request to arrive")
        delivery.cancel()
        with pytest.raises(asyncio.CancelledError):
            await delivery
        await wait_until_async(lambda: found.ended == 1, "the connection to be dropped")
