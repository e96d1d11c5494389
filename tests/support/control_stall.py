"""A proxy before NATS that holds what it says about the control stream, and processes that reach NATS through it.

All else passes: entries, acknowledgements, answers. So a follower stalls whose process is well otherwise.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from tests.support.stack import ROOT, KernelProcess, Stack

LOOPBACK = "127.0.0.1"
HELD_MAX = 1000
_CHUNK_BYTES = 64 * 1024
_LINE_BYTES_MAX = 16 * 1024 * 1024
_CONTROL = b"STEPWELL_CONTROL"
"""In the answers about its head, in the headers of its messages, and in the acknowledgements of its entries."""


class ControlStall:
    """Made by `control_stall`. Nothing is held until a test says so."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._is_stalled = False
        self._held: list[tuple[asyncio.StreamWriter, bytes]] = []

    @property
    def held(self) -> int:
        """Messages that are kept back."""
        return len(self._held)

    def stall(self) -> None:
        """Keep back whatever is said about the control stream from now on."""
        self._is_stalled = True

    def let_go(self) -> None:
        """Say what was kept back, in its order, and keep nothing back any more."""
        self._is_stalled = False
        held, self._held = self._held, []
        for writer, message in held:
            if not writer.is_closing():
                writer.write(message)

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
            if self._is_stalled and _CONTROL in body:
                assert self.held < HELD_MAX
                self._held.append((writer, line + body))
            else:
                writer.write(line + body)


@asynccontextmanager
async def control_stall(stack: Stack) -> AsyncGenerator[ControlStall]:
    """Run a proxy before the NATS of a stack on a port of loopback."""
    stall = ControlStall(stack.nats.port)
    listener = await asyncio.start_server(stall.serve, LOOPBACK, 0)
    stall.port = listener.sockets[0].getsockname()[1]
    try:
        yield stall
    finally:
        listener.close()


@asynccontextmanager
async def behind(
    stall: ControlStall, stack: Stack, command: str, settings: Mapping[str, str]
) -> AsyncGenerator[KernelProcess]:
    """Run one more process of the stack, ready when it is given; `settings` are those of the stack and its own."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    environment = plain | {
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "STEPWELL_NATS_URL": f"nats://{LOOPBACK}:{stall.port}",
        "STEPWELL_REDIS_URL": stack.valkey.url,
        "STEPWELL_API_KEY": stack.api_key,
        **settings,
    }
    process = KernelProcess(f"stalled-{command}", [command], environment, stack.folder)
    try:
        await process.start(has_door=command == "door")
        yield process
    finally:
        if process.is_running:
            # Its last words go through the proxy, which runs on this loop.
            await asyncio.to_thread(process.terminate)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
