"""The webhook endpoint of an agent under test: answers as scripted and records all that it receives."""

import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

import msgspec

from tests.support.peers import Connection, peer
from tests.support.wait import wait_until_async

_CHUNK = b"x" * 1024


class Answer(msgspec.Struct, frozen=True):
    """How the endpoint answers one delivery."""

    status: int = 200
    headers: dict[str, str] = {}
    body: bytes = b""
    is_silent: bool = False
    """Nothing is ever sent; the connection stays until the kernel closes it."""
    is_endless: bool = False
    """The head is sent and then bytes of a body until the kernel closes the connection."""


class Delivery:
    """One webhook as it arrived. Times are unix seconds, as a kernel counts waits and leases by the same clock."""

    def __init__(self, raw: bytes) -> None:
        self.at = time.time()
        head, _, self.raw_body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, self.version = first.split(" ")
        pairs = (line.partition(":") for line in lines)
        self.header_pairs = [(name.lower(), value.strip()) for name, _, value in pairs]
        self.headers = dict(self.header_pairs)
        self.sent_bytes = 0
        """Of the answer, as far as the kernel's side took them."""
        self.answered_at: float | None = None
        self.ended_at: float | None = None
        """When the kernel closed the connection."""

    @property
    def body(self) -> dict[str, Any]:
        return msgspec.json.decode(self.raw_body)

    @property
    def execution_id(self) -> str:
        return self.body["execution_id"]

    @property
    def dispatch_id(self) -> str:
        return self.body["dispatch_id"]

    @property
    def attempt(self) -> int:
        return self.body["dispatch_attempt"]


Script = Callable[[Delivery], Answer | Awaitable[Answer]]


def accepting(_: Delivery) -> Answer:
    """The script of an agent that takes every delivery at once."""
    return Answer()


class Endpoint:
    """Where the webhooks of one agent arrive."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.deliveries: list[Delivery] = []
        self.url = ""

    def of(self, execution_id: str) -> list[Delivery]:
        """What arrived for an execution, in the order of arrival."""
        return [each for each in self.deliveries if each.execution_id == execution_id]

    async def delivery(self, execution_id: str, *, number: int = 1, deadline_seconds: float = 10.0) -> Delivery:
        """The n-th delivery for an execution, once it has arrived."""
        await wait_until_async(
            lambda: len(self.of(execution_id)) >= number,
            f"delivery {number} of execution {execution_id}",
            deadline_seconds=deadline_seconds,
        )
        return self.of(execution_id)[number - 1]

    async def serve(self, connection: Connection) -> None:
        while True:
            delivery = Delivery(await connection.read_request())
            self.deliveries.append(delivery)
            try:
                answer = self.script(delivery)
                if isawaitable(answer):
                    answer = await answer
                await _send(connection, delivery, answer)
            except OSError:
                delivery.ended_at = time.time()
                raise


async def _send(connection: Connection, delivery: Delivery, answer: Answer) -> None:
    if answer.is_silent:
        await connection.hang_up()
        raise ConnectionResetError("the kernel gave up waiting")
    head = f"HTTP/1.1 {answer.status} Scripted\r\n" + "".join(f"{k}: {v}\r\n" for k, v in answer.headers.items())
    if not answer.is_endless:
        delivery.answered_at = time.time()
        await connection.send(f"{head}Content-Length: {len(answer.body)}\r\n\r\n".encode() + answer.body)
        return
    await connection.send(f"{head}Content-Length: 1000000000\r\n\r\n".encode())
    delivery.answered_at = time.time()
    while True:
        await connection.send(_CHUNK)
        delivery.sent_bytes += len(_CHUNK)


def in_turn(*answers: Answer) -> Script:
    """The script that gives these answers to the deliveries of each execution; the last one to all that follow."""
    given: dict[str, int] = {}

    def script(delivery: Delivery) -> Answer:
        number = given.get(delivery.execution_id, 0)
        given[delivery.execution_id] = number + 1
        return answers[min(number, len(answers) - 1)]

    return script


@asynccontextmanager
async def serving(script: Script, *, bound: socket.socket | None = None) -> AsyncIterator[Endpoint]:
    """An endpoint on loopback, closed at the end with everything that is still open; `bound` as for `peer`."""
    endpoint = Endpoint(script)
    async with peer(endpoint.serve, bound=bound) as server:
        endpoint.url = f"http://127.0.0.1:{server.port}/webhook"
        yield endpoint
