"""Which streams take publishes and acknowledge none of them, though the broker is there.

NATS answers no publish of a stream any more once a write to its files has failed, until it is restarted: measured with
2.15, also when there is room again. What reads, and what is refused before it is written, is answered as ever.
"""

from collections.abc import Callable

from kernel.domain.errors import LogUnavailable
from kernel.ports import Acknowledged, Rejected

Said = Acknowledged | Rejected

CONTROL = -1
"""The control stream among the streams of the shards."""


class LogSilent(LogUnavailable):
    """Nothing was sent: the stream has acknowledged nothing for too long."""


class Watched:
    """One publish, and whom to tell what the broker says of it."""

    __slots__ = ("_hear", "at", "said", "stream")

    def __init__(
        self, stream: int, said: Callable[[Said], None], hear: Callable[["Watched", Said], None], *, at: float
    ) -> None:
        self.stream = stream
        self.said = said
        self.at = at
        self._hear = hear

    def __call__(self, said: Said) -> None:
        self._hear(self, said)
        self.said(said)


class Silences:
    """The streams of one connection. While one is silent, a single publish a period is let through to find out."""

    def __init__(self, *, seconds: float, probe_seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._probe_seconds = probe_seconds
        self._clock = clock
        self._first: dict[int, Watched] = {}
        """The first publish since the last sign that the stream stores what it is sent."""
        self._probed_at: dict[int, float] = {}
        self._acknowledged_seq: dict[int, int] = {}

    def is_silent(self, stream: int) -> bool:
        """Whether publishes have waited too long for the first acknowledgement."""
        first = self._first.get(stream)
        return first is not None and self._clock() - first.at >= self._seconds

    def watch(self, stream: int, said: Callable[[Said], None]) -> Watched:
        """Return what is to hear the answer to a publish. Raises LogSilent where it must not be sent."""
        now = self._clock()
        if self.is_silent(stream) and now - self._probed_at.get(stream, -self._probe_seconds) < self._probe_seconds:
            raise LogSilent("the log takes entries and acknowledges none of them")
        return Watched(stream, said, self._hear, at=now)

    def sent(self, watched: Watched) -> None:
        """Take note that it is on its way."""
        if self._first.setdefault(watched.stream, watched) is not watched and self.is_silent(watched.stream):
            self._probed_at[watched.stream] = watched.at

    def note_stored(self, stream: int, *, sent_at: float) -> None:
        """Take the silence for ended where what was sent after its beginning was stored, whoever lost the answer."""
        first = self._first.get(stream)
        if first is not None and first.at <= sent_at:
            del self._first[stream]

    def forget(self) -> None:
        """The connection is gone: what the broker did not say on it says nothing about the next one."""
        self._first.clear()
        self._probed_at.clear()
        self._acknowledged_seq.clear()

    def _hear(self, watched: Watched, said: Said) -> None:
        stream = watched.stream
        if isinstance(said, Acknowledged):
            known_seq = self._acknowledged_seq.get(stream, 0)
            self._acknowledged_seq[stream] = max(known_seq, said.seq)
            # The broker knows an old entry's id by heart: a duplicate proves a write only where it is a later one.
            if not said.is_duplicate or said.seq > known_seq:
                self._first.pop(stream, None)
                return
        if self._first.get(stream) is watched:
            del self._first[stream]
