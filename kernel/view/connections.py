"""One connection to Redis that carries many exchanges at once, and its successor when it ends.

What is asked in one turn of the event loop leaves in one write, and replies come in the order of the requests: each
belongs to the first exchange that still waits for one. A cancelled exchange keeps its place until its replies have
come. A connection about which anything is in doubt is ended with all that waits on it, and never used again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from redis.asyncio.connection import Connection, parse_url
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from kernel.domain.errors import ViewUnavailable
from kernel.view.limits import ViewLimits

Reply = bytes | int | list["Reply"] | None
Answer = Reply | ResponseError


class Wire(Protocol):
    """What is used of the driver's connection."""

    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def send_packed_command(self, command: bytes, check_health: bool = True) -> None: ...
    async def read_response(self, disable_decoding: bool = False) -> Reply: ...


class Connections:
    """At most one connection at a time. Whoever finds `exchanges_max` exchanges under way waits for a place."""

    def __init__(self, url: str, limits: ViewLimits) -> None:
        self._options = _options(url, limits)
        self._limits = limits
        self._places = asyncio.Semaphore(limits.exchanges_max)
        self._line: _Line | None = None
        self._is_closed = False
        self.losses = 0
        """How often a connection failed or was ended by the other side: the server may have other data since."""

    async def exchange(self, request: bytes, *, replies: int) -> list[Answer]:
        """Send commands that give `replies` replies and return those, errors of single commands among them.

        Raises ViewUnavailable when the connection fails or the time is up: then nothing is known of the commands.
        """
        if self._places.locked():
            await self._wait_for_place()
        else:
            await self._places.acquire()
        if self._is_closed:
            self._places.release()
            raise unavailable("the view is closed")
        if self._line is None:
            seconds = self._limits.call_seconds
            self._line = _Line(self._new_wire(), seconds=seconds, left=self._places.release, ended=self._forget)
        return await self._line.ask(request, replies)

    async def close(self) -> None:
        """Let what is under way come to its end, which its deadline bounds, and close."""
        self._is_closed = True
        if self._line is not None:
            await self._line.close()

    async def _wait_for_place(self) -> None:
        try:
            async with asyncio.timeout(self._limits.call_seconds):
                await self._places.acquire()
        except TimeoutError as error:
            raise unavailable("too many requests are under way") from error

    def _forget(self, is_lost: bool) -> None:
        self._line = None
        self.losses += is_lost

    def _new_wire(self) -> Wire:
        options = dict(self._options)
        connection_class = options.pop("connection_class", Connection)
        return cast("Wire", connection_class(**options))


class _Exchange:
    __slots__ = ("answers", "done", "give_up_at", "replies")

    def __init__(self, replies: int, done: asyncio.Future[list[Answer]], give_up_at: float) -> None:
        self.replies = replies
        self.done = done
        self.give_up_at = give_up_at
        self.answers: list[Answer] = []


class _Line:
    """One connection from its opening to its end."""

    def __init__(self, wire: Wire, *, seconds: float, left: Callable[[], None], ended: Callable[[bool], None]) -> None:
        """An exchange may take `seconds`. `left` is called for each when its place is free, `ended` once, with whether
        that was a loss."""
        self._wire = wire
        self._seconds = seconds
        self._left = left
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Exchange] = deque()
        self._unsent: list[bytes] = []
        self._asked = asyncio.Event()
        self._idle = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self._running = self._loop.create_task(self._run(), name="connection to the view")

    async def ask(self, request: bytes, replies: int) -> list[Answer]:
        """Raises ViewUnavailable. Cancelled, it is answered all the same, and nobody hears it."""
        give_up_at = self._loop.time() + self._seconds
        exchange = _Exchange(replies, self._loop.create_future(), give_up_at)
        self._waiting.append(exchange)
        self._unsent.append(request)
        self._idle.clear()
        self._asked.set()
        if self._timer is None:
            self._timer = self._loop.call_at(give_up_at, self._check_time)
        return await exchange.done

    async def close(self) -> None:
        """Return when nothing waits any more and the connection is closed."""
        if self._waiting:
            await self._idle.wait()
        self._end("the view is closed", is_lost=False)
        await asyncio.wait([self._running])

    async def _run(self) -> None:
        writing = None
        try:
            await self._wire.connect()
            writing = self._loop.create_task(self._write(), name="requests to the view")
            await self._read()
        except (RedisError, OSError) as error:
            self._end(str(error))
        finally:
            # Also when cancelled from outside: nobody may be left waiting.
            self._end("the connection is given up")
            if writing is not None:
                writing.cancel()
            await self._wire.disconnect(nowait=True)

    async def _write(self) -> None:
        """Send what has been asked since the last write, all at once."""
        try:
            while True:
                await self._asked.wait()
                self._asked.clear()
                requests, self._unsent = self._unsent, []
                await self._wire.send_packed_command(b"".join(requests), check_health=False)
        except (RedisError, OSError) as error:
            self._end(str(error))

    async def _read(self) -> None:
        while True:
            answer = await _read_one(self._wire)
            if not self._waiting:
                self._end("a reply came that nobody waits for")
                return
            if isinstance(answer, ReadOnlyError):
                # The server became a replica: the address may name another one by now, this connection never will.
                self._end("the server is a read-only replica")
                return
            exchange = self._waiting[0]
            exchange.answers.append(answer)
            if len(exchange.answers) == exchange.replies:
                self._waiting.popleft()
                self._settle(exchange)

    def _settle(self, exchange: _Exchange) -> None:
        if not exchange.done.done():
            exchange.done.set_result(exchange.answers)
        self._left()
        if not self._waiting:
            self._idle.set()

    def _check_time(self) -> None:
        """End the connection where the oldest exchange is overdue; else look again when that one would be."""
        self._timer = None
        if not self._waiting:
            return
        give_up_at = self._waiting[0].give_up_at
        if give_up_at <= self._loop.time():
            self._end(f"no reply within {self._seconds:g} s")
        else:
            self._timer = self._loop.call_at(give_up_at, self._check_time)

    def _end(self, why: str, *, is_lost: bool = True) -> None:
        """Fail all that waits, at once: nothing can be added from here on. The connection itself closes after this."""
        if self._is_over:
            return
        self._is_over = True
        self._ended(is_lost)
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            exchange = self._waiting.popleft()
            if not exchange.done.done():
                exchange.done.set_exception(unavailable(why))
            self._left()
        self._idle.set()
        if asyncio.current_task() is not self._running:
            self._running.cancel()


def unavailable(what: str) -> ViewUnavailable:
    """Return the error that stands for every failure of the driver or the server."""
    return ViewUnavailable(f"Redis: {what}", reason="view_unavailable")


async def _read_one(wire: Wire) -> Answer:
    try:
        return await wire.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


def _options(url: str, limits: ViewLimits) -> Mapping[str, Any]:
    # `socket_timeout` stays unset: every exchange has its deadline.
    return {
        **parse_url(url),
        "socket_timeout": None,
        "socket_connect_timeout": limits.connect_seconds,
        "protocol": 2,
        "driver_info": None,
        "health_check_interval": 0,
    }
