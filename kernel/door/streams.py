"""Answers that stay open: server-sent events, to readers that come, stay as long as they like, and leave.

A reader that is slow delays nobody; one that takes nothing at all is disconnected.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, MutableMapping
from contextlib import aclosing, contextmanager
from typing import Any

from kernel.domain.errors import KernelError, Unavailable
from kernel.door.admission import Shares
from kernel.door.reading import Receive
from schemas.records import Header

STREAMS_MAX = 4096
"""Open streams of one door."""
STREAMS_SHARE_MAX = 2048
"""Of these, those of one tenant."""
TAKE_SECONDS_MAX = 30.0
KEEP_ALIVE_SECONDS = 15.0
LOOK_SECONDS = 2.0
"""How long a stream relies on being woken before it looks by itself whether there is more."""
FAREWELL_SECONDS_MAX = 1.0
"""How long the end of a stream that the door cuts off waits to be taken."""

KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache,no-transform"),
    (b"x-accel-buffering", b"no"),
)
ABORT = "stepwell.abort"
"""Extension of our listener: drops the connection without waiting for what was written to be taken."""

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Chunks = AsyncGenerator[bytes]
"""What is sent, as it comes. It ends by itself when there will never be more; a KernelError cuts it off."""

_log = logging.getLogger(__name__)


def frame(data: bytes, *, event: str = "", event_id: int | None = None) -> bytes:
    """Return one event. `data` holds no line break, as JSON holds none."""
    named = b"event: %b\n" % event.encode() if event else b""
    numbered = b"id: %d\n" % event_id if event_id is not None else b""
    return numbered + named + b"data: " + data + b"\n\n"


def end_frame(header: Header) -> bytes:
    """Return the last event of a stream: the execution has ended."""
    return frame(b'{"status":"%b"}' % header.status.encode(), event="end")


class Streams:
    """The open streams of one door."""

    def __init__(self) -> None:
        self._open: set[asyncio.Future[None]] = set()
        self._shares = Shares(STREAMS_SHARE_MAX)
        self._is_closing = False

    @property
    def count(self) -> int:
        return len(self._open)

    @contextmanager
    def place(self, tenant: str) -> Generator[None]:
        """Take a place for one more stream of a tenant. Raises Unavailable where there is none."""
        if self._is_closing:
            raise Unavailable("the door is closing")
        if self.count >= STREAMS_MAX or not self._shares.try_enter(tenant):
            raise Unavailable("too many streams are open")
        try:
            yield
        finally:
            self._shares.leave(tenant)

    async def serve(self, chunks: Chunks, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream until it ends, its reader leaves or takes nothing, or the door closes."""
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        pumping = asyncio.ensure_future(_pump(chunks, send))
        leaving = asyncio.ensure_future(_gone(receive))
        self._open.add(pumping)
        try:
            await asyncio.wait((pumping, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(pumping)
            for task in (pumping, leaving):
                task.cancel()
            await asyncio.wait((pumping, leaving))
        has_left = not leaving.cancelled()
        if not has_left and not await _is_ended(pumping, send):
            abort = scope.get("extensions", {}).get(ABORT)
            if abort is not None:
                abort["now"]()

    def close(self) -> None:
        """End every stream, as the end of the door: without an event that says so. Readers come back elsewhere."""
        self._is_closing = True
        for pumping in self._open:
            pumping.cancel()


async def _pump(chunks: Chunks, send: Send) -> None:
    async with aclosing(chunks):
        async for chunk in chunks:
            async with asyncio.timeout(TAKE_SECONDS_MAX):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _is_ended(pumping: asyncio.Future[None], send: Send) -> bool:
    """Whether the reader was given a whole answer; else its connection has to go."""
    error = None if pumping.cancelled() else pumping.exception()
    match error:
        case None:
            pass
        case TimeoutError():
            return False
        case KernelError():
            _log.info("a stream was cut off: %s", error)
        case _:
            _log.error("a stream failed", exc_info=error)
    try:
        async with asyncio.timeout(FAREWELL_SECONDS_MAX):
            await send({"type": "http.response.body", "body": b""})
    except TimeoutError:
        return False
    return True
