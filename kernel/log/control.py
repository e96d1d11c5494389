"""The control stream on JetStream: append, read a page, ask for the head, wait for a hint."""

import asyncio
from collections.abc import Callable

from kernel.domain.errors import LogUnavailable
from kernel.log.api import read_acknowledgement, stream_info
from kernel.log.appending import Said, append_through
from kernel.log.connection import Connection
from kernel.log.driver import Delivery
from kernel.log.messages import read_direct
from kernel.log.naming import CONTROL_STREAM, CONTROL_SUBJECT, ENTRY_ID_HEADER, message_bytes
from kernel.log.silence import CONTROL
from kernel.ports import ControlMessage

# Told after the acknowledgement. A subscriber of the stream's own subject hears an entry before it is stored, and would
# look for it in vain.
_HINT_SUBJECT = "stepwell-control-hint"


class JetStreamControlLog:
    """The port's ControlLog on a connection that somebody else opens and closes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._hinted = asyncio.Event()
        connection.listen(_HINT_SUBJECT, self._hear_hint)

    async def append_control(self, *, entry_id: str, payload: bytes, timeout_seconds: float) -> int:
        headers = {ENTRY_ID_HEADER: entry_id}

        silences = self._connection.silences

        def send(said: Callable[[Said], None]) -> None:
            watched = silences.watch(CONTROL, said)

            def heard(delivery: Delivery) -> None:
                spoken = read_acknowledgement(delivery)
                if spoken is not None:
                    watched(spoken)

            size = message_bytes(headers, payload)
            self._connection.ask(CONTROL_SUBJECT, payload, heard, headers=headers, size=size)
            silences.sent(watched)

        appended = await append_through(
            self._connection, send, timeout_seconds=timeout_seconds, limits=self._connection.limits
        )
        self._hint()
        return appended.seq

    async def read_control(self, *, after_seq: int) -> list[ControlMessage]:
        """Return the messages after a sequence, up to the head or to the bounds of a page, without holes of our making.

        Raises LogUnavailable where any of them cannot be read.
        """
        limits = self._connection.limits
        state = (await stream_info(self._connection, CONTROL_STREAM)).state
        first_seq = max(after_seq + 1, state.first_seq)
        end_seq = min(state.last_seq + 1, first_seq + limits.control_page_messages_max)
        page: list[ControlMessage] = []
        page_bytes = 0
        for start in range(first_seq, end_seq, limits.control_reads_max):
            if page_bytes >= limits.control_page_bytes_max:
                break
            read = await self._read(range(start, min(start + limits.control_reads_max, end_seq)))
            page += read
            page_bytes += sum(len(message.payload) for message in read)
        return page

    async def control_head(self) -> int:
        return (await stream_info(self._connection, CONTROL_STREAM)).state.last_seq

    async def wait_control(self, *, wait_seconds: float) -> None:
        try:
            async with asyncio.timeout(wait_seconds):
                await self._hinted.wait()
        except TimeoutError:
            return
        self._hinted.clear()

    async def _read(self, seqs: range) -> list[ControlMessage]:
        try:
            async with asyncio.TaskGroup() as group:
                reads = [group.create_task(read_direct(self._connection, CONTROL_STREAM, seq)) for seq in seqs]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        found = [(seq, read.result()) for seq, read in zip(seqs, reads, strict=True)]
        return [ControlMessage(seq=seq, payload=delivery.data) for seq, delivery in found if delivery is not None]

    def _hint(self) -> None:
        try:
            self._connection.publish(_HINT_SUBJECT, b"")
        except LogUnavailable:
            # Everybody asks for the head by themselves anyway.
            return

    def _hear_hint(self, _: Delivery) -> None:
        self._hinted.set()
