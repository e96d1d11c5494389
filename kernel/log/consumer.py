"""One push consumer of a stream, from its making to its first irregularity. It is never mended: the follower makes
another, from the last sequence received."""

import asyncio
import logging
import secrets
from collections.abc import Callable

from kernel.domain.errors import LogUnavailable
from kernel.log.api import NewConsumer, call
from kernel.log.backlog import Backlog
from kernel.log.connection import Connection, Listening
from kernel.log.driver import Delivery
from kernel.log.messages import delivered_message, read_place

_NANOSECONDS_IN_A_SECOND = 1_000_000_000
_CONTROL_STATUS = "100"
_NAME_BYTES = 8

_log = logging.getLogger(__name__)


class Consumer:
    """`ended` is done, with the reason, when it may have missed a message or must not go on."""

    def __init__(
        self, connection: Connection, *, stream: str, shard: int, backlog: Backlog, made: Callable[[], None]
    ) -> None:
        """`made` is called once, before the first message is put into the backlog."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.has_received = False
        self._connection = connection
        self._stream = stream
        self._shard = shard
        self._backlog = backlog
        self._name = f"follower-{secrets.token_hex(_NAME_BYTES)}"
        self._made: Callable[[], None] | None = made
        self._received = 0
        self._held_reply = ""
        self._listening: Listening | None = None

    async def open(self) -> int:
        """Make it, after the last sequence received, and return how many messages wait. Raises LogUnavailable.

        Its deliveries have a subject of their own, so that no earlier consumer's can be taken for them.
        """
        limits = self._connection.limits
        self._listening = self._connection.listen(self._connection.new_subject(), self._hear)
        answer = await call(
            self._connection,
            f"CONSUMER.CREATE.{self._stream}.{self._name}",
            {
                "stream_name": self._stream,
                "config": {
                    "name": self._name,
                    "deliver_subject": self._listening.subject,
                    "deliver_policy": "by_start_sequence",
                    "opt_start_seq": self._backlog.received_seq + 1,
                    "ack_policy": "none",
                    "replay_policy": "instant",
                    "mem_storage": True,
                    "num_replicas": 1,
                    "flow_control": True,
                    "idle_heartbeat": _nanoseconds(limits.heartbeat_seconds),
                    "inactive_threshold": _nanoseconds(limits.inactive_seconds),
                },
            },
            NewConsumer,
        )
        self._tell_made()
        return answer.num_pending

    def close(self) -> None:
        """Stop listening and let the broker forget it; the broker does so by itself where this is not heard."""
        self._end("closed")
        if self._listening is None:
            return
        self._listening.close()
        try:
            self._connection.ask(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._name}", b"", _ignore)
        except LogUnavailable:
            _log.debug("the consumer %s is left to expire", self._name)

    @property
    def is_held(self) -> bool:
        """Whether the broker waits for us, and its silence means nothing."""
        return self._held_reply != ""

    def let_flow(self) -> None:
        """Let the broker send on where it waits and there is room."""
        if self._held_reply and self._backlog.is_eased:
            reply, self._held_reply = self._held_reply, ""
            try:
                self._connection.publish(reply, b"")
            except LogUnavailable:
                self._end("the connection is gone")

    def _hear(self, delivery: Delivery) -> None:
        if self.ended.done():
            return
        if delivery.status == _CONTROL_STATUS:
            self._hear_control(delivery)
            return
        if delivery.status:
            self._end(f"the broker says {delivery.status}")
            return
        place = read_place(delivery.reply)
        if place is None:
            # Not from the stream: somebody published to our inbox.
            return
        if place.consumer_seq != self._received + 1 or place.stream_seq <= self._backlog.received_seq:
            self._end(f"delivery {place.consumer_seq} came after {self._received}")
            return
        # Deliveries may overtake the answer that the consumer is made.
        self._tell_made()
        self._received = place.consumer_seq
        self.has_received = True
        self._backlog.put(delivered_message(self._shard, place, delivery))
        if self._backlog.is_over:
            self._end("the reader is behind")

    def _hear_control(self, delivery: Delivery) -> None:
        """Flow control and heartbeats. A heartbeat says how many deliveries went before it."""
        last = delivery.headers.get("Nats-Last-Consumer")
        if last is not None and last != str(self._received):
            self._end(f"{last} deliveries were sent and {self._received} received")
            return
        reply = delivery.reply or delivery.headers.get("Nats-Consumer-Stalled", "")
        if reply:
            self._held_reply = reply
            self.let_flow()

    def _tell_made(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made()

    def _end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS_IN_A_SECOND)


def _ignore(_: Delivery) -> None:
    """The answer to a question that was only a courtesy."""
