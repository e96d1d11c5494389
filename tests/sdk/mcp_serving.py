"""The MCP server of the tests over stdio and over HTTP, behind a link that can be cut."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from mcp.types import METHOD_NOT_FOUND

from kernel.embedded import free_port
from tests.sdk.conftest import serving
from tests.sdk.mcp_server import build, lines
from tests.support.stack import ROOT


class Served:
    """A server, and how often it was connected to."""

    def __init__(self, folder: Path, where: Any, connections: Callable[[], int]) -> None:
        self.folder = folder
        self.where = where
        self.connections = connections
        self.server: Any = None
        """The server itself, where it is in this process."""
        self.forget_sessions: Callable[[], None] = lambda: None

    @property
    def lines(self) -> list[str]:
        return lines(self.folder)


def over_stdio(folder: Path) -> Served:
    words = ["-m", "tests.sdk.mcp_server", str(folder)]
    where = StdioServerParameters(command=sys.executable, args=words, cwd=ROOT)
    return Served(folder, where, lambda: len(lines(folder, "starts.txt")))


@asynccontextmanager
async def over_http(folder: Path, *, has_sessions: bool = False) -> AsyncIterator[Served]:
    """Serve in this process; with sessions as servers do that speak an older version of the protocol."""
    port = free_port()
    link = Link(port)
    server = build(folder, link.cut)
    gate = Gate(server.streamable_http_app(), has_sessions=has_sessions)
    proxy = await asyncio.start_server(link.serve, "127.0.0.1", 0)
    try:
        async with serving(gate, port):
            url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/mcp"
            served = Served(folder, url, lambda: gate.begun)
            served.server, served.forget_sessions = server, gate.forget_sessions
            yield served
            link.cut()
    finally:
        proxy.close()
        await proxy.wait_closed()
        for task in asyncio.all_tasks():
            # The server's event streams leave one behind, which looks for the end of the process.
            if getattr(task.get_coro(), "__name__", "") == "_shutdown_watcher":
                task.cancel()


class Link:
    """A way to a port that can be cut like a cable. What is open is lost; what is opened afterwards goes through."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        ends = {writer, server_writer}
        self._open |= ends
        try:
            await asyncio.gather(_copy(reader, server_writer), _copy(server_reader, writer))
        finally:
            self._open -= ends
            for each in ends:
                each.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        writer.close()


class Gate:
    """Counts what begins a session, and hides from clients that there is a protocol without sessions."""

    def __init__(self, app: Any, *, has_sessions: bool) -> None:
        self._app = app
        self._has_sessions = has_sessions
        self._sessions: set[bytes] = set()
        self._forgotten: set[bytes] = set()
        self.begun = 0

    def forget_sessions(self) -> None:
        self._forgotten |= self._sessions

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        first = await receive()
        asked = json.loads(first["body"])
        session = dict(scope["headers"]).get(b"mcp-session-id", b"")
        self._sessions |= {session} - {b""}
        self.begun += asked["method"] == ("initialize" if self._has_sessions else "server/discover")
        if session in self._forgotten:
            await _answer(send, 404, {})
        elif self._has_sessions and asked["method"] == "server/discover":
            error = {"code": METHOD_NOT_FOUND, "message": "never heard of it"}
            await _answer(send, 200, {"jsonrpc": "2.0", "id": asked["id"], "error": error})
        else:
            messages = iter([first])

            async def again() -> Any:
                return next(messages, None) or await receive()

            await self._app(scope, again, send)


async def _answer(send: Any, status: int, body: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
