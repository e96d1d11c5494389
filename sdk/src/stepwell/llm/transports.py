"""HTTP clients whose requests to a model provider are steps, for httpx and httpx2.

Both packages have one interface, and an agent may have either: the one that its provider's SDK is made of.
"""

import asyncio
import importlib
import logging
from functools import partial
from typing import Any

from stepwell.context import current
from stepwell.llm.asking import content_type_of, final, no_answer
from stepwell.llm.calls import LlmCall, call_of
from stepwell.llm.reading import Reading
from stepwell.llm.records import Answer, failure
from stepwell.llm.scrubbing import Scrub
from stepwell.llm.step import LlmStep, begin

REPLAY_BYTES = 16 * 1024
"""In one chunk of a stream that is replayed."""

LIBRARIES = ("httpx2", "httpx")
_OF_THE_CONNECTION = ("verify", "cert", "http1", "http2", "limits", "proxy", "trust_env", "uds", "local_address")
_log = logging.getLogger(__name__)


def http_client(*, library: str = "", scrub: Scrub | None = None, **options: Any) -> Any:
    """Return an `AsyncClient` whose requests are steps of kind `llm_call`, for a provider's SDK:

        client = AsyncOpenAI(http_client=http_client())

    A request with a JSON object, or a multipart body, is recorded with what the provider answers, and replayed without
    asking the provider again; any other is passed through, with a warning. Answers that may be better the next time
    (no connection, 408, 409, 425, 429, 5xx) are asked for again within the step, up to three times. Credentials are
    never recorded. Raises RuntimeError for a request outside of a handler.

    `library` is `httpx2` or `httpx`, else the first that is installed; `options` are those of its `AsyncClient`.
    `scrub` takes out of texts what must not be kept, before they are recorded.
    """
    http = library_of(library)
    inner = options.pop("transport", None) or http.AsyncHTTPTransport(**of_the_connection(options))
    return http.AsyncClient(transport=Recording(http, inner, scrub), **options)


def of_the_connection(options: dict[str, Any]) -> dict[str, Any]:
    """Take out of a client's options what its transport is made with."""
    return {name: options.pop(name) for name in _OF_THE_CONNECTION if name in options}


def library_of(name: str) -> Any:
    """Return the package of this name, else the first of those that are known and installed."""
    for each in (name,) if name else LIBRARIES:
        try:
            return importlib.import_module(each)
        except ModuleNotFoundError:
            continue
    raise RuntimeError("http_client() needs httpx2 or httpx: install the one that your provider's SDK uses")


class Recording:
    """A transport around another. Everything that it hands on has the headers that a replay will have."""

    def __init__(self, http: Any, inner: Any, scrub: Scrub | None = None) -> None:
        self._http = http
        self._inner = inner
        self._scrub = scrub
        self._readings: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Recording":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; those that streams are still read from once these have come to their end."""
        if self._readings:
            self._closing = asyncio.ensure_future(self._close_later())
        else:
            await self._inner.aclose()

    async def _close_later(self) -> None:
        while self._readings:
            await asyncio.wait(tuple(self._readings))
        await self._inner.aclose()

    async def handle_async_request(self, request: Any) -> Any:
        call = await _call_of(request)
        if call is None:
            passed_by(request)
            return await self._inner.handle_async_request(request)
        context = current("http_client()")
        begun = await begin(context, call, self._scrub)
        if isinstance(begun, Answer):
            return self._handed(begun, is_streamed=begun.is_stream)
        try:
            return await self._carried_out(request, call, begun)
        except BaseException as error:
            # Cancelled, or broken by a fault of ours: the step must not stay open for an attempt that goes on.
            await asyncio.shield(begun.fail(f"the call was given up: {type(error).__name__}: {error}"))
            raise

    async def _carried_out(self, request: Any, call: LlmCall, step: LlmStep) -> Any:
        try:
            ask = partial(self._inner.handle_async_request, request)
            found = await final(ask, call, self._http.TransportError)
        except self._http.TransportError as error:
            message = no_answer(error)
            await step.fail(message)
            return self._handed(failure(message), is_streamed=False)
        if not isinstance(found, Answer):
            return self._streamed(found, step)
        return self._handed(await step.kept(found), is_streamed=False)

    def _streamed(self, response: Any, step: LlmStep) -> Any:
        content_type = content_type_of(response)
        reading = Reading(step, response.status_code, content_type)
        task = reading.start(response.aiter_bytes(), response.aclose, self._http.RemoteProtocolError)
        self._readings.add(task)
        task.add_done_callback(self._readings.discard)
        headers = Answer(response.status_code, content_type, b"").headers
        return self._http.Response(response.status_code, headers=headers, content=reading.consume())

    def _handed(self, answer: Answer, *, is_streamed: bool) -> Any:
        content: Any = _pieces(answer.body) if is_streamed else answer.body
        return self._http.Response(answer.status, headers=answer.headers, content=content)


def passed_by(request: Any) -> None:
    _log.warning("a request to %s is no LLM call, and is not recorded", request.url.host)


async def _call_of(request: Any) -> LlmCall | None:
    return call_of(request.headers.get("content-type", ""), await request.aread())


async def _pieces(body: bytes) -> Any:
    for start in range(0, len(body), REPLAY_BYTES):
        yield body[start : start + REPLAY_BYTES]
