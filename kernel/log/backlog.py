"""What a follower has received and its reader has not yet taken: in order, without repeats, bounded."""

import asyncio
from collections import deque

from kernel.log.limits import LogLimits
from kernel.ports import LogMessage


class Backlog:
    def __init__(self, *, after_seq: int, limits: LogLimits) -> None:
        self.received_seq = after_seq
        """The last sequence taken in, whether or not it was read."""
        self._limits = limits
        self._messages: deque[LogMessage] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._eased = asyncio.Event()
        self._eased.set()

    @property
    def is_over(self) -> bool:
        """Whether it holds all that it may."""
        limits = self._limits
        return len(self._messages) >= limits.follow_messages_max or self._bytes >= limits.follow_bytes_max

    @property
    def is_eased(self) -> bool:
        """Whether there is room for as much as it holds."""
        limits = self._limits
        return len(self._messages) * 2 <= limits.follow_messages_max and self._bytes * 2 <= limits.follow_bytes_max

    def put(self, message: LogMessage) -> None:
        self._messages.append(message)
        self._bytes += len(message.payload)
        self.received_seq = message.seq
        self._arrived.set()
        if not self.is_eased:
            self._eased.clear()

    async def take(self, *, messages_max: int, bytes_max: int, wait_seconds: float) -> list[LogMessage]:
        """As `Follower.next`. Cancelled, it has taken nothing."""
        if not self._messages:
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        return self._take_now(messages_max, bytes_max)

    async def wait_eased(self) -> None:
        await self._eased.wait()

    def _take_now(self, messages_max: int, bytes_max: int) -> list[LogMessage]:
        taken: list[LogMessage] = []
        taken_bytes = 0
        while self._messages and len(taken) < messages_max:
            size = len(self._messages[0].payload)
            if taken and taken_bytes + size > bytes_max:
                break
            taken.append(self._messages.popleft())
            taken_bytes += size
        self._bytes -= taken_bytes
        if not self._messages:
            self._arrived.clear()
        if self.is_eased:
            self._eased.set()
        return taken
