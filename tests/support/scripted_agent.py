"""An agent that answers webhooks as a test says, and remembers what it received."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from schemas.entries import Lease
from tests.support.peers import Connection, Peer, peer
from tests.support.wait import wait_until_async


class Webhook(msgspec.Struct, frozen=True):
    """One delivery that an agent received; `at` is in unix seconds, by the clock of the kernel."""

    at: float
    execution_id: str
    dispatch_id: str
    dispatch_attempt: int
    lease_timeout_seconds: float
    sent_at: int

    @property
    def lease(self) -> Lease:
        return Lease(self.dispatch_id, self.dispatch_attempt)


class ScriptedAgent:
    """Answers webhooks as told: a status line and headers for the n-th one, the last of them for all that follow."""

    def __init__(self) -> None:
        self.webhooks: list[Webhook] = []
        self.raw: list[bytes] = []
        self.answers: list[bytes] = [b"HTTP/1.1 200 OK\r\n"]
        self.release: asyncio.Event | None = None
        """While set to an event, answers wait for it."""
        self.answer_seconds = 0.0
        self.open = 0
        self.open_most = 0
        self.peer: Peer | None = None

    async def handle(self, connection: Connection) -> None:
        raw = await connection.read_request()
        body = msgspec.json.decode(raw.partition(b"\r\n\r\n")[2])
        answer = self.answers[min(len(self.webhooks), len(self.answers) - 1)]
        self.raw.append(raw)
        self.webhooks.append(Webhook(at=time.time(), **body))
        self.open += 1
        self.open_most = max(self.open_most, self.open)
        try:
            if self.release is not None:
                await self.release.wait()
            if self.answer_seconds:
                await pass_time(self.answer_seconds)
            await connection.send(answer + b"Content-Length: 0\r\n\r\n")
        finally:
            self.open -= 1
        await connection.hang_up()

    @property
    def url(self) -> str:
        assert self.peer is not None
        return f"http://127.0.0.1:{self.peer.port}/hook"

    def of(self, execution_id: str) -> list[Webhook]:
        return [webhook for webhook in self.webhooks if webhook.execution_id == execution_id]

    async def hears(self, count: int, *, deadline_seconds: float = 10.0) -> Webhook:
        """Wait for so many webhooks and return the last of them."""
        await wait_until_async(
            lambda: len(self.webhooks) >= count, f"{count} webhooks", deadline_seconds=deadline_seconds
        )
        return self.webhooks[count - 1]


@asynccontextmanager
async def scripted_agent() -> AsyncIterator[ScriptedAgent]:
    agent = ScriptedAgent()
    async with peer(agent.handle) as found:
        agent.peer = found
        yield agent


async def is_quiet(agent: ScriptedAgent, count: int, seconds: float) -> bool:
    """Whether no webhook beyond `count` arrives for so long."""
    await pass_time(seconds)
    return len(agent.webhooks) == count


async def pass_time(seconds: float) -> None:
    """Let time pass where a test is about nothing happening meanwhile."""
    await asyncio.wait({asyncio.get_running_loop().create_future()}, timeout=seconds)
