"""Wake-ups over NATS core. They may be lost, repeated or late, and no stream stores them."""

import logging
import re
from collections.abc import Callable
from functools import lru_cache

from kernel.domain.errors import InvariantBroken, LogUnavailable
from kernel.log.connection import Connection, Listening

_CHANNEL = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)

_CHANNELS_CACHED_MAX = 4096

_log = logging.getLogger(__name__)


class NatsWakes:
    """The port's Wakes on a connection that somebody else opens and closes, such as `JetStreamLog.connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def tell(self, channel: str, payload: bytes) -> None:
        try:
            self._connection.publish(wake_subject(channel), payload)
        except LogUnavailable as error:
            _log.debug("nobody was woken on %s: %s", channel, error)

    async def listen(self, channel: str, heard: Callable[[bytes], None], *, group: str = "") -> "NatsSubscription":
        """From its return on every message is heard while connected, and again after each reconnection."""
        listening = self._connection.listen(wake_subject(channel), lambda message: heard(message.data), group=group)
        try:
            await self._connection.round_trip()
        except LogUnavailable as error:
            # It is registered: the next connection subscribes before anything else.
            _log.debug("not yet listening on %s: %s", channel, error)
        except BaseException:
            listening.close()
            raise
        return NatsSubscription(listening)


class NatsSubscription:
    def __init__(self, listening: Listening) -> None:
        self._listening = listening

    async def close(self) -> None:
        self._listening.close()


@lru_cache(maxsize=_CHANNELS_CACHED_MAX)
def wake_subject(channel: str) -> str:
    """Return the subject of a channel. Raises InvariantBroken for a name that could reach another channel."""
    if _CHANNEL.fullmatch(channel) is None:
        raise InvariantBroken(f"{channel!r} is no channel")
    return f"stepwell-wake.{channel}"
