"""All that is known here of the inside of nats-py: one connection, used once and never reconnected.

Measured against callbacks in tasks: handing messages over inside the read loop saves a task switch a message, and no
queue is left between that could overflow and drop.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import Error as DriverError
from nats.errors import NoServersError

__all__ = ["Delivery", "Driver", "DriverError", "Heard"]

T = TypeVar("T")

_NO_HEADERS: Mapping[str, str] = {}

_log = logging.getLogger(__name__)


class Delivery(msgspec.Struct, frozen=True):
    """One message as it came from the broker."""

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str]

    @property
    def status(self) -> str:
        """The broker's own word, such as `404` or `503`; empty on what a client published."""
        return self.headers.get("Status", "")


Heard = Callable[[Delivery], None]


class Driver(Client):
    """One connection of nats-py, whose subscriptions are heard inside its read loop."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """`ended` is called when the connection ends, however it does, at the moment from which nothing is sent."""
        super().__init__()
        self._ended = ended
        self._heard: dict[int, Heard] = {}
        self._reported: Exception | None = None
        self._is_closed_in_order = False

    async def open(
        self,
        servers: list[str],
        *,
        name: str,
        try_seconds: float,
        ping_seconds: int,
        pings_unanswered_max: int,
    ) -> None:
        """Connect, or raise DriverError, OSError or TimeoutError.

        The driver's own reconnection is switched off: it would send what was buffered in the outage, it waits for the
        socket of a dead peer to empty, and after some of the broker's errors it gives up for good.
        """
        try:
            await self.connect(
                servers,
                name=name,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=max(1, round(try_seconds)),
                ping_interval=ping_seconds,
                max_outstanding_pings=pings_unanswered_max,
                # Nothing is buffered unconnected, and without a limit here a publish never waits: the bound is ours.
                pending_size=0,
                flusher_queue_size=0,
                skip_subject_validation=True,
                error_cb=self._note_error,
            )
        except NoServersError as error:
            # All were tried; why the last one did not answer tells more.
            raise DriverError(str(self._reported or error)) from error

    def publish_now(self, subject: str, payload: bytes, *, reply: str, headers: dict[str, str] | None) -> None:
        """Put a message on its way without waiting. Raises DriverError where nothing was sent.

        `publish` is a coroutine that, set up as above, does not wait. Should it ever do, part of the message may be
        gone: the connection is given up, and the message counts as sent and never answered.
        """
        try:
            _run_at_once(self.publish(subject, payload, reply=reply, headers=headers))
        except (_Waits, OSError):
            self.abort()

    def hear(self, subject: str, heard: Heard, *, group: str) -> Subscription:
        """Subscribe; `heard` is called in the read loop and must be quick. Raises DriverError."""
        try:
            # The driver leaves the type of a parameter open that is not used here.
            subscribing = self.subscribe(subject, queue=group)  # pyright: ignore[reportUnknownMemberType] - see above
            subscription = _run_at_once(subscribing)
        except (_Waits, OSError) as error:
            self.abort()
            raise DriverError("the subscription was not written") from error
        self._heard[_id_of(subscription)] = heard
        return subscription

    def unhear(self, subscription: Subscription) -> None:
        """End a subscription; what arrives from now on is dropped."""
        self._heard.pop(_id_of(subscription), None)
        if not self.is_connected:
            return
        try:
            _run_at_once(subscription.unsubscribe())
        except (_Waits, OSError, DriverError):
            self.abort()

    async def close(self) -> None:
        """Send what waits, then end. Takes as long as the peer likes."""
        self._is_closed_in_order = True
        await super().close()

    def abort(self) -> None:
        """Drop the socket with whatever waits in it. The read loop then finds its end and cleans up."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    def _build_message(  # pyright: ignore[reportIncompatibleMethodOverride] - the caller drops what is None
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> None:
        """Called by the read loop for every message of a live subscription, in order, with parsed headers."""
        heard = self._heard.get(sid)
        if heard is None:
            return
        try:
            heard(Delivery(subject.decode(), reply.decode(), data, headers or _NO_HEADERS))
        except Exception:  # noqa: BLE001 - the top of the loop, see below
            # The top of the loop: whatever a listener does, the connection and its neighbours go on.
            _log.exception("a listener failed on a message for %r", subject)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """Called for the headers of every message. The driver's own looks at each character of every name.

        Whatever is no header gets a name that nobody asks for.
        """
        lines = raw.decode("utf-8", "replace").split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        return {name.strip(): value.strip() for name, separator, value in pairs if separator}

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Every end comes through here. After an error the driver would wait for the dead peer to read the rest."""
        if not self._is_closed_in_order:
            self.abort()
        self._ended()
        try:
            await super()._close(status, do_cbs)
        except OSError as error:
            _log.debug("the rest of a connection was not sent: %r", error)

    async def _note_error(self, error: Exception) -> None:
        """Called for what goes wrong beside any call; whether it ends the connection shows by itself."""
        self._reported = error
        _log.log(logging.WARNING if self.is_connected else logging.DEBUG, "nats-py reports %r", error)


class _Waits(Exception):
    """A coroutine that was to run at once has waited."""


def _run_at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not wait, outside any task."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise _Waits


def _id_of(subscription: Subscription) -> int:
    return subscription._id  # pyright: ignore[reportPrivateUsage] - the read loop names subscriptions by it
