"""A stream of a provider, read to its end whatever becomes of its consumer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from stepwell.llm.endings import Ending
from stepwell.llm.records import Answer
from stepwell.llm.step import Deltas, LlmStep

STREAM_BYTES_MAX = 32 * 1024 * 1024
UNWATCHED_SECONDS_MAX = 120.0
"""How long a stream is read on for the record after its consumer has left."""


class Reading:
    """Chunks as they come, kept until the record is made, for consumers that may leave at any time.

    One that `is_strict` gives the stream's own end, and what follows it, only once the record is durable: whoever acts
    on a whole answer then finds it in the record. Where it cannot be recorded the stream breaks.
    """

    def __init__(self, step: LlmStep, status: int, content_type: str, *, is_strict: bool = False) -> None:
        self.status = status
        self.content_type = content_type
        self._step = step
        self._is_strict = is_strict
        self._chunks: list[bytes] = []
        self._size = 0
        self._given = 0
        """How many of the chunks consumers may have."""
        self._watchers = 0
        self._more = asyncio.Event()
        self._is_over = False
        self._broken: Exception | None = None
        self._limit: asyncio.Timeout | None = None

    def start(
        self, chunks: AsyncIterator[bytes], close: Callable[[], Coroutine[Any, Any, None]], broken: type[Exception]
    ) -> asyncio.Task[None]:
        """Begin to read. `close` ends the answer, `broken` is raised to the consumer of a stream that was cut short."""
        return asyncio.ensure_future(self._read(chunks, close, broken))

    async def consume(self) -> AsyncIterator[bytes]:
        """Give every chunk as it comes. Raises where the stream broke, or ended before its end."""
        at = 0
        while True:
            while at < self._given:
                yield self._chunks[at]
                at += 1
            if self._is_over:
                break
            self._more.clear()
            self._watched(1)
            try:
                await self._more.wait()
            finally:
                self._watched(-1)
        if self._broken is not None:
            raise self._broken

    async def _read(
        self, chunks: AsyncIterator[bytes], close: Callable[[], Coroutine[Any, Any, None]], broken: type[Exception]
    ) -> None:
        deltas = self._step.watch()
        try:
            trouble = await self._gathered(chunks, deltas)
            await deltas.shown()
            await self._end(trouble, broken)
        except asyncio.CancelledError:
            # The process ends. The step stays open, and nobody is to take what has come for the whole.
            self._broken = broken("the stream was cut off: the process ended")
            raise
        finally:
            self._is_over = True
            self._more.set()
            await close()

    async def _gathered(self, chunks: AsyncIterator[bytes], deltas: Deltas) -> str:
        """Read to the end; return what is wrong with it, the empty string where it is whole."""
        ending = Ending()
        try:
            async with asyncio.timeout(UNWATCHED_SECONDS_MAX) as self._limit:
                async for chunk in chunks:
                    deltas.show(chunk)
                    ending.feed(chunk)
                    self._add(chunk, is_held=self._is_strict and ending.is_finished)
                    if self._size > STREAM_BYTES_MAX:
                        return f"the stream is longer than {STREAM_BYTES_MAX} bytes"
            return ending.trouble()
        except TimeoutError:
            return f"nobody read the stream for {UNWATCHED_SECONDS_MAX:g} s, and it did not end"
        except Exception as error:  # noqa: BLE001 - whatever breaks a provider's stream fails the step, and is handed on
            self._broken = error
            return f"the stream broke: {type(error).__name__}: {error}"
        finally:
            self._limit = None

    async def _end(self, trouble: str, broken: type[Exception]) -> None:
        if trouble:
            if self._broken is None:
                self._broken = broken(trouble)
            await self._step.fail(trouble)
            return
        lost = await self._step.record(Answer(self.status, self.content_type, b"".join(self._chunks)))
        if lost is not None and self._is_strict:
            self._broken = broken(f"the answer could not be recorded: {lost}")
        else:
            self._given = len(self._chunks)

    def _watched(self, change: int) -> None:
        """A consumer waits for more, or has gone on with what it has, and may never come back."""
        self._watchers += change
        if self._limit is not None and not self._limit.expired():
            now = asyncio.get_running_loop().time()
            self._limit.reschedule(None if self._watchers else now + UNWATCHED_SECONDS_MAX)

    def _add(self, chunk: bytes, *, is_held: bool) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        if not is_held:
            self._given = len(self._chunks)
            self._more.set()
