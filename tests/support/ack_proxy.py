"""A proxy before NATS that keeps acknowledgements back: the message is stored, and nobody hears of it."""

import asyncio
from contextlib import AbstractAsyncContextManager

from tests.support.nats_proxy import NatsProxy, listening

# What a stream of executions answers to a publish; the control stream's name goes on with a word.
_ACKNOWLEDGEMENTS = tuple(b'{"stream":"STEPWELL_%d' % digit for digit in range(10))


class AckProxy(NatsProxy):
    """Acknowledgements of entries pass, until a test says otherwise. Everything else always passes."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.delay_seconds: float | None = 0.0
        """What acknowledgements wait for; None: they never arrive."""
        self.kept = 0
        """Acknowledgements that were dropped or delayed."""

    def is_kept(self, writer: asyncio.StreamWriter, message: bytes, body: bytes) -> bool:
        if self.delay_seconds == 0.0 or not body.startswith(_ACKNOWLEDGEMENTS):
            return False
        self.kept += 1
        if self.delay_seconds is not None:
            asyncio.get_running_loop().call_later(self.delay_seconds, _write, writer, message)
        return True


def ack_proxy(target_port: int) -> AbstractAsyncContextManager[AckProxy]:
    """Run a proxy before the server on a port of loopback."""
    return listening(AckProxy(target_port))


def _write(writer: asyncio.StreamWriter, message: bytes) -> None:
    if not writer.is_closing():
        writer.write(message)
