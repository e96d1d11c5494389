"""The ASGI application that takes webhooks: the signature first, then the time, then the work."""

import json
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import msgspec

from stepwell.signing import SENT_AT_SECONDS_MAX, is_webhook_sound
from stepwell.types import Webhook

BODY_BYTES_MAX = 64 * 1024

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class WebhookApp:
    """Answers one path. What comes to any other is not here."""

    def __init__(
        self,
        path: str,
        secrets: Sequence[str],
        *,
        take: Callable[[Webhook], Awaitable[bool]],
        start: Callable[[], Awaitable[None]],
        stop: Callable[[], Awaitable[None]],
    ) -> None:
        """`take` begins the work of a webhook and returns, False where this process begins nothing more; `start` and
        `stop` are called with the server's life."""
        self._path = path
        self._secrets = secrets
        self._take = take
        self._start = start
        self._stop = stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await _answer(send, await self._status(scope, receive))
        else:
            raise NotImplementedError("only HTTP is served")

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _status(self, scope: Scope, receive: Receive) -> int:
        # Mounted, the application sees the whole path, and where it was mounted.
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path != self._path:
            return 404
        if scope["method"] != "POST":
            return 405
        body = await read_body(receive, bytes_max=BODY_BYTES_MAX)
        if body is None:
            return 413
        signature = dict(scope["headers"]).get(b"rebuno-signature", b"").decode("latin-1")
        if not is_webhook_sound(self._secrets, body, signature):
            return 401
        try:
            webhook = msgspec.convert(json.loads(body), Webhook)
        except (ValueError, msgspec.ValidationError):
            return 400
        if webhook.sent_at is not None and abs(time.time() - webhook.sent_at) > SENT_AT_SECONDS_MAX:
            return 401
        return 200 if await self._take(webhook) else 503


async def read_body(receive: Receive, *, bytes_max: int) -> bytes | None:
    """Return the whole body of a request, None where it is larger than that."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > bytes_max:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _answer(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
