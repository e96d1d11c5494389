"""Forwarding: a caller's request to its provider, and the provider's answer as it comes."""

import io
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType

import aiohttp
from yarl import URL

from stepwell.gateway.settings import Upstream

ANSWER_BYTES_MAX = 32 * 1024 * 1024
AT_ONCE_BYTES_MAX = 1024 * 1024
CONNECT_SECONDS = 10.0
CONNECTIONS_MAX = 1024
ENCODINGS = "gzip, deflate"
"""What is undone on the way: records and callers have the plain bytes."""
_OF_THE_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade"),
        *("transfer-encoding", "content-length", "content-encoding", "host", "accept-encoding", "expect"),
    }
)
_OF_OURS = "rebuno-"


class Unreachable(Exception):
    """A provider that did not answer, or not wholly."""


class Forward:
    """One request to a provider, that can be asked again."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        upstream: Upstream,
        *,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> None:
        """`target` is path and query as the caller sent them, `headers` the caller's, in lower case."""
        self._http = http
        self._method = method
        self._url = URL(upstream.url.rstrip("/") + target, encoded=True)
        self._headers = forwarded(headers, upstream)
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=upstream.idle_seconds)
        self._body = body

    async def ask(self) -> "Response":
        """Return the provider's answer once it begins. Raises Unreachable where there is none."""
        try:
            response = await self._http.request(
                self._method,
                self._url,
                data=_sent(self._body),
                headers=self._headers,
                timeout=self._timeout,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        return Response(response)


def _sent(body: bytes) -> bytes | io.BytesIO | None:
    """Return a body as it is handed to the client: a large one is written piece by piece, and holds nobody up."""
    return io.BytesIO(body) if len(body) > AT_ONCE_BYTES_MAX else body or None


class Response:
    """A provider's answer, its content encoding undone."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status_code(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        """Found in any case."""
        return self._response.headers

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        """Give what comes as it comes. Raises Unreachable where it breaks off."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error

    async def aread(self) -> bytes:
        body = bytearray()
        async for chunk in self.aiter_bytes():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise Unreachable(f"its answer is longer than {ANSWER_BYTES_MAX} bytes")
        return bytes(body)

    async def aclose(self) -> None:
        # Only an answer that was read to its end leaves a connection that can be used again.
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


def session() -> aiohttp.ClientSession:
    """Return the connections to providers. Belongs to the loop that it is made on."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("user-agent", "accept", "content-type"),
    )


def forwarded(headers: Mapping[str, str], upstream: Upstream) -> dict[str, str]:
    """Return the headers that a provider gets: the caller's, but for what is ours, the hop's, or replaced."""
    left_out = _OF_THE_HOP | _named(headers)
    found = {name: value for name, value in headers.items() if name not in left_out and not name.startswith(_OF_OURS)}
    found |= {name.lower(): value for name, value in upstream.headers.items()}
    found["accept-encoding"] = ENCODINGS
    if upstream.key:
        for name in ("authorization", "x-api-key", "api-key"):
            found.pop(name, None)
        header = upstream.key_header.lower()
        found[header] = f"Bearer {upstream.key}" if header == "authorization" else upstream.key
    return found


def handed_back(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of an answer that is passed through."""
    names = _named(MappingProxyType({name.lower(): value for name, value in headers.items()}))
    return {
        name.lower(): value
        for name, value in headers.items()
        if name.lower() not in _OF_THE_HOP and name.lower() not in names
    }


def _named(headers: Mapping[str, str]) -> frozenset[str]:
    """Return the headers that the header Connection says are of this hop alone."""
    return frozenset(name.strip().lower() for name in headers.get("connection", "").split(","))


def upstream_of(upstreams: Mapping[str, Upstream], path: str) -> tuple[Upstream, str] | None:
    """Return where a path leads, and the path there; None where it leads nowhere."""
    if ".." in path.split("/"):
        return None
    first, slash, rest = path[1:].partition("/")
    if slash and first in upstreams:
        return upstreams[first], f"/{rest}"
    fitting = [
        (len(beginning), name)
        for name, upstream in upstreams.items()
        for beginning in upstream.paths
        if path == beginning or path.startswith(f"{beginning.rstrip('/')}/")
    ]
    return (upstreams[max(fitting)[1]], path) if fitting else None
