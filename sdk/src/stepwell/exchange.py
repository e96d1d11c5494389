"""Requests to the kernel, repeated until they are answered or their time is up.

A change carries an Idempotency-Key and is repeated byte for byte under it, so a lost answer, a door's restart or a
refusal for now costs time and never a second effect. Every try is signed anew.
"""

import asyncio
import copy
import io
import random
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from stepwell.errors import APIError, NetworkError, error_of

CONNECT_SECONDS = 5.0
CONNECTIONS_MAX = 256
IDLE_SECONDS = 60.0
AT_ONCE_BYTES_MAX = 1024 * 1024
RESOLVERS_MAX = 2
CLOSE_TURNS = 3
PAUSE_SECONDS, PAUSE_SECONDS_MAX, PAUSE_GROWTH = 0.05, 2.0, 2.0
RETRY_AFTER_SECONDS_MAX = 60.0

_REPEATED = frozenset({429, 502, 503, 504})
_ELSEWHERE = frozenset({502, 503})
"""Where another door may do better."""
_UNKNOWN = frozenset({502, 504})
"""After them the request may have happened."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `path` holds the query; with a `key` all of its repeats are one effect."""

    method: str
    path: str
    body: bytes = b""
    key: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What a door says. Names of headers are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_doubtful: bool = False
    """Whether an earlier try of the same request may have happened already."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


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
        self._doors = _Doors(base_urls, timeout_seconds)
        self._credentials = credentials

    def acting(self, credentials: Credentials) -> "Exchange":
        """Return the same exchange for somebody else: its connections are shared, and closed with any of the two."""
        other = copy.copy(self)
        other._credentials = credentials
        return other

    async def send(self, call: Call, *, give_up_seconds: float) -> bytes:
        """Return the body of the answer. Raises as `ask` does."""
        return (await self.ask(call, give_up_seconds=give_up_seconds)).body

    async def ask(self, call: Call, *, give_up_seconds: float) -> Answer:
        """Return the answer, a success.

        Raises what the refusal stands for: an APIError, or a signal. Raises NetworkError, or the APIError of the last
        refusal, where nothing else came within `give_up_seconds`, the last try's own time apart.
        """
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + give_up_seconds
        pause_seconds = PAUSE_SECONDS
        is_doubtful = False
        while True:
            at_least = 0.0
            try:
                answer = await self._try(call)
            except (aiohttp.ClientError, TimeoutError) as error:
                failure: BaseException = NetworkError(f"{type(error).__name__}: {error}")
                is_doubtful = True
                self._doors.go_elsewhere()
            else:
                if answer.is_success:
                    return msgspec.structs.replace(answer, is_doubtful=True) if is_doubtful else answer
                failure = _refusal(answer)
                if answer.status not in _REPEATED:
                    raise failure
                is_doubtful |= answer.status in _UNKNOWN
                at_least = _retry_after(answer)
                if answer.status in _ELSEWHERE:
                    self._doors.go_elsewhere()
            pause = max(at_least, pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311 - spreads repeats, keeps no secret
            if loop.time() + pause > gives_up_at:
                raise failure
            await asyncio.sleep(pause)
            pause_seconds = min(pause_seconds * PAUSE_GROWTH, PAUSE_SECONDS_MAX)

    async def close(self) -> None:
        await self._doors.close()

    async def _try(self, call: Call) -> Answer:
        origin, prefix = self._doors.current
        target = prefix + call.path
        headers = self._credentials.headers(call, target)
        if call.body:
            headers["Content-Type"] = "application/json"
        if call.key:
            headers["Idempotency-Key"] = call.key
        # As it was signed: nothing in it is to be spelled in another way.
        url = URL(origin + target, encoded=True)
        async with self._doors.session().request(
            call.method, url, data=_sent(call.body), headers=headers, allow_redirects=False
        ) as response:
            return Answer(response.status, response.headers, await response.read())


class _Doors:
    """Where the kernel is, which door is asked now, and the connections to it."""

    def __init__(self, base_urls: Sequence[str], timeout_seconds: float) -> None:
        self._doors = [_door(url) for url in base_urls]
        self._at = 0
        self._timeout_seconds = timeout_seconds
        self._http: aiohttp.ClientSession | None = None
        """Made on the loop that it is used on, with the first request."""

    @property
    def current(self) -> tuple[str, str]:
        return self._doors[self._at]

    def go_elsewhere(self) -> None:
        self._at = (self._at + 1) % len(self._doors)

    def session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=CONNECTIONS_MAX, keepalive_timeout=IDLE_SECONDS, resolver=_Resolver()
                ),
                timeout=aiohttp.ClientTimeout(total=self._timeout_seconds, sock_connect=CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._http

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            # Its connections end with the next turns of the loop, which may be the loop's last.
            for _ in range(CLOSE_TURNS):
                await asyncio.sleep(0)


class _Resolver(AbstractResolver):
    """Looks names up in threads of its own.

    Those of the event loop may all be taken by tools that wait for the very request which needs the name.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVERS_MAX, thread_name_prefix="stepwell-names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        look_up = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False)


def _sent(body: bytes) -> bytes | io.BytesIO | None:
    """Return a body as it is handed to the client: a large one is written piece by piece, and holds nobody up."""
    if len(body) > AT_ONCE_BYTES_MAX:
        return io.BytesIO(body)
    return body or None


def _door(url: str) -> tuple[str, str]:
    """Return origin and path prefix of a door's address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{url!r} is no address of a kernel: http://host:port is one")
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")


def _refusal(answer: Answer) -> BaseException:
    try:
        envelope = msgspec.json.decode(answer.body, type=_Envelope)
    except msgspec.MsgspecError:
        # Something between us and the kernel has answered.
        text = answer.body[:200].decode("utf-8", "replace")
        return APIError(f"answered {answer.status}: {text}", "", answer.status)
    return error_of(envelope.code, envelope.message, answer.status)


def _retry_after(answer: Answer) -> float:
    text = answer.headers.get("retry-after", "")
    return min(float(text), RETRY_AFTER_SECONDS_MAX) if text.isascii() and text.isdigit() else 0.0
