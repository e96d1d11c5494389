"""Case R1 over HTTP: clients leave at random while the view answers slowly, and nobody gets another's answer."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from kernel.embedded import EmbeddedServer
from kernel.view.limits import ViewLimits
from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.calls import Call, json_bytes
from tests.conformance.harness.identity import args_hash_of, step_id_of
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.stacks import SETTINGS
from tests.conformance.harness.wire import request_bytes
from tests.scenario.second_tenant import SecondTenant, second_tenant
from tests.support.slow_proxy import SlowProxy, slow_proxy
from tests.support.stack import Stack

AGENTS = 4
EXECUTIONS_EACH = 5
LANES = 48
REQUESTS = 2400
REQUESTS_OF_THE_CASE = 10_000
DELAY_SECONDS_MAX = 0.06
DELAY_SECONDS_MAX_OF_THE_CASE = 0.2
LEAVING = 0.45
"""Of all requests, those whose client goes before, during or after the answer."""
LEAVES_SECONDS_MAX = 0.25
ANSWER_SECONDS_MAX = 30.0
STALLS = 0.001
"""Of all replies, those that come when their call has been given up, with all that follow on their connection."""
STALL_SECONDS = ViewLimits().call_seconds + 0.5
MASTER_KEY = "the master key of case R1"
UNKNOWN = {"code": "not_found", "message": "execution not found"}
"""What is answered to whoever asks for what is another tenant's."""


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
    settings = SETTINGS | {"STEPWELL_REDIS_URL": proxy.url, "STEPWELL_MASTER_KEY": MASTER_KEY}
    stack = await asyncio.to_thread(Stack.start, settings=settings, lease_seconds=60)
    try:
        yield stack
    finally:
        await asyncio.to_thread(stack.stop)


@asynccontextmanager
async def _slow_stack(server: EmbeddedServer, seed: int, delay_seconds_max: float) -> AsyncIterator[Stack]:
    choose = random.Random(seed)

    def delay_seconds() -> float:
        return STALL_SECONDS if choose.random() < STALLS else choose.uniform(0.0, delay_seconds_max)

    async with (
        slow_proxy(server.port, delay_seconds) as proxy,
        _behind(proxy) as stack,
    ):
        yield stack


@pytest_asyncio.fixture
async def slow_stack(private_valkey: EmbeddedServer, seed: int) -> AsyncIterator[Stack]:
    async with _slow_stack(private_valkey, seed, DELAY_SECONDS_MAX) as stack:
        yield stack


@pytest_asyncio.fixture
async def slower_stack(private_valkey: EmbeddedServer, seed: int) -> AsyncIterator[Stack]:
    async with _slow_stack(private_valkey, seed, DELAY_SECONDS_MAX_OF_THE_CASE) as stack:
        yield stack


class Traffic:
    """What the lanes send, and what they expect of it. `foreign` are the leases of another tenant than the key's."""

    def __init__(self, kernel: Kernel, own: list[Lease], foreign: list[Lease], seed: int) -> None:
        self.sent: Counter[tuple[str, int]] = Counter()
        """Steps by execution and number, their clients gone or not."""
        self.answered = 0
        self.left = 0
        """Requests whose client went before it had the answer."""
        self._kernel = kernel
        self._leases = own + foreign
        self._foreign = {lease.execution_id for lease in foreign}
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
                self.left += 1  # that is when this client leaves
            finally:
                wire.drop()

    async def _read(self, wire: Wire, lease: Lease) -> None:
        status, answer = await wire.ask(self._kernel.call("GET", lease.path))
        if lease.execution_id in self._foreign:
            assert (status, answer) == (404, UNKNOWN)
        else:
            _assert_own(lease, status, answer)

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
    assert answer["input"] == _mark(lease.agent)


def _mark(agent: Agent) -> dict[str, str]:
    """The input of its executions. Ids of agents are the same in both tenants, secrets are not."""
    return {"of": agent.id, "secret": agent.secret}


async def test_r1_no_answer_reaches_another_request_when_clients_leave_at_random(slow_stack: Stack, seed: int) -> None:
    """Case R1, a quarter of it."""
    await _no_answer_reaches_another_request(slow_stack, seed, REQUESTS)


@pytest.mark.soak
async def test_r1_no_answer_of_ten_thousand_reaches_another_request(slower_stack: Stack, seed: int) -> None:
    """Case R1 in full: replies of the view come after a tenth of a second each."""
    await _no_answer_reaches_another_request(slower_stack, seed, REQUESTS_OF_THE_CASE)


async def _no_answer_reaches_another_request(stack: Stack, seed: int, requests: int) -> None:
    async with connected(stack.url, stack.api_key) as kernel, second_tenant(kernel, stack, MASTER_KEY) as other:
        own, foreign = await _leases(kernel, other)
        traffic = Traffic(kernel, own, foreign, seed)
        wires = [Wire(stack.url) for _ in range(LANES)]
        try:
            async with asyncio.TaskGroup() as group:
                for wire in wires:
                    group.create_task(traffic.lane(wire, -(-requests // LANES)))
        finally:
            for wire in wires:
                wire.drop()

        assert traffic.answered > requests // 3
        assert traffic.left > requests // 20
        # Whatever was folded belongs to the execution it was sent to, and is there once.
        for lease in own + foreign:
            recorded = [(lease.execution_id, number) for number in await _numbers(lease)]
            assert len(recorded) == len(set(recorded))
            assert set(recorded) <= traffic.sent.keys()


async def _leases(kernel: Kernel, other: SecondTenant) -> tuple[list[Lease], list[Lease]]:
    """Leases of the key's own tenant and of the other one, whose agents have the same ids."""
    agents = [await kernel.agent() for _ in range(AGENTS)]
    theirs = [await other.agent(agent.id) for agent in agents]
    own = await asyncio.gather(*(agent.start(_mark(agent)) for agent in agents for _ in range(EXECUTIONS_EACH)))
    starting = (other.start(agent, _mark(agent)) for agent in theirs for _ in range(EXECUTIONS_EACH))
    return own, await asyncio.gather(*starting)


async def _numbers(lease: Lease) -> list[int]:
    """The numbers of the steps on record, as the agent itself reads them."""
    response = await lease.agent.request("GET", f"{lease.path}/steps")
    assert response.status_code == httpx.codes.OK, response.text
    return [step["args"]["n"] for step in response.json()]
