"""The HTTP server around an ASGI app: uvicorn on our loop, with our signals, our socket and bounds of its own.

It knows nothing of what it serves. Stopping it is the last thing a door does, when nobody is waiting any more.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from contextlib import contextmanager
from typing import Any, Self, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kernel.domain.errors import Misconfigured

BACKLOG_MAX = 1024
KEEP_ALIVE_SECONDS = 75
"""Longer than the pools of clients keep a connection, so that it is not we who close one that is being used again."""
HEAD_BYTES_MAX = 64 * 1024
HEAD_SECONDS_MAX = 15.0
"""From the first byte of a request, or from the connection, to the end of its head."""
CONNECTIONS_MAX = 20_000
"""Open at once; one more is dropped, so that files stay free for the log and the view."""
CLOSE_SECONDS_MAX = 2
"""For answers that are being written when the server stops."""

_AT_ONCE = struct.pack("ii", 1, 0)
"""Of SO_LINGER: closing resets the connection."""

App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[MutableMapping[str, Any]], Awaitable[None]]],
    Awaitable[None],
]


class Listener:
    """One listening socket. It is bound, and its port known, from the beginning; requests are served in `run`."""

    def __init__(self, *, host: str, port: int) -> None:
        """Raises Misconfigured where the address cannot be listened on."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        is_both = host == "::" and socket.has_dualstack_ipv6()
        try:
            self._socket = socket.create_server(
                (host, port), family=family, backlog=BACKLOG_MAX, dualstack_ipv6=is_both
            )
        except OSError as error:
            raise Misconfigured(
                f"cannot listen on {host}:{port} ({error.strerror}): choose another address with STEPWELL_LISTEN_ADDR"
            ) from error
        self.host: str = host
        self.port: int = self._socket.getsockname()[1]
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        """Where to reach it from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - only compared with
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def run(self, app: App) -> None:
        """Serve until `stop`, or until cancelled, which drops every connection."""
        # Its warnings are about what clients send, so clients could fill our log with them.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config = uvicorn.Config(
            app,
            loop="none",
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG_MAX,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=CLOSE_SECONDS_MAX,
        )
        self._server = _Server(config)
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._server.drop()
            self.close()

    def stop(self) -> None:
        """Take no more connections, close the idle ones, and let `run` end."""
        if self._server is not None:
            self._server.should_exit = True

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals alone: the process answers them in an order that uvicorn does not know."""
        yield

    def drop(self) -> None:
        """Close what is still open. Where it was cancelled, uvicorn leaves that to the end of the process."""
        for server in getattr(self, "servers", ()):
            server.close()
        for connection in self.server_state.connections:
            connection.transport.abort()


class JoinedWrites:
    """A transport on which what is written within one turn of the loop leaves in one piece.

    uvicorn writes the head and the body of an answer one after the other, and every write costs us a system call, the
    client a wake-up, and the network a packet.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._let_go)
        self._held.append(data)

    def close(self) -> None:
        self._let_go()
        self._transport.close()

    def _let_go(self) -> None:
        held, self._held = self._held, []
        if held and not self._transport.is_closing():
            self._transport.writelines(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which by itself reads a head without end and waits for one for ever."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._is_in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] - as uvicorn has it
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", JoinedWrites(transport, self.loop))
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_in_head:
            return
        # A head in one piece never comes here: only one that is still unfinished is counted and timed.
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._refuse("The head of the request is too large.")
        elif self._head_timer is None:
            self._await_head()

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        super().on_message_begin()
        self.scope["extensions"] = {"stepwell.abort": {"now": self._reset}}

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_is_here()
        super().on_headers_complete()

    def _reset(self) -> None:
        """Drop the connection of a reader that takes nothing: what was written is not waited for, by nobody."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            # Else the system would go on offering what it holds, for minutes.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.transport.abort()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS_MAX, self._head_is_late)

    def _head_is_here(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._is_answering():
            # The client sends its next request before this one is answered; that one has time until it is.
            self._await_head()
        else:
            self._refuse("The head of the request took too long.")

    def _refuse(self, reason: str) -> None:
        if self.transport.is_closing():
            return
        if self._is_answering():
            # In the middle of an answer there is no place for another one.
            self.transport.close()
        else:
            self.send_400_response(reason)

    def _is_answering(self) -> bool:
        # uvicorn has no cycle before the first request, whatever the type says.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete
