"""The sender of webhooks: one POST under one deadline, to an address that was checked, sent at most once.

Redirects are never followed and answers are hardly read, so an agent can cost its own slot and nothing else. The
connection is made anew for every delivery: a kept one that breaks would leave open whether its request was sent.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from urllib.parse import quote, urlsplit

import h11
import msgspec

from kernel.domain.addresses import Network, refusal
from kernel.domain.retry import parse_retry_after
from kernel.settings import Settings
from workers.resolver import Resolver

HEAD_BYTES_MAX = 32 * 1024
ADDRESSES_MAX = 4
CONNECT_SECONDS = 3.0
"""What one of several addresses may take, so that a dead one leaves time for the next."""
COURTESY_SECONDS = 0.1
"""How long the rest of an answer is waited for, so that an ordinary agent sees its connection closed in order."""
_READ_BYTES = 4096
_URL_SAFE = "%/:?#[]@!$&'()*+,;=~"


class Delivered(msgspec.Struct, frozen=True):
    """The agent answered 2xx."""


class Undelivered(msgspec.Struct, frozen=True):
    """`reason` is `unreachable` (certainly nothing was sent), `timeout` or `http_<status>`."""

    reason: str
    retry_after_ms: int = 0


UNREACHABLE = Undelivered(reason="unreachable")
TIMEOUT = Undelivered(reason="timeout")


class Request(msgspec.Struct, frozen=True):
    """What is sent: the signature covers exactly these body bytes."""

    url: str
    execution_id: str
    signature: str
    body: bytes


class Target(msgspec.Struct, frozen=True):
    """Where a URL leads; `path` is the request target with its query."""

    is_tls: bool
    host: str
    port: int
    path: str
    authority: str


class _Unreachable(Exception):
    """The delivery failed before any byte of the request was sent."""


class WebhookSender:
    """Sends webhooks; holds no connection between them."""

    def __init__(
        self,
        settings: Settings,
        *,
        resolver: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
        unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        self._delivery_seconds = settings.delivery_seconds
        self._response_bytes_max = settings.webhook_response_bytes_max
        self._networks: Sequence[Network] = settings.webhook_allow_networks
        self._resolver = resolver or Resolver()
        self._tls = tls or ssl.create_default_context()
        self._unix_seconds = unix_seconds

    async def post(self, request: Request) -> Delivered | Undelivered:
        """Deliver once and say how it went; takes at most the delivery deadline and raises nothing of its own."""
        deadline = asyncio.get_running_loop().time() + self._delivery_seconds
        exchange = _Exchange(response_bytes_max=self._response_bytes_max)
        try:
            async with asyncio.timeout_at(deadline):
                target = target_of(request.url)
                message = exchange.message(request, target)
                streams = await self._connect(target)
                head = await exchange.head(*streams, message, deadline=deadline)
                await exchange.courtesy()
        except _Unreachable:
            return UNREACHABLE
        except (TimeoutError, OSError, h11.RemoteProtocolError):
            # Reached only once something was sent, or by the deadline itself: see `_connect`. A head that came in
            # time counts, even where the deadline cut the rest of the answer.
            if exchange.response is None:
                return TIMEOUT
            head = exchange.response
        finally:
            exchange.close()
        return self._outcome(head)

    async def _connect(self, target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        addresses = await self._addresses(target.host)
        loop = asyncio.get_running_loop()
        for index, address in enumerate(addresses):
            is_last = index == len(addresses) - 1
            try:
                async with asyncio.timeout_at(None if is_last else loop.time() + CONNECT_SECONDS):
                    return await self._open(target, address)
            except (OSError, ValueError):
                # Refused, not routed, no TLS, a name no certificate can carry. The outer deadline passes through here
                # as a cancellation, so a TimeoutError is this address's own.
                continue
        raise _Unreachable

    async def _addresses(self, host: str) -> list[str]:
        """Return the addresses that may be connected to, in order; raises _Unreachable where there is none."""
        try:
            found = (str(ip_address(host)),)
        except ValueError:
            try:
                found = await self._resolver.resolve(host)
            except OSError:
                raise _Unreachable from None
        allowed = [address for address in found if refusal(address, self._networks) is None]
        if not allowed:
            raise _Unreachable
        return allowed[:ADDRESSES_MAX]

    async def _open(self, target: Target, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the address itself; TLS still proves the name."""
        if not target.is_tls:
            return await asyncio.open_connection(address, target.port, limit=_READ_BYTES)
        return await asyncio.open_connection(
            address,
            target.port,
            limit=_READ_BYTES,
            ssl=self._tls,
            server_hostname=target.host,
            # Later than the delivery's own deadline, which is the one that counts.
            ssl_handshake_timeout=self._delivery_seconds + 1,
        )

    def _outcome(self, head: h11.Response) -> Delivered | Undelivered:
        if 200 <= head.status_code <= 299:
            return Delivered()
        return Undelivered(reason=f"http_{head.status_code}", retry_after_ms=self._retry_after_ms(head))

    def _retry_after_ms(self, head: h11.Response) -> int:
        if head.status_code not in (429, 503):
            return 0
        now_seconds = int(self._unix_seconds())
        wishes = [value.decode("latin-1") for name, value in head.headers if name == b"retry-after"]
        return max((parse_retry_after(wish, now_seconds) for wish in wishes), default=0)


class _Exchange:
    """One request and its answer on one connection."""

    def __init__(self, *, response_bytes_max: int) -> None:
        self.response: h11.Response | None = None
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._response_bytes_max = response_bytes_max
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def message(self, request: Request, target: Target) -> bytes:
        """Return the bytes of the request."""
        headers = [
            ("Host", target.authority),
            ("User-Agent", "stepwell"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(request.body))),
            ("Rebuno-Execution-Id", request.execution_id),
            ("Rebuno-Signature", request.signature),
            ("Connection", "close"),
        ]
        try:
            start = self._http.send(h11.Request(method="POST", target=target.path, headers=headers))
        except (h11.LocalProtocolError, ValueError):
            raise _Unreachable from None
        body = self._http.send(h11.Data(data=request.body))
        end = self._http.send(h11.EndOfMessage())
        return b"".join(part for part in (start, body, end) if part)

    async def head(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes, *, deadline: float
    ) -> h11.Response:
        """Send, and return the head of the final answer."""
        self._reader, self._writer = reader, writer
        if asyncio.get_running_loop().time() >= deadline:
            # A process that slept through the deadline may find the connection made before the timer fires.
            raise TimeoutError
        writer.write(message)
        received_bytes = 0
        while self.response is None:
            match self._http.next_event():
                case h11.Response() as response:
                    self.response = response
                case h11.InformationalResponse():
                    continue
                case _:
                    received_bytes += await self._receive(reader)
            if received_bytes > HEAD_BYTES_MAX:
                raise h11.RemoteProtocolError("the head of the answer has no end")
        return self.response

    async def courtesy(self) -> None:
        """Read and drop a little of the rest, so that a short answer does not end in a reset."""
        if self._reader is None:
            return
        left_bytes = self._response_bytes_max
        try:
            async with asyncio.timeout(COURTESY_SECONDS):
                while left_bytes > 0 and not self._is_over():
                    left_bytes -= await self._receive(self._reader, bytes_max=left_bytes)
        except (TimeoutError, OSError, h11.RemoteProtocolError):
            # The head has decided already.
            return

    def close(self) -> None:
        """Drop the connection at once: nothing of it is waited for."""
        if self._writer is not None:
            self._writer.transport.abort()

    def _is_over(self) -> bool:
        """Whether the answer is whole; consumes what has been received."""
        while True:
            event = self._http.next_event()
            if not isinstance(event, h11.Data):
                return event is not h11.NEED_DATA

    async def _receive(self, reader: asyncio.StreamReader, *, bytes_max: int = _READ_BYTES) -> int:
        data = await reader.read(min(_READ_BYTES, bytes_max))
        self._http.receive_data(data)
        return len(data)


def target_of(url: str) -> Target:
    """Return where a webhook URL leads; raises _Unreachable for one that leads nowhere."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        ascii_host = host if host.isascii() else host.encode("idna").decode("ascii")
    except ValueError:
        raise _Unreachable from None
    if parts.scheme not in ("http", "https") or not host or parts.username is not None or parts.password is not None:
        raise _Unreachable
    path = quote(parts.path or "/", safe=_URL_SAFE)
    query = f"?{quote(parts.query, safe=_URL_SAFE)}" if parts.query else ""
    bracketed = f"[{ascii_host}]" if ":" in ascii_host else ascii_host
    authority = bracketed if parts.port is None else f"{bracketed}:{parts.port}"
    return Target(is_tls=is_tls, host=ascii_host, port=port, path=path + query, authority=authority)
