"""Readers of server-sent events: one that keeps up, and one that is left alone with a full socket."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import httpx

from tests.support.wait import wait_until_async

READ_SECONDS = 10.0
RECEIVED_BYTES = 8192
ESTABLISHED = 1
"""The state of a TCP connection whose two sides are both there, as Linux numbers it."""


class Frames:
    """The events of one stream, as they come. Comments are counted, and otherwise left out."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.comments = 0
        self._lines = response.aiter_lines()

    async def next(self, *, seconds: float = READ_SECONDS) -> dict[str, Any]:
        """Return the members of the next event, `data` read as JSON. The stream must not have ended."""
        members = await self._next(seconds)
        assert members is not None, "the stream has ended"
        return members

    async def _next(self, seconds: float) -> dict[str, Any] | None:
        members: dict[str, Any] = {}
        async with asyncio.timeout(seconds):
            async for line in self._lines:
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    members[name] = json.loads(value) if name == "data" else value
                elif members:
                    return members
        assert not members, "the stream ended in the middle of an event"
        return None

    async def comment(self, *, seconds: float = READ_SECONDS) -> None:
        """Return once one more comment has come; nothing else may come before it."""
        before = self.comments
        async with asyncio.timeout(seconds):
            while self.comments == before:
                line = await anext(self._lines)
                assert line.startswith(":") or not line, line
                self.comments += line.startswith(":")

    async def rest(self) -> list[dict[str, Any]]:
        """Return all that comes until the stream ends."""
        found: list[dict[str, Any]] = []
        while (members := await self._next(READ_SECONDS)) is not None:
            found.append(members)
        return found


@asynccontextmanager
async def opened(client: httpx.AsyncClient, path: str, headers: dict[str, str]) -> AsyncIterator[Frames]:
    """Open a stream, which has to be answered as one, and wait for the comment that says it is open."""
    async with client.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        frames = Frames(response)
        await frames.comment()
        yield frames


class Lazy:
    """A reader that asks for a stream and then takes nothing off its socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def ask(cls, port: int, path: str, headers: dict[str, str]) -> Self:
        # Little is taken ahead: neither by the system, whose buffer is small, nor by the loop, whose limit is.
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
        sent = headers | {"Host": "door", "Connection": "close"}
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await reader.readuntil(b": keep-alive\n\n")
        return cls(reader, writer)

    async def after(self, seconds: float) -> bytes:
        """Take nothing until the other side has hung up, at the latest after so many seconds; then return the rest.

        What is in the socket is no sign of life: the end shows as a connection that the kernel of the system reports.
        """
        sock = self._writer.get_extra_info("socket")

        def is_cut() -> bool:
            info = struct.unpack("B", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))
            return info[0] != ESTABLISHED

        await wait_until_async(is_cut, "the connection to be dropped", deadline_seconds=seconds)
        return await self.read_to_the_end()

    async def read_to_the_end(self, *, seconds: float = READ_SECONDS) -> bytes:
        """Return all that was left in the socket. A connection that was dropped ends it as well."""
        found: list[bytes] = []
        async with asyncio.timeout(seconds):
            try:
                while chunk := await self._reader.read(64 * 1024):
                    found.append(chunk)
            except ConnectionError:
                pass
        return b"".join(found)

    def close(self) -> None:
        self._writer.transport.abort()
