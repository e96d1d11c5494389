"""Keep-alive connections of the measures: raw protocols, so that the sender is not what is measured."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from bench.ratios import MeasureFailed

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length: "
_STATUS = slice(9, 12)

Heard = Callable[[int, bytes], None]


class Connection(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._heard: Heard | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._answered(0, b"the connection was closed")

    def data_received(self, data: bytes) -> None:
        received = self._rest + data
        head_end = received.find(_HEAD_END)
        at = received.find(_LENGTH, 0, head_end) if head_end >= 0 else -1
        length = int(received[at + len(_LENGTH) : received.index(b"\r\n", at)]) if at >= 0 else 0
        begin = head_end + len(_HEAD_END)
        if head_end < 0 or len(received) < begin + length:
            self._rest = received
            return
        self._rest = b""
        self._answered(int(received[_STATUS]), received[begin:])

    def ask(self, request: bytes, heard: Heard) -> None:
        """Send a request; `heard` is called with status and body, status 0 where the connection ended instead."""
        assert self._transport is not None  # noqa: S101 - connected before it is handed out
        self._heard = heard
        self._transport.write(request)

    async def exchange(self, request: bytes) -> bytes:
        """Send a request and return the body of its answer. Raises MeasureFailed where it is no success."""
        answered: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.ask(request, lambda status, body: answered.set_result((status, body)))
        status, body = await answered
        if not 200 <= status < 300:
            raise MeasureFailed(f"answered {status}: {body[:300]!r}")
        return body

    def close(self) -> None:
        self._heard = None
        if self._transport is not None:
            self._transport.close()

    def _answered(self, status: int, body: bytes) -> None:
        heard, self._heard = self._heard, None
        if heard is not None:
            heard(status, body)


async def connect(port: int, count: int) -> list[Connection]:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Connection, "127.0.0.1", port) for _ in range(count)]
    return [connection for _, connection in made]


class Load:
    """Every connection sends the next of its requests as soon as the last one is answered."""

    def __init__(
        self, connections: Sequence[Connection], sources: Sequence[Iterator[bytes]], *, expected: int = 200
    ) -> None:
        self._connections = connections
        self._expected = expected
        self._sources = sources
        self._statuses: Counter[int] = Counter()
        self._bad = b""
        self._open = 0
        self._is_over = False
        self._ended = asyncio.Event()

    @property
    def answered(self) -> int:
        """How many requests were answered, those of the warm-up too."""
        return self._statuses.total()

    async def rate(self, *, seconds: float, warm_seconds: float) -> float:
        """Return the answers per second after a warm-up. Raises MeasureFailed where one was no success."""
        for connection, source in zip(self._connections, self._sources, strict=True):
            self._send(connection, source)
        await asyncio.sleep(warm_seconds)
        before, started_at = self.answered, time.perf_counter()
        await asyncio.sleep(seconds)
        count, spent = self.answered - before, time.perf_counter() - started_at
        self._is_over = True
        await self._ended.wait()
        if set(self._statuses) != {self._expected}:
            raise MeasureFailed(
                f"not all were answered {self._expected}: {dict(self._statuses)}, such as {self._bad[:300]!r}"
            )
        return count / spent

    async def finish(self) -> None:
        """Send everything there is, once. Raises MeasureFailed where an answer was no success."""
        for connection, source in zip(self._connections, self._sources, strict=True):
            self._send(connection, source)
        if self._open:
            await self._ended.wait()
        if any(not 200 <= status < 300 for status in self._statuses):
            raise MeasureFailed(f"not all succeeded: {dict(self._statuses)}, such as {self._bad[:300]!r}")

    def _send(self, connection: Connection, source: Iterator[bytes]) -> None:
        request = None if self._is_over else next(source, None)
        if request is None:
            if self._open == 0:
                self._ended.set()
            return
        self._open += 1

        def heard(status: int, body: bytes) -> None:
            self._open -= 1
            self._statuses[status] += 1
            if status >= 300 or status == 0:
                self._bad = body
                self._is_over = status == 0 or self._is_over
            self._send(connection, source)

        connection.ask(request, heard)
