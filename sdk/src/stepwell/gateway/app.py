"""The ASGI application of a gateway: the token first, then the provider, then the call."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from stepwell.errors import RebunoError, Signal
from stepwell.exchange import Exchange
from stepwell.gateway.callers import Caller, caller_of
from stepwell.gateway.calls import Busy, Calls
from stepwell.gateway.ordinals import Kind
from stepwell.gateway.settings import Settings
from stepwell.gateway.upstreams import Forward, Unreachable, handed_back, session, upstream_of
from stepwell.kernel import TIMEOUT_SECONDS, addresses
from stepwell.llm.asking import no_answer
from stepwell.llm.calls import call_of
from stepwell.llm.reading import Reading
from stepwell.llm.records import Answer, error_answer, failure
from stepwell.llm.step import refused
from stepwell.webhook import Receive, Scope, Send, read_body

BODY_BYTES_MAX = 32 * 1024 * 1024
DRAIN_SECONDS = 5.0
"""For calls that nobody waits for any more; those that are heard have ended by then."""
REPLAY_BYTES = 16 * 1024
"""In one chunk of a stream that is replayed."""
HEALTH = "/healthz"

_log = logging.getLogger(__name__)


class _Request(msgspec.Struct, frozen=True):
    caller: Caller
    method: str
    path: str
    """Without the token and the query."""
    forward: Forward
    headers: dict[str, str]
    body: bytes


class Gateway:
    """LLM calls of agents that hold a delegation become steps; each is answered once by its provider.

    app = Gateway(Settings(api_key="…"))

    A token comes in `Rebuno-Delegation`, or in the path: `/d/<token>/v1/…`. Nothing is forwarded without one that the
    kernel accepts. What a provider answered is with the caller only when it is in the record.
    """

    def __init__(self, settings: Settings, *, drain_seconds: float = DRAIN_SECONDS) -> None:
        self._settings = settings
        self._drain_seconds = drain_seconds
        self._is_draining = False
        self._exchange = Exchange(addresses(settings.base_url), credentials=_Nobody(), timeout_seconds=TIMEOUT_SECONDS)
        self._calls = Calls(self._exchange, settings.api_key, settings.scrub)
        self._http: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            raise NotImplementedError("only HTTP is served")

    async def close(self) -> None:
        """Let the calls under way come to their ends, as long as the limit lets them; then close all connections.

        What is cut off is an open step: the next gateway that is asked for it asks its provider anew.
        """
        self._is_draining = True
        await self._calls.drain(self._drain_seconds)
        if self._http is not None:
            await self._http.close()
        await self._exchange.close()

    # ------------------------------------------------------------ requests

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == HEALTH:
            await _send_whole(send, Answer(200, "text/plain", b"ok\n"))
            return
        request = await self._read(scope, receive)
        if isinstance(request, Answer):
            await _send_whole(send, request)
            return
        call = call_of(request.headers.get("content-type", ""), request.body)
        if call is None:
            await self._pass_through(request, receive, send)
            return
        client_key = request.headers.get("idempotency-key", "")
        kind = Kind.of(request.caller, f"{request.method} {request.path}", request.body, client_key)
        try:
            answer = await self._calls.answer(
                request.caller, kind, call, request.forward, is_repeated=_is_repeated(request.headers)
            )
        except Busy:
            await _send_whole(send, _BUSY)
        except TypeError as error:
            await _send_whole(send, error_answer(400, "invalid_request_error", f"the body cannot be kept: {error}"))
        except (Unreachable, RebunoError, Signal) as error:
            await _send_whole(send, failure(str(error)))
        else:
            await _send_answer(answer, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> "_Request | Answer":
        """Return a request that has all it needs, else what is to be said to it."""
        headers = _headers(scope)
        path: str = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        token = headers.get("rebuno-delegation", "")
        if path.startswith("/d/"):
            token, _, path = path.removeprefix("/d/").partition("/")
            path = f"/{path}"
        caller = caller_of(token, headers)
        if caller is None:
            return _unauthorized("a delegation token is needed: in Rebuno-Delegation, or in the path as /d/<token>/…")
        found = upstream_of(self._settings.upstreams, path)
        if found is None:
            return error_answer(404, "not_found", f"no provider of this gateway is behind {path}")
        if "content-encoding" in headers:
            return error_answer(415, "invalid_request_error", "a body with a content encoding is not taken")
        body = await read_body(receive, bytes_max=BODY_BYTES_MAX)
        if body is None:
            return error_answer(413, "request_too_large", f"the body is longer than {BODY_BYTES_MAX} bytes")
        if self._is_draining:
            return _BUSY
        upstream, rest = found
        query = scope.get("query_string", b"").decode("latin-1")
        forward = Forward(
            self._sessions(),
            upstream,
            method=scope["method"],
            target=f"{rest}?{query}" if query else rest,
            headers=headers,
            body=body,
        )
        return _Request(caller, scope["method"], path, forward, headers, body)

    async def _pass_through(self, request: _Request, receive: Receive, send: Send) -> None:
        """Forward what is no LLM call, for a caller whose lease holds."""
        try:
            await self._calls.is_good(request.caller)
        except (Signal, RebunoError) as error:
            await _send_whole(send, refused(error))
            return
        if request.body:
            _log.warning("a request to %s is no LLM call, and is not recorded", request.path)
        try:
            response = await request.forward.ask()
        except Unreachable as error:
            await _send_whole(send, failure(no_answer(error)))
            return
        try:
            await _send_head(send, response.status_code, handed_back(response.headers))
            await _send_while_heard(response.aiter_bytes(), receive, send)
        finally:
            await response.aclose()

    def _sessions(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = session()
        return self._http


class _Nobody:
    """Nothing is asked of the kernel but for a caller."""

    def headers(self, call: Any, target: str) -> dict[str, str]:
        raise TypeError("a gateway acts for callers alone")


def _unauthorized(message: str) -> Answer:
    return error_answer(401, "rebuno_unauthorized", message)


_BUSY = error_answer(503, "rebuno_busy", "the gateway takes no further call now")


def _is_repeated(headers: dict[str, str]) -> bool:
    """Whether the caller says that this is a call that it made before."""
    count = headers.get("x-stainless-retry-count", "")
    return "idempotency-key" in headers or (count.isascii() and count.isdigit() and int(count) > 0)


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


# ---------------------------------------------------------------- answers


async def _send_answer(answer: Answer | Reading, receive: Receive, send: Send) -> None:
    if isinstance(answer, Reading):
        await _send_head(send, answer.status, Answer(answer.status, answer.content_type, b"").headers)
        await _send_while_heard(answer.consume(), receive, send)
    elif answer.is_stream:
        await _send_head(send, answer.status, answer.headers)
        await _send_while_heard(_pieces(answer.body), receive, send)
    else:
        await _send_whole(send, answer)


async def _send_whole(send: Send, answer: Answer) -> None:
    headers = answer.headers | {"content-length": str(len(answer.body))}
    if answer is _BUSY:
        # Nothing has happened: this one alone may be tried again.
        headers |= {"retry-after": "1", "x-should-retry": "true"}
    await _send_head(send, answer.status, headers)
    await send({"type": "http.response.body", "body": answer.body})


async def _send_head(send: Send, status: int, headers: dict[str, str]) -> None:
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def _send_while_heard(chunks: AsyncIterator[bytes], receive: Receive, send: Send) -> None:
    """Send chunks as they come, until they end or nobody hears them any more.

    Where they break off the answer is left unfinished: the server ends its connection, and the caller sees the break.
    """
    sending = asyncio.ensure_future(_send_chunks(chunks, send))
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        sending.cancel()
        await asyncio.wait((sending, leaving))
    if not sending.cancelled():
        sending.result()


async def _send_chunks(chunks: AsyncIterator[bytes], send: Send) -> None:
    try:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except Unreachable as error:
        _log.info("a stream broke off: %s", error)
        return
    await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), REPLAY_BYTES):
        yield body[start : start + REPLAY_BYTES]
