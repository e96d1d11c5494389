"""A bounded set of connections to one Redis, over which requests are exchanged for replies.

A connection on which an exchange was not finished, for whatever reason, is closed and never used again: its next
reply would belong to somebody else. The driver's own client and pool take two to three times the time per call.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol, cast

from redis.asyncio.connection import Connection, parse_url
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from kernel.domain.errors import ViewUnavailable
from kernel.view.limits import ViewLimits

Reply = bytes | int | list["Reply"] | None


class Wire(Protocol):
    """What is used of the driver's connection."""

    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def can_read(self) -> bool: ...
    async def send_packed_command(self, command: bytes, check_health: bool = True) -> None: ...
    async def read_response(self, disable_decoding: bool = False) -> Reply: ...


class Connections:
    """At most `connections_max` at once; whoever finds none free waits inside its own deadline."""

    def __init__(self, url: str, limits: ViewLimits) -> None:
        self._options = _options(url, limits)
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.connections_max)
        self._idle: list[Wire] = []
        self._is_closed = False
        self.losses = 0
        """How often a connection failed or was ended by the other side: the server may have other data since."""

    async def exchange(self, request: bytes, *, replies: int) -> list[Reply | ResponseError]:
        """Send commands that give `replies` replies and return those, errors of single commands among them.

        Raises ViewUnavailable when the connection fails or the time is up: then nothing is known of the commands.
        """
        try:
            async with asyncio.timeout(self._limits.call_seconds), self._slots:
                return await self._exchange(request, replies)
        except TimeoutError as error:
            self.losses += 1
            raise unavailable(f"no reply within {self._limits.call_seconds} s") from error
        except (RedisError, OSError) as error:
            self.losses += 1
            raise unavailable(str(error)) from error

    async def close(self) -> None:
        """Close what is idle now, and the rest as it comes back."""
        self._is_closed = True
        await self._close_idle()

    async def _exchange(self, request: bytes, replies: int) -> list[Reply | ResponseError]:
        wire = await self._take()
        try:
            await wire.send_packed_command(request, check_health=False)
            answers = [await _read(wire) for _ in range(replies)]
        except BaseException:
            # A cancelled or failed exchange leaves replies behind that nobody may read.
            await wire.disconnect(nowait=True)
            raise
        if any(isinstance(answer, ReadOnlyError) for answer in answers):
            await self._leave_demoted_server(wire)
        if self._is_closed:
            await wire.disconnect(nowait=True)
        else:
            self._idle.append(wire)
        return answers

    async def _take(self) -> Wire:
        if self._is_closed:
            raise unavailable("the view is closed")
        while self._idle:
            wire = self._idle.pop()
            # A reply that nobody waits for, or the end of the connection: neither may be met by the next request.
            if not await wire.can_read():
                return wire
            self.losses += 1
            await wire.disconnect(nowait=True)
        wire = self._new_wire()
        try:
            await wire.connect()
        except BaseException:
            await wire.disconnect(nowait=True)
            raise
        return wire

    async def _leave_demoted_server(self, wire: Wire) -> NoReturn:
        # The server became a replica: the address may name another one by now, old connections never will.
        self.losses += 1
        await wire.disconnect(nowait=True)
        await self._close_idle()
        raise unavailable("the server is a read-only replica")

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)

    def _new_wire(self) -> Wire:
        options = dict(self._options)
        connection_class = options.pop("connection_class", Connection)
        return cast("Wire", connection_class(**options))


def unavailable(what: str) -> ViewUnavailable:
    """Return the error that stands for every failure of the driver or the server."""
    return ViewUnavailable(f"Redis: {what}", reason="view_unavailable")


async def _read(wire: Wire) -> Reply | ResponseError:
    try:
        return await wire.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


def _options(url: str, limits: ViewLimits) -> Mapping[str, Any]:
    # `socket_timeout` stays unset: the driver would make a task per send for it, and the exchange has its deadline.
    return {
        **parse_url(url),
        "socket_timeout": None,
        "socket_connect_timeout": limits.connect_seconds,
        "protocol": 2,
        "driver_info": None,
        "health_check_interval": 0,
    }
