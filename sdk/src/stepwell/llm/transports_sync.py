"""The same for blocking clients, in plain handlers and tools: they run in threads, where waiting stops nobody else."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from stepwell.context import ExecutionContext, current
from stepwell.llm import asking
from stepwell.llm.asking import RETRIES_MAX, content_type_of, is_retried, is_streamed, no_answer, retry_after, spread
from stepwell.llm.calls import LlmCall, call_of
from stepwell.llm.reading_sync import SyncReading
from stepwell.llm.records import Answer, failure
from stepwell.llm.scrubbing import Scrub
from stepwell.llm.step import LlmStep, begin
from stepwell.llm.transports import REPLAY_BYTES, library_of, of_the_connection, passed_by


def sync_http_client(*, library: str = "", scrub: Scrub | None = None, **options: Any) -> Any:
    """Return a blocking `Client` whose requests are steps, as `http_client` does for those that are awaited:

        client = OpenAI(http_client=sync_http_client())

    For plain handlers and plain tools. Raises RuntimeError where it would stop an event loop.
    """
    http = library_of(library)
    inner = options.pop("transport", None) or http.HTTPTransport(**of_the_connection(options))
    return http.Client(transport=SyncRecording(http, inner, scrub), **options)


class SyncRecording:
    """A blocking transport around another."""

    def __init__(self, http: Any, inner: Any, scrub: Scrub | None = None) -> None:
        self._http = http
        self._inner = inner
        self._scrub = scrub
        self._readings: list[threading.Thread] = []

    def __enter__(self) -> "SyncRecording":
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; those that streams are still read from once these have come to their end."""
        readings = [each for each in self._readings if each.is_alive()]
        if readings:
            threading.Thread(target=self._close_later, args=(readings,), daemon=True).start()
        else:
            self._inner.close()

    def _close_later(self, readings: list[threading.Thread]) -> None:
        for each in readings:
            each.join()
        self._inner.close()

    def handle_request(self, request: Any) -> Any:
        call = call_of(request.headers.get("content-type", ""), request.read())
        if call is None:
            passed_by(request)
            return self._inner.handle_request(request)
        context = current("sync_http_client()")
        _refuse_to_stop_a_loop()
        begun: LlmStep | Answer = context.enter(lambda: begin(context, call, self._scrub))
        if isinstance(begun, Answer):
            return self._handed(begun, is_streamed=begun.is_stream)
        try:
            return self._carried_out(request, call, context, begun)
        except BaseException as error:
            message = f"the call was given up: {type(error).__name__}: {error}"
            context.enter(lambda: begun.fail(message))
            raise

    def _carried_out(self, request: Any, call: LlmCall, context: ExecutionContext, step: LlmStep) -> Any:
        try:
            found = self._final(request, call)
        except self._http.TransportError as error:
            message = no_answer(error)
            context.enter(lambda: step.fail(message))
            return self._handed(failure(message), is_streamed=False)
        if not isinstance(found, Answer):
            return self._streamed(found, context, step)
        return self._handed(context.enter(lambda: step.kept(found)), is_streamed=False)

    def _final(self, request: Any, call: LlmCall) -> Any:
        """Return the answer that another try would not better, or the last one: whole, or a response to stream."""
        pause_seconds = asking.PAUSE_SECONDS
        for left in range(RETRIES_MAX, -1, -1):
            at_least = 0.0
            try:
                response = self._inner.handle_request(request)
                if is_streamed(response, call):
                    return response
                answer = Answer(response.status_code, content_type_of(response), _whole(response))
            except self._http.TransportError:
                if not left:
                    raise
            else:
                if not left or not is_retried(answer.status):
                    return answer
                at_least = retry_after(response.headers)
            time.sleep(max(at_least, spread(pause_seconds)))
            pause_seconds = min(pause_seconds * 2, asking.PAUSE_SECONDS_MAX)
        raise RuntimeError("not reached")

    def _streamed(self, response: Any, context: ExecutionContext, step: LlmStep) -> Any:
        content_type = content_type_of(response)
        reading = SyncReading(context, step, response.status_code, content_type)
        thread = reading.start(
            response.iter_bytes(),
            close=response.close,
            cut=partial(_cut, response),
            broken=self._http.RemoteProtocolError,
        )
        self._readings = [*(each for each in self._readings if each.is_alive()), thread]
        headers = Answer(response.status_code, content_type, b"").headers
        return self._http.Response(response.status_code, headers=headers, content=reading.consume())

    def _handed(self, answer: Answer, *, is_streamed: bool) -> Any:
        content: Any = _pieces(answer.body) if is_streamed else answer.body
        return self._http.Response(answer.status, headers=answer.headers, content=content)


def _refuse_to_stop_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("a blocking client would stop the event loop: await one made with http_client() here")


def _cut(response: Any) -> None:
    """End the connection of an answer, so that a thread that waits for more of it finds it at its end."""
    stream = response.extensions.get("network_stream")
    found = None if stream is None else stream.get_extra_info("socket")
    if found is not None:
        with suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)


def _whole(response: Any) -> bytes:
    try:
        return response.read()
    finally:
        response.close()


def _pieces(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), REPLAY_BYTES):
        yield body[start : start + REPLAY_BYTES]
