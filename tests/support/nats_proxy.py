"""A proxy before NATS that looks at every message the server sends, and may keep it back. All else passes."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar

LOOPBACK = "127.0.0.1"
_CHUNK_BYTES = 64 * 1024
_LINE_BYTES_MAX = 16 * 1024 * 1024


class NatsProxy(ABC):
    """One proxy; `listening` runs it. What it keeps back is for those that derive from it to say."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port

    @property
    def url(self) -> str:
        return f"nats://{LOOPBACK}:{self.port}"

    @abstractmethod
    def is_kept(self, writer: asyncio.StreamWriter, message: bytes, body: bytes) -> bool:
        """Keep a message back and return True, or let it pass; `message` is all of it, line and body."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until either side ends."""
        try:
            server_reader, server_writer = await asyncio.open_connection(
                LOOPBACK, self._target_port, limit=_LINE_BYTES_MAX
            )
        except OSError:
            writer.transport.abort()
            return
        try:
            both = [
                asyncio.create_task(_copy(reader, server_writer)),
                asyncio.create_task(self._filter(server_reader, writer)),
            ]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for side in both:
                side.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        finally:
            writer.transport.abort()
            server_writer.transport.abort()

    async def _filter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            tokens = line.split()
            if tokens[0] not in (b"MSG", b"HMSG"):
                writer.write(line)
                continue
            body = await reader.readexactly(int(tokens[-1]) + len(b"\r\n"))
            if not self.is_kept(writer, line + body, body):
                writer.write(line + body)


Proxy = TypeVar("Proxy", bound=NatsProxy)


@asynccontextmanager
async def listening(proxy: Proxy) -> AsyncGenerator[Proxy]:
    """Run a proxy on a port of loopback."""
    listener = await asyncio.start_server(proxy.serve, LOOPBACK, 0)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
