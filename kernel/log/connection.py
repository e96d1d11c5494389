"""The connection to NATS that comes back by itself: a new driver for every connection, the same subscriptions.

While it is down nothing is sent and nothing is kept for later.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Self

from nats.aio.subscription import Subscription

from kernel.domain.errors import LogUnavailable
from kernel.log.driver import Delivery, Driver, DriverError, Heard
from kernel.log.limits import EntryTooLarge, LogLimits
from kernel.log.replies import Replies
from kernel.log.silence import Silences

_NO_RESPONDERS = "503"
_MILLISECONDS = 1000

_log = logging.getLogger(__name__)


class Listening:
    """One subscription, on this connection and on every later one until it is closed."""

    def __init__(self, subject: str, group: str, heard: Heard, close: Callable[["Listening"], None]) -> None:
        self.subject = subject
        self.group = group
        self.heard = heard
        self.subscription: Subscription | None = None
        self._close = close

    def close(self) -> None:
        self._close(self)


class Connection:
    """Made by `open`, ended by `close`. Every method but these two is quick or has its own bound in time."""

    def __init__(self, url: str, *, name: str, limits: LogLimits) -> None:
        self.limits = limits
        self._servers = [server.strip() for server in url.split(",")]
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._replies = Replies(
            count_max=limits.unacknowledged_max,
            seconds_max=limits.acknowledgement_seconds_max,
            clock=self._loop.time,
        )
        self.silences = Silences(
            seconds=limits.silence_of_acknowledgements_seconds,
            probe_seconds=limits.silence_probe_seconds,
            clock=self._loop.time,
        )
        """What to ask before an entry is published, and to tell after it."""
        self._listenings: dict[Listening, None] = {}
        self._driver: Driver | None = None
        self._connected = asyncio.Event()
        self._ended = asyncio.Event()
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._keeper: asyncio.Task[None] | None = None
        self.listen(self._replies.subjects, self._replies.hear)

    @classmethod
    async def open(cls, url: str, *, name: str, limits: LogLimits) -> Self:
        """Connect to one of the comma-separated addresses. Raises LogUnavailable when none answers in time."""
        connection = cls(url, name=name, limits=limits)
        try:
            async with asyncio.timeout(limits.connect_seconds):
                await connection._reopen()
        except TimeoutError as error:
            raise LogUnavailable(f"no NATS server answered within {limits.connect_seconds:g} s") from error
        connection._keeper = asyncio.create_task(connection._keep(), name=f"keeper of the connection {name}")
        return connection

    async def close(self) -> None:
        """Wait, a bounded time, until the broker has taken in what was sent, and end."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        driver = self._driver
        try:
            async with asyncio.timeout(self.limits.close_seconds):
                await self._close_in_order(driver)
        except (TimeoutError, OSError, DriverError, LogUnavailable) as error:
            _log.info("the connection to NATS was not closed in order: %s", error)
        finally:
            # A driver that was closed in order is not there any more.
            self._let_go()

    async def _close_in_order(self, driver: Driver | None) -> None:
        if driver is None or not driver.is_connected:
            return
        # Closing the socket with answers unread would make the broker drop what it has not read.
        await self.round_trip()
        self._driver = None
        try:
            await driver.close()
        except BaseException:
            driver.abort()
            raise

    @property
    def is_connected(self) -> bool:
        return self._driver is not None and self._driver.is_connected

    @property
    def lost(self) -> asyncio.Future[None]:
        """Done when the present connection is gone, or none is there. To be waited for, never cancelled."""
        return self._lost

    @property
    def message_bytes_max(self) -> int:
        """The largest message, headers included, that the broker takes from us."""
        payload_max = 0 if self._driver is None else self._driver.max_payload
        return payload_max - self.limits.message_reserve_bytes

    async def wait_connected(self) -> None:
        await self._connected.wait()

    def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: dict[str, str] | None = None, size: int = 0
    ) -> None:
        """Send without waiting. `size` is that of the whole message where it has headers.

        Raises LogUnavailable where nothing was sent, EntryTooLarge where it never can be: the broker would answer an
        oversize message by ending the connection, with everything else on it.
        """
        driver = self._driver
        if driver is None or not driver.is_connected:
            raise LogUnavailable("not connected to the log")
        if max(size, len(payload)) > self.message_bytes_max:
            raise EntryTooLarge(f"the message is larger than the {self.message_bytes_max} bytes the log takes")
        if driver.pending_data_size > self.limits.send_buffer_bytes_max:
            raise LogUnavailable("the send buffer of the log is full")
        try:
            driver.publish_now(subject, payload, reply=reply, headers=headers)
        except DriverError as error:
            raise LogUnavailable("not connected to the log") from error

    def ask(
        self, subject: str, payload: bytes, heard: Heard, *, headers: dict[str, str] | None = None, size: int = 0
    ) -> str:
        """Publish with a reply subject, and return that; `heard` is called with the answer, at most once.

        Raises as `publish`, also when too many answers are waited for.
        """
        reply = self._replies.expect(heard)
        try:
            self.publish(subject, payload, reply=reply, headers=headers, size=size)
        except LogUnavailable:
            self._replies.forget(reply)
            raise
        return reply

    async def request(self, subject: str, payload: bytes = b"") -> Delivery:
        """Ask and wait. Raises LogUnavailable where no answer comes, at once when the connection is lost."""
        answered: asyncio.Future[Delivery] = self._loop.create_future()
        lost = self._lost
        reply = self.ask(subject, payload, lambda delivery: _set(answered, delivery))
        try:
            await asyncio.wait(
                (answered, lost), timeout=self.limits.request_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self._replies.forget(reply)
        if not answered.done():
            raise LogUnavailable("the log did not answer")
        delivery = answered.result()
        if delivery.status == _NO_RESPONDERS:
            raise LogUnavailable("nobody answers for the log")
        return delivery

    async def round_trip(self) -> None:
        """Return when the broker has taken in all that was written before. Raises LogUnavailable."""
        answered: asyncio.Future[Delivery] = self._loop.create_future()
        listening = self.listen(self.new_subject(), lambda delivery: _set(answered, delivery))
        lost = self._lost
        try:
            self.publish(listening.subject, b"")
            await asyncio.wait(
                (answered, lost), timeout=self.limits.request_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            listening.close()
        if not answered.done():
            raise LogUnavailable("the broker did not answer")

    def new_subject(self) -> str:
        """Return a subject for a subscription of our own."""
        return self._replies.new_subject()

    def listen(self, subject: str, heard: Heard, *, group: str = "") -> Listening:
        """Subscribe from now on. `heard` is called in the read loop and must be quick."""
        listening = Listening(subject, group, heard, self._unlisten)
        self._listenings[listening] = None
        if self._driver is not None and self._driver.is_connected:
            try:
                listening.subscription = self._driver.hear(subject, heard, group=group)
            except DriverError:
                # The connection is going; the next one subscribes.
                _log.debug("not subscribed to %s on the connection that ends", subject)
        return listening

    def _unlisten(self, listening: Listening) -> None:
        self._listenings.pop(listening, None)
        subscription, listening.subscription = listening.subscription, None
        if self._driver is not None and subscription is not None:
            self._driver.unhear(subscription)

    async def _keep(self) -> None:
        """Reopen for as long as it takes, whenever the connection is lost."""
        while True:
            try:
                await self._until_lost()
                self._let_go()
                await self._reopen()
            except Exception:  # noqa: BLE001 - the top of the loop, see below
                # The top of the loop: an error nobody foresaw must not leave the process without its log for good.
                _log.exception("the connection to NATS could not be kept")
                await asyncio.sleep(self.limits.reconnect_seconds_max)

    async def _until_lost(self) -> None:
        while self.is_connected:
            try:
                async with asyncio.timeout(self.limits.look_seconds):
                    await self._ended.wait()
            except TimeoutError:
                # The driver says when it ends; should it ever not, it is still noticed.
                continue

    def _let_go(self) -> None:
        """Tell everybody that the connection is gone, and drop what is left of it."""
        driver, self._driver = self._driver, None
        self._connected.clear()
        self.silences.forget()
        if not self._lost.done():
            self._lost.set_result(None)
        for listening in self._listenings:
            listening.subscription = None
        if driver is not None:
            _log.warning("the connection to NATS is lost")
            driver.abort()

    async def _reopen(self) -> None:
        limits = self.limits
        tries = 0
        while True:
            try:
                await self._open_once()
                break
            except (OSError, DriverError) as error:
                tries += 1
                _log.log(logging.WARNING if tries == 1 else logging.DEBUG, "cannot connect to NATS: %s", error)
            await asyncio.sleep(random_seconds(limits.reconnect_seconds_min, limits.reconnect_seconds_max))
        _log.info("connected to NATS")

    async def _open_once(self) -> None:
        """Connect and subscribe anew. A driver that does not get there is dropped."""
        ended = asyncio.Event()
        driver = Driver(ended.set)
        try:
            await self._open_driver(driver)
            for listening in self._listenings:
                listening.subscription = driver.hear(listening.subject, listening.heard, group=listening.group)
        except BaseException:
            driver.abort()
            raise
        self._driver = driver
        self._ended = ended
        self._lost = self._loop.create_future()
        self._connected.set()

    async def _open_driver(self, driver: Driver) -> None:
        """Connect in a task of its own. Raises DriverError, OSError or TimeoutError.

        The driver waits with asyncio.wait_for, which in Python 3.11 loses a cancellation that meets the end of what it
        waits for: here a deadline would pass unnoticed, and `close` would wait for ever.
        """
        limits = self.limits
        opening = asyncio.create_task(
            driver.open(
                self._servers,
                name=self._name,
                try_seconds=limits.connect_try_seconds,
                ping_seconds=limits.ping_seconds,
                pings_unanswered_max=limits.pings_unanswered_max,
            ),
            name=f"opening of the connection {self._name}",
        )
        try:
            await asyncio.wait([opening], timeout=limits.connect_try_seconds)
        finally:
            while not opening.done():
                opening.cancel()
                await asyncio.wait([opening], timeout=limits.look_seconds)
            failure = None if opening.cancelled() else opening.exception()
        if opening.cancelled():
            raise TimeoutError("no answer to the greeting")
        if failure is not None:
            raise failure


def random_seconds(low: float, high: float) -> float:
    """Return a duration between the two, to the millisecond, so that many who wait do not come at once."""
    span = round((high - low) * _MILLISECONDS)
    return low + secrets.randbelow(span + 1) / _MILLISECONDS


def _set(future: asyncio.Future[Delivery], delivery: Delivery) -> None:
    if not future.done():
        future.set_result(delivery)
