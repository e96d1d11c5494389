"""A proxy before NATS that loses chosen messages on their way to the client, as no broker would say it did."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from kernel.embedded import EmbeddedServer

_CHUNK_BYTES = 64 * 1024
_LINE_BYTES_MAX = 16 * 1024 * 1024


class LossyProxy:
    """`is_lost` is asked about every message to a client, by subject and reply subject."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.is_lost: Callable[[str, str], bool] = lambda _subject, _reply: False
        self.url = ""
        self._server = server

    def lose_next(self, prefix: str, *, count: int = 1) -> None:
        """Lose the next messages whose subject begins so."""
        left = count

        def is_lost(subject: str, _: str) -> bool:
            nonlocal left
            if left == 0 or not subject.startswith(prefix):
                return False
            left -= 1
            return True

        self.is_lost = is_lost

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until either side ends."""
        try:
            server_reader, server_writer = await asyncio.open_connection(
                "127.0.0.1", self._server.port, limit=_LINE_BYTES_MAX
            )
        except OSError:
            writer.close()
            return
        try:
            done, pending = await asyncio.wait(
                (
                    asyncio.create_task(_copy(reader, server_writer)),
                    asyncio.create_task(self._filter(server_reader, writer)),
                ),
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in pending:
                task.cancel()
            await asyncio.gather(*done, *pending, return_exceptions=True)
        finally:
            for side in (writer, server_writer):
                side.transport.abort()

    async def _filter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            tokens = line.decode("latin-1").split()
            if tokens[0] not in ("MSG", "HMSG"):
                writer.write(line)
                continue
            # MSG subject sid [reply] size, HMSG subject sid [reply] header-size size
            body = await reader.readexactly(int(tokens[-1]) + len("\r\n"))
            has_reply = len(tokens) == (5 if tokens[0] == "MSG" else 6)
            if not self.is_lost(tokens[1], tokens[3] if has_reply else ""):
                writer.write(line + body)


@asynccontextmanager
async def lossy_proxy(server: EmbeddedServer) -> AsyncGenerator[LossyProxy]:
    proxy = LossyProxy(server)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        listener.close()
        await listener.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
