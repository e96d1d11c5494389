"""The agents of the measures: one endpoint that accepts every webhook and remembers leases and times of arrival."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from bench.connections import Connection, Load, connect
from bench.processes import Processes, until
from bench.requests import Held, create, register
from schemas.entries import Lease
from schemas.webhook import WebhookBody

AGENTS = tuple(f"agent-{number}" for number in range(4))
CREATING_CONNECTIONS = 32

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length: "
_ACCEPTED = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_webhooks = msgspec.json.Decoder(WebhookBody)


class Created(msgspec.Struct, frozen=True):
    """What is read of an execution's JSON."""

    id: str


class Agents:
    """All agents of a run. Made by `serving`."""

    def __init__(self) -> None:
        self.url = ""
        """Where their webhooks go; the id of the agent is added as the last part of the path."""
        self.arrivals: dict[str, float] = {}
        """Execution id to the time, on the performance counter, of its last webhook."""
        self.held: dict[str, Held] = {}
        """By execution id, with the lease of its last webhook."""
        self._awaited: dict[str, asyncio.Event] = {}

    def hear(self, agent_id: str, body: bytes) -> None:
        webhook = _webhooks.decode(body)
        lease = Lease(webhook.dispatch_id, webhook.dispatch_attempt)
        self.arrivals[webhook.execution_id] = time.perf_counter()
        self.held[webhook.execution_id] = Held(agent_id=agent_id, execution_id=webhook.execution_id, lease=lease)
        awaited = self._awaited.get(webhook.execution_id)
        if awaited is not None:
            awaited.set()

    async def arrival(self, execution_id: str) -> float:
        """Wait for the webhook of an execution and return when it came."""
        if execution_id not in self.arrivals:
            awaited = self._awaited[execution_id] = asyncio.Event()
            async with asyncio.timeout(30):
                await awaited.wait()
        return self.arrivals[execution_id]


class _Endpoint(asyncio.Protocol):
    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._transport: asyncio.Transport | None = None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        received = self._rest + data
        head_end = received.find(_HEAD_END)
        at = received[: max(head_end, 0)].lower().find(_LENGTH)
        begin = head_end + len(_HEAD_END)
        if head_end < 0 or len(received) < begin + int(received[at + len(_LENGTH) :].partition(b"\r\n")[0]):
            self._rest = received
            return
        self._rest = b""
        path = received.split(b" ", 2)[1]
        self._agents.hear(path.rpartition(b"/")[2].decode(), received[begin:])
        assert self._transport is not None  # noqa: S101 - data comes after the connection
        self._transport.write(_ACCEPTED)


@asynccontextmanager
async def serving(processes: Processes) -> AsyncIterator[Agents]:
    """Register the agents, with an endpoint that is open meanwhile."""
    agents = Agents()
    server = await asyncio.get_running_loop().create_server(lambda: _Endpoint(agents), "127.0.0.1", 0)
    agents.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connection = (await connect(processes.door_port, 1))[0]
    try:
        for agent_id in AGENTS:
            await connection.exchange(register(processes.api_key, agent_id, f"{agents.url}/{agent_id}"))
        yield agents
    finally:
        connection.close()
        server.close()


async def created(
    processes: Processes, agents: Agents, count: int, *, api_key: str = "", agent_ids: Sequence[str] = AGENTS
) -> list[Held]:
    """Create executions, spread over the agents, and return them when each has its lease."""
    known = set(agents.held)
    connections = await connect(processes.door_port, CREATING_CONNECTIONS)
    key = api_key or processes.api_key
    requests = [create(key, agent_ids[number % len(agent_ids)]) for number in range(count)]
    try:
        await Load(connections, [iter(requests[at :: len(connections)]) for at in range(len(connections))]).finish()
    finally:
        for connection in connections:
            connection.close()
    await until(lambda: len(agents.held) - len(known) >= count, f"the webhooks of {count} executions")
    return [held for execution_id, held in agents.held.items() if execution_id not in known]


async def create_one(connection: Connection, api_key: str) -> str:
    """Create one execution and return its id."""
    body = await connection.exchange(create(api_key, AGENTS[0]))
    return msgspec.json.decode(body, type=Created).id


def spread(held: Sequence[Held], connections: int) -> list[list[Held]]:
    """Return the executions of each connection: several in turn, none of another's."""
    return [list(held[at::connections]) for at in range(connections)]
