"""One stream in memory, and its followers."""

from collections.abc import Callable

import msgspec

from kernel.log.backlog import Backlog
from kernel.log.limits import LogLimits
from kernel.ports import Acknowledged, LogMessage

DUPLICATE_WINDOW_MICROSECONDS = 120 * 1_000_000

_LIMITS = LogLimits()


class MemoryStream:
    """Sequences from 1, and a memory of ids that forgets two minutes after an id was first seen, as the broker's."""

    def __init__(self, clock: Callable[[], int], *, number: int) -> None:
        self.last_seq = 0
        self._clock = clock
        self._number = number
        self._created = clock()
        self._messages: dict[int, LogMessage] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._followers: dict[MemoryFollower, None] = {}
        self._is_paused = False

    @property
    def created_at(self) -> str:
        return f"{self._created}-{self._number}"

    @property
    def first_seq(self) -> int:
        return min(self._messages, default=self.last_seq + 1)

    def store(self, message: LogMessage) -> Acknowledged:
        if self.has_seen(message.entry_id):
            return Acknowledged(seq=self._seen[message.entry_id][0], is_duplicate=True)
        now = self._clock()
        self.last_seq += 1
        self._seen[message.entry_id] = (self.last_seq, now)
        self._messages[self.last_seq] = msgspec.structs.replace(message, seq=self.last_seq, stored_at=now)
        self._deliver()
        return Acknowledged(seq=self.last_seq, is_duplicate=False)

    def has_seen(self, entry_id: str) -> bool:
        """Whether the id was first seen within the window."""
        seen = self._seen.get(entry_id)
        return seen is not None and self._clock() - seen[1] <= DUPLICATE_WINDOW_MICROSECONDS

    def get(self, seq: int) -> LogMessage | None:
        return self._messages.get(seq)

    def delete(self, seq: int) -> None:
        del self._messages[seq]

    def replace(self, message: LogMessage) -> None:
        self._messages[message.seq] = message

    def forget_ids(self) -> None:
        self._seen.clear()

    def recreate(self) -> None:
        self._number += 1
        self._created = self._clock()
        self.last_seq = 0
        self._messages.clear()
        self._seen.clear()
        for follower in self._followers:
            follower.restart()

    def restore(self, last_seq: int) -> None:
        for seq in range(last_seq + 1, self.last_seq + 1):
            self._messages.pop(seq, None)
        self._seen = {entry_id: seen for entry_id, seen in self._seen.items() if seen[0] <= last_seq}
        self.last_seq = last_seq
        for follower in self._followers:
            follower.restart()

    def follow(self, after_seq: int) -> "MemoryFollower":
        follower = MemoryFollower(after_seq)
        self._followers[follower] = None
        self._deliver()
        return follower

    def unfollow(self, follower: "MemoryFollower") -> None:
        self._followers.pop(follower, None)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        for follower in self._followers:
            follower.restart()
        self._deliver()

    def _deliver(self) -> None:
        if self._is_paused:
            return
        for follower in self._followers:
            for seq in range(max(follower.received_seq + 1, 1), self.last_seq + 1):
                message = self._messages.get(seq)
                if message is not None:
                    follower.put(message)


class MemoryFollower:
    """The port's Follower."""

    def __init__(self, after_seq: int) -> None:
        self.restarts = 0
        self._backlog = Backlog(after_seq=after_seq, limits=_LIMITS)

    @property
    def received_seq(self) -> int:
        return self._backlog.received_seq

    def put(self, message: LogMessage) -> None:
        self._backlog.put(message)

    def restart(self) -> None:
        self.restarts += 1

    async def next(self, *, messages_max: int, bytes_max: int, wait_seconds: float) -> list[LogMessage]:
        return await self._backlog.take(messages_max=messages_max, bytes_max=bytes_max, wait_seconds=wait_seconds)
