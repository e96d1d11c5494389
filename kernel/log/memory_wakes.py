"""Wake-ups in memory: each is heard on a later turn of the loop, in the order told."""

import asyncio
import logging
from collections.abc import Callable

from kernel.log.wakes import wake_subject

_log = logging.getLogger(__name__)


class MemoryWakes:
    """The port's Wakes. Everything that one instance is told is shared by whoever holds it."""

    def __init__(self) -> None:
        self.is_connected = True
        """False: what is told is lost, as it may be at any time."""
        self._listeners: list[MemorySubscription] = []
        self._turns: dict[tuple[str, str], int] = {}

    def tell(self, channel: str, payload: bytes) -> None:
        wake_subject(channel)
        if not self.is_connected:
            return
        loop = asyncio.get_running_loop()
        for listener in self._chosen(channel):
            loop.call_soon(listener.hear, payload)

    async def listen(self, channel: str, heard: Callable[[bytes], None], *, group: str = "") -> "MemorySubscription":
        wake_subject(channel)
        listener = MemorySubscription(channel, group, heard, self._listeners)
        self._listeners.append(listener)
        return listener

    def channels(self, prefix: str) -> list[str]:
        """Return the channels of a prefix that somebody listens on, once for each listener."""
        return [listener.channel for listener in self._listeners if listener.channel.startswith(prefix)]

    def _chosen(self, channel: str) -> list["MemorySubscription"]:
        """Everybody without a group, and of each group the next in turn."""
        groups: dict[str, list[MemorySubscription]] = {}
        chosen: list[MemorySubscription] = []
        for listener in self._listeners:
            if listener.channel != channel:
                continue
            if listener.group:
                groups.setdefault(listener.group, []).append(listener)
            else:
                chosen.append(listener)
        for group, members in groups.items():
            turn = self._turns.get((channel, group), 0)
            self._turns[(channel, group)] = turn + 1
            chosen.append(members[turn % len(members)])
        return chosen


class MemorySubscription:
    def __init__(
        self, channel: str, group: str, heard: Callable[[bytes], None], listeners: list["MemorySubscription"]
    ) -> None:
        self.channel = channel
        self.group = group
        self._heard = heard
        self._listeners = listeners

    def hear(self, payload: bytes) -> None:
        if self not in self._listeners:
            return
        try:
            self._heard(payload)
        except Exception:  # noqa: BLE001 - as with the real ones, a listener's fault is its own
            _log.exception("a listener failed on %s", self.channel)

    async def close(self) -> None:
        if self in self._listeners:
            self._listeners.remove(self)
