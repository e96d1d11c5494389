"""A TCP proxy before a server that delays, holds back, or cuts a piece half-way, on some of its connections.

It runs on a thread and an event loop of its own, so that it goes on while a test blocks.
"""

import asyncio
import random
import threading
from typing import Literal

from kernel.embedded import free_port
from tests.support.scripted_agent import pass_time

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
START_SECONDS_MAX = 10.0

Trouble = Literal["calm", "slow", "silent", "cut"]


class Link:
    """All connections to one server. Trouble chooses its connections by the seed, half of them at a time."""

    def __init__(self, seed: int, *, delay_seconds_max: float = 0.3) -> None:
        self.port = free_port()
        self.passed = 0
        """Pieces that went through."""
        self.harmed = 0
        """Pieces that were delayed, held back or cut."""
        self._choose = random.Random(seed)
        self._delay_seconds_max = delay_seconds_max
        self._trouble: Trouble = "calm"
        self._calm = asyncio.Event()
        self._calm.set()
        self._target_port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._open: dict[asyncio.WriteTransport, bool] = {}
        """The client sides, and whether trouble meets them."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, target_port: int) -> None:
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"link to {target_port}", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(START_SECONDS_MAX)

    def stop(self) -> None:
        """End every connection, the loop and the thread. Does nothing before `start`."""
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(START_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS_MAX)
        self._loop.close()

    def begin(self, trouble: Trouble) -> None:
        """Let trouble meet some connections: those that are open now, and those that come while it lasts."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._begin, trouble)

    def end(self, *, drop: bool) -> None:
        """Back to calm. `drop` closes what trouble had met, else what was held back arrives now."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._calm_down, drop)

    # ------------------------------------------------------------ on the link's own loop

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self.port)

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, trouble: Trouble) -> None:
        self._trouble = trouble
        self._calm.clear()
        for transport in self._open:
            self._open[transport] = self._choose.random() < 0.5

    def _calm_down(self, drop: bool) -> None:
        if drop:
            for transport, is_met in self._open.items():
                if is_met:
                    transport.abort()
        self._trouble = "calm"
        self._calm.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        client = writer.transport
        self._open[client] = self._trouble != "calm" and self._choose.random() < 0.5
        try:
            await self._join(reader, writer)
        except OSError:
            # Whoever ends a connection here ends it for both sides, which is what a network does.
            return
        finally:
            client.abort()
            del self._open[client]
            self._tasks.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(LOOPBACK, self._target_port)
        pumps = [
            asyncio.ensure_future(self._pump(reader, back, writer.transport)),
            asyncio.ensure_future(self._pump(there, writer, writer.transport)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            back.transport.abort()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, client: asyncio.WriteTransport
    ) -> None:
        while chunk := await source.read(CHUNK_BYTES):
            if self._open.get(client) and self._trouble != "calm":
                self.harmed += 1
                match self._trouble:
                    case "slow":
                        await pass_time(self._choose.random() * self._delay_seconds_max)
                    case "silent":
                        await self._calm.wait()
                    case "cut":
                        target.write(chunk[: self._choose.randrange(len(chunk))])
                        await target.drain()
                        return
            self.passed += 1
            target.write(chunk)
            await target.drain()
