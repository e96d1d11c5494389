"""Asking a provider until its answer is one that another try would not better."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from stepwell.llm.calls import LlmCall
from stepwell.llm.records import Answer, is_event_stream

RETRIES_MAX = 3
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.5, 8.0
RETRY_AFTER_SECONDS_MAX = 60.0

_RETRIED = frozenset({408, 409, 425, 429})


class Response(Protocol):
    """An answer whose body is still to come, as httpx and httpx2 have it."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Any: ...

    def aiter_bytes(self) -> AsyncIterator[bytes]: ...

    async def aread(self) -> bytes: ...

    async def aclose(self) -> None: ...


async def final(
    ask: Callable[[], Awaitable[Response]], call: LlmCall, unreachable: type[Exception]
) -> Answer | Response:
    """Return the answer that another try would not better, or the last one: whole, or a response to stream.

    Raises `unreachable`, as the last try did, where there was no answer.
    """
    pause_seconds = PAUSE_SECONDS
    for left in range(RETRIES_MAX, -1, -1):
        at_least = 0.0
        try:
            response = await ask()
            if is_streamed(response, call):
                return response
            answer = Answer(response.status_code, content_type_of(response), await _whole(response))
        except unreachable:
            if not left:
                raise
        else:
            if not left or not is_retried(answer.status):
                return answer
            at_least = retry_after(response.headers)
        await asyncio.sleep(max(at_least, spread(pause_seconds)))
        pause_seconds = min(pause_seconds * 2, PAUSE_SECONDS_MAX)
    raise RuntimeError("not reached")


def content_type_of(response: Any) -> str:
    return response.headers.get("content-type", "")


def is_streamed(response: Any, call: LlmCall) -> bool:
    """Whether an answer is handed on as it comes."""
    return response.status_code < 400 and (is_event_stream(content_type_of(response)) or call.is_streamed)


def no_answer(error: Exception) -> str:
    return f"the provider did not answer: {type(error).__name__}: {error}"


def spread(pause_seconds: float) -> float:
    """Return a pause somewhat shorter, so that many do not come back at once."""
    return pause_seconds * random.uniform(0.5, 1.0)  # noqa: S311 - keeps no secret


def is_retried(status: int) -> bool:
    return status in _RETRIED or status >= 500


def retry_after(headers: Any) -> float:
    text = str(headers.get("retry-after", ""))
    return min(float(text), RETRY_AFTER_SECONDS_MAX) if text.isascii() and text.isdigit() else 0.0


async def _whole(response: Response) -> bytes:
    try:
        return await response.aread()
    finally:
        await response.aclose()
