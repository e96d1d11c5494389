"""One LLM call as a step that is under way: asked for, watched live, and given its outcome once."""

import asyncio
import codecs
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from stepwell.context import words_of
from stepwell.errors import APIError, RebunoError, Signal
from stepwell.llm.calls import LlmCall
from stepwell.llm.records import Answer, answer_of, error_answer, failure, record_of
from stepwell.llm.refusals import refusal, word_refusal
from stepwell.llm.scrubbing import Scrub, scrubbed
from stepwell.types import StepDecision
from stepwell.values import TooLarge

DELTA_CHARS = 2000
DELTA_SECONDS = 0.05
SHOW_SECONDS_MAX = 1.0
"""How long the record of a stream waits for its last deltas to be shown."""
DELTA_CHARS_MAX = 16_000
"""In one delta: 64 KiB of UTF-8 at most, which is what the kernel takes."""
PENDING_CHARS_MAX = 1_000_000
"""Of a stream that comes faster than the kernel takes its deltas; what is over is not shown live."""

_ITS_OWN = frozenset({400, 401, 403, 404, 413})
"""Refusals of the kernel that are handed on under their own status: the caller can do something about them."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Aside(Protocol):
    """Where what goes on beside a call runs, one thing at a time."""

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T] | asyncio.Future[T]": ...

    def call_soon(self, act: Callable[[], None]) -> None: ...


class Attempt(Protocol):
    """What an LLM call needs of the attempt that it belongs to."""

    @property
    def keeper(self) -> Aside: ...

    async def begin_llm(self, target: str, args: Any) -> StepDecision: ...

    async def record_llm(self, step_id: str, record: dict[str, Any]) -> None: ...

    async def fail_llm(self, step_id: str, message: str) -> None: ...

    async def publish_delta(self, step_id: str, seq: int, data: str) -> None: ...


class Unrecordable(RebunoError):
    """The provider's answer is too large for the record; its call fails with that.

    `lost` is what kept that from being recorded.
    """

    def __init__(self, message: str, lost: BaseException | None) -> None:
        super().__init__(message)
        self.lost = lost


class LlmStep:
    """Made by `begin`; ended by `record` or `fail`, whichever comes first."""

    def __init__(self, context: Attempt, step_id: str, scrub: Scrub | None = None) -> None:
        self._context = context
        self._step_id = step_id
        self._scrub = scrub
        self._is_over = False

    async def record(self, answer: Answer) -> BaseException | None:
        """Record what the provider answered, whatever its status. Return what kept it from being recorded.

        For an answer that is too large for the record the step fails, and `Unrecordable` is returned.
        """
        record = record_of(answer)
        if self._scrub is not None:
            record["body"] = self._scrub(record["body"])
        try:
            return await self._end(self._context.record_llm(self._step_id, record))
        except TooLarge as error:
            self._is_over = False
            return Unrecordable(str(error), await self.fail(str(error)))

    async def kept(self, answer: Answer) -> Answer:
        """Record an answer; return what every replay gives: it, or in its place that it is too large for the record."""
        lost = await self.record(answer)
        return failure(str(lost)) if isinstance(lost, Unrecordable) else answer

    async def fail(self, message: str) -> BaseException | None:
        """Record that there was no answer, or none that is whole. Return what kept that from being recorded."""
        return await self._end(self._context.fail_llm(self._step_id, message))

    def watch(self) -> "Deltas":
        # What has to be scrubbed cannot be seen in a piece of it.
        return Deltas(self._context, self._step_id, is_shown=self._scrub is None)

    async def _end(self, outcome: Any) -> BaseException | None:
        if self._is_over:
            outcome.close()
            return None
        self._is_over = True
        try:
            await outcome
        except (Signal, RebunoError) as error:
            _log.warning("the answer of step %s could not be recorded: %s", self._step_id, error)
            return error
        return None


async def begin(context: Attempt, call: LlmCall, scrub: Scrub | None = None) -> LlmStep | Answer:
    """Submit the call; return the step to carry out, or the answer that there is already: a record, or a refusal."""
    try:
        args = call.args if scrub is None else scrubbed(call.args, scrub)
        decision = await context.begin_llm(call.target, args)
    except (Signal, RebunoError) as error:
        return refused(error)
    if decision.decision == "proceed":
        return LlmStep(context, decision.step_id, scrub)
    if decision.decision == "replay":
        return replayed(decision)
    return word_refusal(decision.decision, decision.reason)


def refused(error: BaseException) -> Answer:
    """Return the answer that stands for what the kernel raised."""
    if isinstance(error, Unrecordable):
        return failure(str(error))
    found = refusal(error)
    if found is not None:
        return found
    if isinstance(error, APIError) and error.status_code in _ITS_OWN:
        return error_answer(error.status_code, "rebuno_refused", f"the kernel refuses: {error}")
    return error_answer(502, "rebuno_unreachable", f"the kernel does not answer: {error}")


def replayed(decision: StepDecision) -> Answer:
    """Return the answer that a step has in the record."""
    if decision.error is not None:
        return failure(words_of(decision.error))
    try:
        return answer_of(decision.result)
    except ValueError as error:
        return failure(str(error))


class Deltas:
    """What observers see of a stream, gathered a little: best effort, one publish at a time, on the keeper."""

    def __init__(self, context: Attempt, step_id: str, *, is_shown: bool = True) -> None:
        self._context = context
        self._step_id = step_id
        self._is_shown = is_shown
        self._keeper = context.keeper
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pending: deque[str] = deque()
        self._pending_chars = 0
        self._seq = 0
        self._sending: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def show(self, chunk: bytes) -> None:
        """Let observers see a chunk, sooner or later. Returns at once; may be called from any thread."""
        text = self._decode(chunk) if self._is_shown else ""
        if text:
            self._keeper.call_soon(lambda: self._add(text))

    async def shown(self) -> None:
        """Return when all of it was published, or cannot be in time. After the step's end nothing is shown any more."""
        try:
            async with asyncio.timeout(SHOW_SECONDS_MAX):
                await asyncio.wrap_future(self._keeper.begin(self._drain()))
        except TimeoutError:
            _log.info("the last deltas of step %s were not shown in time", self._step_id)

    # ------------------------------------------------------------ on the keeper's loop

    async def _drain(self) -> None:
        self._hurry.set()
        while self._sending is not None:
            await asyncio.wait((self._sending,))

    def _add(self, text: str) -> None:
        if self._pending_chars + len(text) > PENDING_CHARS_MAX:
            return
        self._pending.append(text)
        self._pending_chars += len(text)
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        try:
            if self._pending_chars < DELTA_CHARS:
                await self._gathered()
            while self._pending:
                text = "".join(self._pending)
                self._pending.clear()
                self._pending_chars = 0
                for start in range(0, len(text), DELTA_CHARS_MAX):
                    await self._context.publish_delta(self._step_id, self._seq, text[start : start + DELTA_CHARS_MAX])
                    self._seq += 1
        except (Signal, RebunoError) as error:
            _log.info("a delta of step %s was not shown: %s", self._step_id, error)
        finally:
            self._sending = None

    async def _gathered(self) -> None:
        try:
            async with asyncio.timeout(DELTA_SECONDS):
                await self._hurry.wait()
        except TimeoutError:
            return
