"""Requests that no HTTP client would send: the bytes are the test's own."""

import asyncio
import contextlib
from urllib.parse import urlsplit

import msgspec

from tests.conformance.harness.calls import Call

ANSWER_SECONDS_MAX = 35.0


class WireAnswer(msgspec.Struct, frozen=True):
    """What came back: the status of 0 means that the connection was closed without an answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_closed: bool
    """Whether the server closed the connection after it."""


def request_bytes(call: Call, *, host: str = "kernel") -> bytes:
    """The bytes of a request, with a Content-Length where it has a body and nothing that it did not name."""
    lines = [f"{call.method} {call.target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in call.headers.items()]
    if call.body and "Content-Length" not in call.headers:
        lines.append(f"Content-Length: {len(call.body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + call.body


async def exchange(url: str, data: bytes, *, is_head: bool = False) -> WireAnswer:
    """Send these bytes on a connection of their own and return the first answer to them.

    What is sent is sent beside the reading, because an answer may come before all of it was taken.
    """
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX), asyncio.TaskGroup() as group:
            sending = group.create_task(_write(writer, data))
            answer = await _read(reader, is_head=is_head)
            sending.cancel()
        return answer
    finally:
        writer.transport.abort()


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    # A server that refuses closes its side; what counts is the answer.
    with contextlib.suppress(OSError):
        writer.write(data)
        await writer.drain()


async def _read(reader: asyncio.StreamReader, *, is_head: bool) -> WireAnswer:
    head = b"HTTP/1.1 100"
    try:
        while head.startswith(b"HTTP/1.1 100"):
            head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return WireAnswer(0, {}, b"", True)
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    length = int(headers.get("content-length", "0"))
    body = b"" if is_head else await reader.readexactly(length)
    return WireAnswer(int(first.split(" ")[1]), headers, body, headers.get("connection", "").lower() == "close")
