"""Sending webhooks to the servers of tests.support.peers."""

import time
from typing import Any

from kernel.domain.addresses import LOOPBACK_NETWORKS
from kernel.domain.signatures import sign_body
from kernel.settings import Settings
from tests.support.peers import Connection, Handler, peer
from tests.support.wait import wait_until_async
from workers.webhook import Delivered, Request, Undelivered, WebhookSender

SECRET = b"a-secret-of-the-agent"
BODY = b'{"execution_id":"caf\xc3\xa9 \xf0\x9f\x99\x82 / 1.0 {}"}\n'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SHORT_SECONDS = 0.4
LONG_SECONDS = 20.0
PROMPT_SECONDS = 5.0
"""Far below the long deadline, far above what anything here takes."""


def sender(delivery_seconds: float = LONG_SECONDS, **rest: Any) -> WebhookSender:
    settings = Settings(mode="dev", delivery_seconds=delivery_seconds, webhook_allow_networks=LOOPBACK_NETWORKS)
    return WebhookSender(settings, **rest)


def request(url: str) -> Request:
    return Request(
        url=url,
        execution_id="0199aaaa-0000-7000-8000-0000000000ff",
        signature=sign_body(SECRET, BODY),
        body=BODY,
    )


def at(port: int, path: str = "/hook") -> Request:
    return request(f"http://127.0.0.1:{port}{path}")


async def outcome(handler: Handler, delivery_seconds: float = LONG_SECONDS) -> Delivered | Undelivered:
    """Deliver once to a server that behaves so."""
    async with peer(handler) as found:
        result = await sender(delivery_seconds).post(at(found.port))
        await wait_until_async(
            lambda: found.ended == len(found.connections), "the connection to be dropped by the sender"
        )
        return result


async def timed(handler: Handler, delivery_seconds: float) -> tuple[Delivered | Undelivered, float]:
    started = time.monotonic()
    result = await outcome(handler, delivery_seconds)
    return result, time.monotonic() - started


def headers_of(raw: bytes) -> dict[bytes, bytes]:
    head = raw.partition(b"\r\n\r\n")[0]
    pairs = [line.partition(b": ") for line in head.split(b"\r\n")[1:]]
    assert len({name.lower() for name, _, _ in pairs}) == len(pairs)
    return {name: value for name, _, value in pairs}


async def silent(connection: Connection) -> None:
    await connection.read_request()
    await connection.hang_up()
