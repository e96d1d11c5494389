"""A TCP proxy on loopback that keeps replies back: for a random while each, or until it is told to let them go."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

LOOPBACK = "127.0.0.1"


class SlowProxy:
    """What the tests see of it. Requests pass at once, replies after `delay_seconds()`, in order."""

    def __init__(self, target_port: int, delay_seconds: Callable[[], float]) -> None:
        self.port = 0
        self.accepted = 0
        """Connections so far."""
        self.open: set[asyncio.Transport] = set()
        """Connections that the client has not closed."""
        self.requests = 0
        """Pieces of requests that arrived."""
        self.bytes_asked = 0
        self._target_port = target_port
        self._delay_seconds = delay_seconds
        self._is_holding = False
        self._held: list[Callable[[], None]] = []

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}"

    def hold(self) -> None:
        """Keep all replies back from now on."""
        self._is_holding = True

    def let_go(self) -> None:
        self._is_holding = False
        held, self._held = self._held, []
        for send in held:
            send()

    @property
    def held(self) -> int:
        """Replies that are kept back."""
        return len(self._held)

    def let_one_go(self) -> None:
        """Let the oldest reply go and hold on to the rest."""
        self._held.pop(0)()

    @property
    def target_port(self) -> int:
        return self._target_port

    def later(self, not_before: float, send: Callable[[], None]) -> float:
        """Call `send` after the delay and not before a time; return when that is."""
        loop = asyncio.get_running_loop()
        if self._is_holding:
            self._held.append(send)
            return not_before
        # A loop runs timers of one and the same time in any order, and a connection keeps the order of its replies.
        at = max(math.nextafter(not_before, math.inf), loop.time() + self._delay_seconds())
        loop.call_at(at, send)
        return at


class _Client(asyncio.Protocol):
    """The side towards the client. What it sends before the server is connected is kept."""

    def __init__(self, proxy: SlowProxy) -> None:
        self._proxy = proxy
        self._early: list[bytes] = []
        self._server: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._proxy.accepted += 1
        self._proxy.open.add(transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        self._proxy.requests += 1
        self._proxy.bytes_asked += len(data)
        if self._server is None:
            self._early.append(data)
        else:
            self._server.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self.transport is not None
        assert self._connecting is not None
        self._proxy.open.discard(self.transport)
        self._connecting.cancel()
        if self._server is not None:
            self._server.close()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._server, _ = await loop.create_connection(
            lambda: _Server(self._proxy, self), LOOPBACK, self._proxy.target_port
        )
        self._server.writelines(self._early)


class _Server(asyncio.Protocol):
    """The side towards the server."""

    def __init__(self, proxy: SlowProxy, client: _Client) -> None:
        self._proxy = proxy
        self._client = client
        self._not_before = 0.0

    def data_received(self, data: bytes) -> None:
        client = self._client.transport
        assert client is not None
        self._not_before = self._proxy.later(self._not_before, lambda: client.write(data))

    def connection_lost(self, exc: Exception | None) -> None:
        client = self._client.transport
        assert client is not None
        self._not_before = self._proxy.later(self._not_before, client.close)


@asynccontextmanager
async def slow_proxy(target_port: int, delay_seconds: Callable[[], float] = lambda: 0.0) -> AsyncIterator[SlowProxy]:
    """Run a proxy before the server on a port of loopback."""
    proxy = SlowProxy(target_port, delay_seconds)
    server = await asyncio.get_running_loop().create_server(lambda: _Client(proxy), LOOPBACK, 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for transport in list(proxy.open):
            transport.abort()
        await server.wait_closed()
