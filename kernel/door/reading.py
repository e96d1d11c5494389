"""Reading a request off the wire: the body within its limit and in time, the headers and query as plain maps."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

from kernel.domain.errors import Invalid, TooLarge, Unavailable

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

_QUERY_FIELDS_MAX = 64
_LENGTH_DIGITS_MAX = 18
COUNTED_FROM_BYTES = 32 * 1024
"""Smaller bodies are bounded by the number of open requests; from here on their bytes are counted."""


class ClientGone(Exception):
    """The client closed the connection before its request was whole."""


def header_map(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers by name. Values of a repeated one are joined, as HTTP means them: none is dropped."""
    pairs = list(headers)
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    joined: dict[bytes, bytes] = {}
    for name, value in pairs:
        joined[name] = joined[name] + b", " + value if name in joined else value
    return joined


class Bodies:
    """Reads bodies, and bounds the bytes of all that are held at once.

    One look a second over all that are being read is cheaper than a timer for each.
    """

    def __init__(self, bytes_max: int, *, held_bytes_max: int) -> None:
        """`bytes_max` of one body; `held_bytes_max` of all large ones together, from their first byte to `leave`."""
        self._bytes_max = bytes_max
        self._free_bytes = held_bytes_max
        self._held: dict[asyncio.Task[None], int] = {}
        self._reading: dict[asyncio.Task[None], float] = {}
        self._late: set[asyncio.Task[None]] = set()

    async def read(
        self, task: asyncio.Task[None], headers: dict[bytes, bytes], receive: Receive, *, deadline: float
    ) -> bytes:
        """Return the whole body of the request that `task` answers.

        Raises TooLarge as soon as the limit is passed, by the announced length before anything is read; Unavailable
        where there is no room for it now; Invalid where it does not arrive before the deadline; ClientGone where it
        never will. Its room is taken until `leave`.
        """
        if not self._is_announced(headers):
            return b""
        self._reading[task] = deadline
        try:
            return await self._read_all(task, receive)
        except asyncio.CancelledError:
            if task not in self._late:
                raise
            task.uncancel()
            raise Invalid("the body did not arrive in time") from None
        finally:
            del self._reading[task]
            self._late.discard(task)

    def cut_off_late(self) -> None:
        """End the reading of every body whose time is up."""
        now = asyncio.get_running_loop().time()
        for task, deadline in self._reading.items():
            if deadline <= now and task not in self._late:
                self._late.add(task)
                task.cancel()

    def leave(self, task: asyncio.Task[None]) -> None:
        """Free the room of the body that `task` has read: its request is answered."""
        if self._held:
            self._free_bytes += self._held.pop(task, 0)

    def _is_announced(self, headers: dict[bytes, bytes]) -> bool:
        length = headers.get(b"content-length")
        if length is None:
            return b"transfer-encoding" in headers
        if len(length) > _LENGTH_DIGITS_MAX or not length.isdigit() or int(length) > self._bytes_max:
            raise TooLarge(self._bytes_max)
        return length != b"0"

    def _hold(self, task: asyncio.Task[None], size: int) -> None:
        """Take the room of a body of which so many bytes have come. What is only announced takes none."""
        more = size - self._held.get(task, 0)
        if more > self._free_bytes:
            raise Unavailable("the bodies of other requests need all the room that there is for bodies")
        self._free_bytes -= more
        self._held[task] = size

    async def _read_all(self, task: asyncio.Task[None], receive: Receive) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > self._bytes_max:
                raise TooLarge(self._bytes_max)
            if size >= COUNTED_FROM_BYTES:
                self._hold(task, size)
            if not message.get("more_body", False):
                return b"".join((*chunks, chunk)) if chunks else chunk
            chunks.append(chunk)


def query_map(query: bytes) -> dict[str, str]:
    """Return the query by name, `""` left out as absent; of a repeated name the last value counts."""
    if not query:
        return {}
    try:
        pairs = parse_qsl(query.decode("ascii"), errors="strict", max_num_fields=_QUERY_FIELDS_MAX)
    except ValueError as error:
        raise Invalid("the query cannot be read") from error
    return dict(pairs)
