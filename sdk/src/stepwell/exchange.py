"""Requests to the kernel, repeated until they are answered or their time is up.

A change carries an Idempotency-Key and is repeated byte for byte under it, so a lost answer, a door's restart or a
refusal for now costs time and never a second effect. Every try is signed anew.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

import httpx
import msgspec

from stepwell.errors import APIError, NetworkError, error_of

CONNECT_SECONDS = 5.0
CONNECTIONS_MAX = 256
IDLE_SECONDS = 60.0
PAUSE_SECONDS, PAUSE_SECONDS_MAX, PAUSE_GROWTH = 0.05, 2.0, 2.0
RETRY_AFTER_SECONDS_MAX = 60.0

_REPEATED = frozenset({429, 502, 503, 504})
_ELSEWHERE = frozenset({502, 503})
"""Where another door may do better."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `path` holds the query; with a `key` all of its repeats are one effect."""

    method: str
    path: str
    body: bytes = b""
    key: str = ""


class Credentials(Protocol):
    """Who asks."""

    def headers(self, call: Call, target: str) -> dict[str, str]:
        """Return the headers that prove it, as of now. `target` is path and query as they are sent."""
        ...


class _Envelope(msgspec.Struct):
    code: str = ""
    message: str = ""


class Exchange:
    """Requests to one kernel behind any number of doors. Used on one event loop."""

    def __init__(self, base_urls: Sequence[str], *, credentials: Credentials, timeout_seconds: float) -> None:
        """`timeout_seconds` bounds one try; a door answers within 25 seconds."""
        self._doors = [_door(url) for url in base_urls]
        self._at = 0
        self._credentials = credentials
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_seconds, connect=CONNECT_SECONDS, pool=timeout_seconds),
            limits=httpx.Limits(
                max_connections=CONNECTIONS_MAX,
                max_keepalive_connections=CONNECTIONS_MAX,
                keepalive_expiry=IDLE_SECONDS,
            ),
            follow_redirects=False,
        )

    async def send(self, call: Call, *, give_up_seconds: float) -> bytes:
        """Return the body of the answer.

        Raises what the refusal stands for: an APIError, or a signal. Raises NetworkError, or the APIError of the last
        refusal, where nothing else came within `give_up_seconds`, the last try's own time apart.
        """
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + give_up_seconds
        pause_seconds = PAUSE_SECONDS
        while True:
            at_least = 0.0
            try:
                response = await self._try(call)
            except httpx.TransportError as error:
                failure: BaseException = NetworkError(f"{type(error).__name__}: {error}")
                self._go_elsewhere()
            else:
                if response.is_success:
                    return response.content
                failure = _refusal(response)
                if response.status_code not in _REPEATED:
                    raise failure
                at_least = _retry_after(response)
                if response.status_code in _ELSEWHERE:
                    self._go_elsewhere()
            pause = max(at_least, pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311 - spreads repeats, keeps no secret
            if loop.time() + pause > gives_up_at:
                raise failure
            await asyncio.sleep(pause)
            pause_seconds = min(pause_seconds * PAUSE_GROWTH, PAUSE_SECONDS_MAX)

    async def close(self) -> None:
        await self._http.aclose()

    async def _try(self, call: Call) -> httpx.Response:
        origin, prefix = self._doors[self._at]
        target = prefix + call.path
        headers = self._credentials.headers(call, target)
        if call.body:
            headers["Content-Type"] = "application/json"
        if call.key:
            headers["Idempotency-Key"] = call.key
        return await self._http.request(call.method, origin + target, content=call.body, headers=headers)

    def _go_elsewhere(self) -> None:
        self._at = (self._at + 1) % len(self._doors)


def _door(url: str) -> tuple[str, str]:
    """Return origin and path prefix of a door's address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{url!r} is no address of a kernel: http://host:port is one")
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")


def _refusal(response: httpx.Response) -> BaseException:
    try:
        envelope = msgspec.json.decode(response.content, type=_Envelope)
    except msgspec.MsgspecError:
        # Something between us and the kernel has answered.
        text = response.text[:200]
        return APIError(f"answered {response.status_code}: {text}", "", response.status_code)
    return error_of(envelope.code, envelope.message, response.status_code)


def _retry_after(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), RETRY_AFTER_SECONDS_MAX) if text.isascii() and text.isdigit() else 0.0
