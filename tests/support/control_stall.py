"""A proxy before NATS that holds what it says about the control stream, and processes that reach NATS through it.

All else passes: entries, acknowledgements, answers. So a follower stalls whose process is well otherwise.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from tests.support.nats_proxy import NatsProxy, listening
from tests.support.stack import ROOT, KernelProcess, Stack

HELD_MAX = 1000
_CONTROL = b"STEPWELL_CONTROL"
"""In the answers about its head, in the headers of its messages, and in the acknowledgements of its entries."""


class ControlStall(NatsProxy):
    """Made by `control_stall`. Nothing is held until a test says so."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
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

    def is_kept(self, writer: asyncio.StreamWriter, message: bytes, body: bytes) -> bool:
        if not self._is_stalled or _CONTROL not in body:
            return False
        assert self.held < HELD_MAX
        self._held.append((writer, message))
        return True


def control_stall(stack: Stack) -> AbstractAsyncContextManager[ControlStall]:
    """Run a proxy before the NATS of a stack on a port of loopback."""
    return listening(ControlStall(stack.nats.port))


@asynccontextmanager
async def behind(
    stall: ControlStall, stack: Stack, command: str, settings: Mapping[str, str]
) -> AsyncGenerator[KernelProcess]:
    """Run one more process of the stack, ready when it is given; `settings` are those of the stack and its own."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    environment = plain | {
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "STEPWELL_NATS_URL": stall.url,
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
