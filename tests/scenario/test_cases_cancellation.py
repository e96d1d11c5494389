"""Case R1 over HTTP: clients leave at random while the view answers slowly, and nobody gets another's answer."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest_asyncio

from kernel.embedded import EmbeddedServer
from kernel.view.limits import ViewLimits
from tests.conformance.harness.agent import Lease
from tests.conformance.harness.calls import Call, json_bytes
from tests.conformance.harness.identity import args_hash_of, step_id_of
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.stacks import SETTINGS
from tests.conformance.harness.wire import request_bytes
from tests.support.slow_proxy import SlowProxy, slow_proxy
from tests.support.stack import Stack

AGENTS = 4
EXECUTIONS_EACH = 5
LANES = 48
REQUESTS = 2400
DELAY_SECONDS_MAX = 0.06
LEAVING = 0.45
"""Of all requests, those whose client goes before, during or after the answer."""
LEAVES_SECONDS_MAX = 0.25
ANSWER_SECONDS_MAX = 30.0
STALLS = 0.001
"""Of all replies, those that come when their call has been given up, with all that follow on their connection."""
STALL_SECONDS = ViewLimits().call_seconds + 0.5


class Wire:
    """A connection that is used for one request after another."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname, address.port
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, call: Call) -> tuple[int, Any]:
        """Send, and return status and body of the next answer."""
        if self._open is None:
            self._open = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._open
        writer.write(request_bytes(call))
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        return int(head.split(b" ", 2)[1]), json.loads(await reader.readexactly(length))

    def drop(self) -> None:
        if self._open is not None:
            self._open[1].transport.abort()
        self._open = None


@asynccontextmanager
async def _behind(proxy: SlowProxy) -> AsyncIterator[Stack]:
    """A kernel whose view is behind the proxy. Both the proxy and the tests need this loop while it starts."""
    settings = SETTINGS | {"STEPWELL_REDIS_URL": proxy.url}
    stack = await asyncio.to_thread(Stack.start, settings=settings, lease_seconds=60)
    try:
        yield stack
    finally:
        await asyncio.to_thread(stack.stop)


@pytest_asyncio.fixture
async def slow_stack(private_valkey: EmbeddedServer, seed: int) -> AsyncIterator[Stack]:
    choose = random.Random(seed)

    def delay_seconds() -> float:
        return STALL_SECONDS if choose.random() < STALLS else choose.uniform(0.0, DELAY_SECONDS_MAX)

    async with (
        slow_proxy(private_valkey.port, delay_seconds) as proxy,
        _behind(proxy) as stack,
    ):
        yield stack


class Traffic:
    """What the lanes send, and what they expect of it."""

    def __init__(self, kernel: Kernel, leases: list[Lease], seed: int) -> None:
        self.sent: Counter[tuple[str, int]] = Counter()
        """Steps by execution and number, their clients gone or not."""
        self.answered = 0
        self._kernel = kernel
        self._leases = leases
        self._random = random.Random(seed)

    async def lane(self, wire: Wire, count: int) -> None:
        for _ in range(count):
            lease = self._random.choice(self._leases)
            ask = self._random.choice((self._read, self._read_signed, self._submit))
            if self._random.random() >= LEAVING:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    await ask(wire, lease)
                self.answered += 1
                continue
            try:
                async with asyncio.timeout(self._random.uniform(0.0, LEAVES_SECONDS_MAX)):
                    await ask(wire, lease)
            except TimeoutError:
                pass  # that is when this client leaves
            finally:
                wire.drop()

    async def _read(self, wire: Wire, lease: Lease) -> None:
        _assert_own(lease, *await wire.ask(self._kernel.call("GET", lease.path)))

    async def _read_signed(self, wire: Wire, lease: Lease) -> None:
        _assert_own(lease, *await wire.ask(lease.agent.call("GET", lease.path)))

    async def _submit(self, wire: Wire, lease: Lease) -> None:
        number = self.sent.total()
        self.sent[lease.execution_id, number] += 1
        body = {"kind": "tool_call", "target": "t", "args": {"n": number}}
        status, answer = await wire.ask(lease.call("/steps", json_bytes(body)))
        args_hash = args_hash_of(f'{{"n":{number}}}')
        own = step_id_of(lease.execution_id, "tool_call", "t", args_hash, 0)
        assert (status, answer["decision"], answer["step_id"]) == (200, "proceed", own)


def _assert_own(lease: Lease, status: int, answer: dict[str, Any]) -> None:
    assert (status, answer["id"], answer["agent_id"]) == (200, lease.execution_id, lease.agent.id)
    assert answer["input"] == {"of": lease.agent.id}


async def test_r1_no_answer_reaches_another_request_when_clients_leave_at_random(slow_stack: Stack, seed: int) -> None:
    """Case R1. There is one tenant until keys are built: the parties here are agents, which are as strict apart."""
    async with connected(slow_stack.url, slow_stack.api_key) as kernel:
        agents = [await kernel.agent() for _ in range(AGENTS)]
        starting = [agent.start({"of": agent.id}) for agent in agents for _ in range(EXECUTIONS_EACH)]
        leases = await asyncio.gather(*starting)
        traffic = Traffic(kernel, leases, seed)
        wires = [Wire(slow_stack.url) for _ in range(LANES)]
        try:
            async with asyncio.TaskGroup() as group:
                for wire in wires:
                    group.create_task(traffic.lane(wire, REQUESTS // LANES))
        finally:
            for wire in wires:
                wire.drop()

        assert traffic.answered > REQUESTS // 3
        # Whatever was folded belongs to the execution it was sent to, and is there once.
        for lease in leases:
            recorded = [(lease.execution_id, step["args"]["n"]) for step in await kernel.steps(lease.execution_id)]
            assert len(recorded) == len(set(recorded))
            assert set(recorded) <= traffic.sent.keys()
