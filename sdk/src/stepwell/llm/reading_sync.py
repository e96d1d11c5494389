"""The same for blocking clients: a thread reads a provider's stream to its end, whatever becomes of its consumer."""

import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial

from stepwell.context import ExecutionContext
from stepwell.llm import reading
from stepwell.llm.endings import Ending
from stepwell.llm.records import Answer
from stepwell.llm.step import LlmStep


class SyncReading:
    """Chunks as they come, for one consumer in another thread that may leave at any time."""

    def __init__(self, context: ExecutionContext, step: LlmStep, status: int, content_type: str) -> None:
        self._context = context
        self._step = step
        self._status = status
        self._content_type = content_type
        self._chunks: list[bytes] = []
        self._size = 0
        self._changed = threading.Condition()
        self._is_over = False
        self._is_unwatched = False
        self._broken: Exception | None = None
        self._timer: threading.Timer | None = None

    def start(
        self,
        chunks: Iterator[bytes],
        *,
        close: Callable[[], None],
        cut: Callable[[], None],
        broken: type[Exception],
    ) -> threading.Thread:
        """Begin to read. `close` ends the answer; `cut` does while somebody waits for more of it in another thread;
        `broken` is raised to the consumer of a stream that was cut short.
        """
        read = partial(self._read, chunks, close, broken)
        thread = threading.Thread(target=copy_context().run, args=(read,), name="stepwell-reading", daemon=True)
        self._cut = cut
        self._watch(False)
        thread.start()
        return thread

    def consume(self) -> Iterator[bytes]:
        """Give every chunk as it comes. Raises where the stream broke, or ended before its end."""
        at = 0
        while True:
            self._watch(True)
            with self._changed:
                while not self._is_over and at == len(self._chunks):
                    self._changed.wait()
                fresh = self._chunks[at:]
            self._watch(False)
            if not fresh:
                break
            yield from fresh
            at += len(fresh)
        if self._broken is not None:
            raise self._broken

    def _read(self, chunks: Iterator[bytes], close: Callable[[], None], broken: type[Exception]) -> None:
        ending, deltas = Ending(), self._step.watch()
        trouble = ""
        try:
            for chunk in chunks:
                deltas.show(chunk)
                ending.feed(chunk)
                self._add(chunk)
                if self._size > reading.STREAM_BYTES_MAX:
                    trouble = f"the stream is longer than {reading.STREAM_BYTES_MAX} bytes"
                    break
            trouble = trouble or ending.trouble()
        except Exception as error:  # noqa: BLE001 - whatever breaks a provider's stream fails the step, and is handed on
            trouble = f"the stream broke: {type(error).__name__}: {error}"
            self._broken = error
        if self._is_unwatched:
            trouble = f"nobody read the stream for {reading.UNWATCHED_SECONDS_MAX:g} s, and it did not end"
        if trouble and self._broken is None:
            self._broken = broken(trouble)
        try:
            self._context.enter(deltas.shown)
            self._context.enter(lambda: self._end(trouble))
        finally:
            self._stop_timer()
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
            close()

    async def _end(self, trouble: str) -> None:
        if trouble:
            await self._step.fail(trouble)
        else:
            await self._step.record(Answer(self._status, self._content_type, b"".join(self._chunks)))

    def _add(self, chunk: bytes) -> None:
        with self._changed:
            self._chunks.append(chunk)
            self._size += len(chunk)
            self._changed.notify_all()

    def _watch(self, is_watched: bool) -> None:
        """The consumer waits for more, or has gone on with what it has, and may never come back."""
        self._stop_timer()
        if not is_watched and not self._is_over:
            self._timer = threading.Timer(reading.UNWATCHED_SECONDS_MAX, self._give_up)
            self._timer.daemon = True
            self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self) -> None:
        self._is_unwatched = True
        self._cut()
