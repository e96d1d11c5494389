"""The HTTP server: it serves, bounds what a client may hold open, and stops without dropping an answer."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kernel import listener as listening
from kernel.domain.errors import Misconfigured
from kernel.listener import HEAD_BYTES_MAX, App, Listener
from tests.support.wait import wait_until_async

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
SECONDS = 10.0

Message = MutableMapping[str, Any]


async def _hello(
    _scope: Message, _receive: Callable[[], Awaitable[Any]], send: Callable[[Message], Awaitable[None]]
) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@asynccontextmanager
async def _serving(app: App) -> AsyncGenerator[Listener]:
    listener = Listener(host="127.0.0.1", port=0)
    running = asyncio.create_task(listener.run(app))
    try:
        yield listener
    finally:
        listener.stop()
        await asyncio.wait_for(running, SECONDS)


async def _exchange(listener: Listener, *parts: bytes) -> bytes:
    """Send the parts, and return everything that comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), SECONDS)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_a_request_is_answered_without_a_word_about_the_server() -> None:
    async with _serving(_hello) as listener:
        answer = await _exchange(listener, GET.replace(b"Host", b"Connection: close\r\nHost"))

    assert answer == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"


async def test_bytes_that_are_not_http_get_a_bare_400() -> None:
    async with _serving(_hello) as listener:
        answer = await _exchange(listener, b"\x16\x03\x01 hello\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "parts",
    [
        (b"GET / HTTP/1.1\r\n", b"a: b\r\n" * HEAD_BYTES_MAX),
        (b"GET / HTTP/1.1\r\na: ", b"b" * 2 * HEAD_BYTES_MAX),
        (b"GET /", b"a" * 2 * HEAD_BYTES_MAX),
    ],
)
async def test_a_head_without_end_is_cut_off(parts: tuple[bytes, ...]) -> None:
    async with _serving(_hello) as listener:
        answer = await _exchange(listener, *parts)

    assert b"200" not in answer


@pytest.mark.parametrize("parts", [(), (b"GET / HTTP/1.1\r\n",), (GET, b"GET / HT")])
async def test_a_head_that_does_not_end_in_time_is_cut_off(
    parts: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "HEAD_SECONDS_MAX", 0.2)
    async with _serving(_hello) as listener:
        answer = await _exchange(listener, *parts)

    assert b"HTTP/1.1 400 Bad Request" in answer
    assert answer.count(b"200 OK") == len(parts) - 1 if len(parts) > 1 else b"200 OK" not in answer


async def test_the_next_head_has_time_while_an_answer_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HEAD_SECONDS_MAX", 0.05)
    answered = asyncio.Event()

    async def slow(
        scope: Message, receive: Callable[[], Awaitable[Any]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        await answered.wait()
        await _hello(scope, receive, send)

    async with _serving(slow) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(GET + b"GET / HT")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.3)
        answered.set()
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200 OK")
        writer.close()


async def test_a_head_without_end_is_cut_off_while_an_answer_is_being_made_too() -> None:
    async def never(_scope: Message, receive: Callable[[], Awaitable[Any]], _send: object) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with _serving(never) as listener:
        assert await _exchange(listener, GET, b"GET /" + b"a" * 2 * HEAD_BYTES_MAX) == b""


async def test_a_stop_waits_for_the_answer_that_is_being_made() -> None:
    entered, answered = asyncio.Event(), asyncio.Event()

    async def slow(
        scope: Message, receive: Callable[[], Awaitable[Any]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        entered.set()
        await answered.wait()
        await _hello(scope, receive, send)

    async with _serving(slow) as listener:
        asking = asyncio.create_task(_exchange(listener, GET))
        await entered.wait()
        listener.stop()
        await wait_until_async(lambda: _is_closed(listener), "the listener to take no more connections")
        answered.set()
        assert (await asking).endswith(b"hi")


async def _is_closed(listener: Listener) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    except OSError:
        return True
    writer.close()
    return False


async def test_one_connection_too_many_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "CONNECTIONS_MAX", 1)
    async with _serving(_hello) as listener:
        _, first = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await _exchange(listener, GET) == b""
        first.close()
        await wait_until_async(
            lambda: _is_answered(listener),
            "the place to be free again",
            retry_on=(OSError, asyncio.IncompleteReadError),
        )


async def _is_answered(listener: Listener) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        writer.write(GET)
        return (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
    finally:
        writer.close()


def test_an_address_in_use_is_refused_by_name() -> None:
    with (
        Listener(host="127.0.0.1", port=0) as first,
        pytest.raises(Misconfigured, match=f"cannot listen on 127.0.0.1:{first.port}"),
    ):
        Listener(host="127.0.0.1", port=first.port)


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://127.0.0.1:"), ("localhost", "http://localhost:")],
)
def test_the_url_is_one_that_works_from_this_machine(host: str, url: str) -> None:
    with Listener(host=host, port=0) as listener:
        assert listener.url == f"{url}{listener.port}"
