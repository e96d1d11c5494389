"""A proxy before NATS that keeps acknowledgements back: the message is stored, and nobody hears of it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

LOOPBACK = "127.0.0.1"
_CHUNK_BYTES = 64 * 1024
_LINE_BYTES_MAX = 16 * 1024 * 1024
# What a stream of executions answers to a publish; the control stream's name goes on with a word.
_ACKNOWLEDGEMENTS = tuple(b'{"stream":"STEPWELL_%d' % digit for digit in range(10))


class AckProxy:
    """Acknowledgements of entries pass, until a test says otherwise. Everything else always passes."""

    def __init__(self, target_port: int) -> None:
        self.url = ""
        self.delay_seconds: float | None = 0.0
        """What acknowledgements wait for; None: they never arrive."""
        self.kept = 0
        """Acknowledgements that were dropped or delayed."""
        self._target_port = target_port

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
            if body.startswith(_ACKNOWLEDGEMENTS) and self.delay_seconds != 0.0:
                self._keep(writer, line + body)
            else:
                writer.write(line + body)

    def _keep(self, writer: asyncio.StreamWriter, message: bytes) -> None:
        self.kept += 1
        if self.delay_seconds is not None:
            asyncio.get_running_loop().call_later(self.delay_seconds, _write, writer, message)


@asynccontextmanager
async def ack_proxy(target_port: int) -> AsyncGenerator[AckProxy]:
    """Run a proxy before the server on a port of loopback."""
    proxy = AckProxy(target_port)
    listener = await asyncio.start_server(proxy.serve, LOOPBACK, 0)
    proxy.url = f"nats://{LOOPBACK}:{listener.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        listener.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)


def _write(writer: asyncio.StreamWriter, message: bytes) -> None:
    if not writer.is_closing():
        writer.write(message)
