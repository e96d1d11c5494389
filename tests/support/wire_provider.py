"""A model provider on loopback whose answers are bytes that a test writes: cut anywhere, compressed, broken, slow."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

from tests.support.peers import Connection, Peer, peer

Ending = Literal["whole", "cut"]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. Its pieces leave one by one, as chunks of their own; a `cut` one ends without the last chunk."""

    status: int = 200
    headers: dict[str, str] = msgspec.field(default_factory=lambda: {"content-type": "application/json"})
    pieces: tuple[bytes, ...] = ()
    ending: Ending = "whole"
    waits_before_piece: int = -1
    """Before the piece of this index the answer waits for `WireProvider.go_on`."""


class NoReply(msgspec.Struct, frozen=True):
    """The connection ends without an answer."""


class WireProvider:
    """Answers the n-th request with the n-th reply, and all further ones with the last."""

    def __init__(self) -> None:
        self.replies: list[Reply | NoReply] = [Reply(pieces=(b"{}",))]
        self.requests: list[bytes] = []
        self.go_on = asyncio.Event()
        self.peer: Peer | None = None

    @property
    def url(self) -> str:
        assert self.peer is not None
        return f"http://127.0.0.1:{self.peer.port}"

    @property
    def hits(self) -> int:
        return len(self.requests)

    def head_of(self, number: int) -> dict[str, str]:
        """The headers of a request, by lower-case name."""
        lines = self.requests[number].partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    async def handle(self, connection: Connection) -> None:
        self.requests.append(await connection.read_request())
        reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
        if isinstance(reply, NoReply):
            return
        headers = reply.headers | {"transfer-encoding": "chunked", "connection": "close"}
        lines = [f"HTTP/1.1 {reply.status} Said", *(f"{name}: {value}" for name, value in headers.items())]
        await connection.send("\r\n".join([*lines, "", ""]).encode())
        for index, piece in enumerate(reply.pieces):
            if index == reply.waits_before_piece:
                await self.go_on.wait()
            await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        if reply.ending == "whole":
            await connection.send(b"0\r\n\r\n")
            await connection.hang_up(wait_seconds=10)


@asynccontextmanager
async def wire_provider(*replies: Reply | NoReply) -> AsyncIterator[WireProvider]:
    found = WireProvider()
    found.replies = list(replies) or found.replies
    async with peer(found.handle) as serving:
        found.peer = serving
        yield found


def in_pieces(body: bytes, size: int) -> tuple[bytes, ...]:
    """Cut bytes into pieces of one size."""
    return tuple(body[start : start + size] for start in range(0, len(body), size))


def events(*data: str, end: str = "\n") -> bytes:
    """Return a stream of events, each with its data."""
    return "".join(f"data: {each}{end}{end}" for each in data).encode()


def streamed(body: bytes, *, size: int = 0, **options: object) -> Reply:
    pieces: Iterable[bytes] = in_pieces(body, size) if size else (body,)
    return msgspec.convert(
        {"headers": {"content-type": "text/event-stream"}, "pieces": tuple(pieces), **options}, Reply
    )
