"""Cases W1, W2 and W5: webhooks as their receivers see them, judged by a verifier that shares no code with the kernel.

What one attempt is made of is conformance K68, what one bad receiver costs K75; here are retries, and all bad
receivers at once beside twenty good ones.
"""

import asyncio
import gzip
import hashlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from kernel.embedded import free_port
from tests.conformance.harness.agent import Agent
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.endpoint import Answer, Delivery, Endpoint, accepting, in_turn
from tests.conformance.harness.kernel import Kernel
from tests.support.peers import Connection, Handler, peer
from tests.support.wait import wait_until_async

MEMBERS = ("execution_id", "dispatch_id", "dispatch_attempt", "lease_timeout_seconds", "sent_at")
BLOCK_BYTES = 64
SENT_AT_SECONDS_MAX = 2.0
HEALTHY = 20
DELIVERIES_EACH = 5
BAD_EXECUTIONS = 12
LATENCY_SECONDS_MAX = 2.0
"""A good receiver's webhooks leave within tens of milliseconds; the rest is for machines that do other things too."""


def _signature(secret: str, body: bytes) -> str:
    """HMAC-SHA256 as RFC 2104 writes it, from the hash alone."""
    key = secret.encode()
    if len(key) > BLOCK_BYTES:
        key = hashlib.sha256(key).digest()
    key = key.ljust(BLOCK_BYTES, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + body).digest()
    return "sha256=" + hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).hexdigest()


def _assert_signed(agent_secret: str, delivery: Delivery) -> None:
    """The signature covers the bytes that came, all of them and no others, and says when they were sent."""
    headers = delivery.headers
    assert headers["rebuno-signature"] == _signature(agent_secret, delivery.raw_body)
    assert [name for name, _ in delivery.header_pairs].count("rebuno-signature") == 1
    assert int(headers["content-length"]) == len(delivery.raw_body)
    assert "transfer-encoding" not in headers
    assert "content-encoding" not in headers
    assert tuple(delivery.body) == MEMBERS
    assert abs(delivery.at - delivery.body["sent_at"]) <= SENT_AT_SECONDS_MAX


SECRETS = {
    "ascii": "a secret of some length",
    "beyond ascii": "schl\u00fcssel \u20ac \U0001f642 \u2028",
    "longer than a block": "x" * 200,
    "escapes": 'a "secret" / with \\n in it',
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
async def test_w1_the_signature_covers_the_bytes_as_they_are_sent(kernel: Kernel, secret: str) -> None:
    """Case W1. A webhook holds nothing that a client sent, so no text of theirs can be written in two ways; that the
    SDK's helper takes bytes alone comes with the SDK.
    """
    agent = await kernel.agent()
    await _register(kernel, agent, secret=secret)

    execution = await agent.create({"text": "caf\u00e9 / 1.0 \U0001f642 \u2028\n", "empty": {"a": [{}]}})
    delivery = await agent.delivery(execution["id"])

    _assert_signed(secret, delivery)
    # Who verifies what a parser made of it, or lost or gained a line break, does not verify what was sent.
    for altered in _written_anew(delivery.raw_body):
        assert altered != delivery.raw_body
        assert delivery.headers["rebuno-signature"] != _signature(secret, altered)
    assert delivery.headers["rebuno-signature"] != _signature(secret.strip() + " ", delivery.raw_body)


def _written_anew(body: bytes) -> Iterator[bytes]:
    yield json.dumps(json.loads(body)).encode()
    yield json.dumps(json.loads(body), indent=1).encode()
    yield json.dumps(json.loads(body), separators=(",", ":"), sort_keys=True).encode()
    yield body + b"\n"
    yield body[:-1]
    yield gzip.compress(body)


async def test_w2_every_retry_is_signed_anew_with_its_own_time_and_the_same_dispatch_id(kernel: Kernel) -> None:
    """Case W2. How a receiver judges times and headers comes with the SDK; here a captured delivery stays provable:
    its id and attempt are signed, and no other delivery has them.
    """
    agent = await kernel.agent(in_turn(Answer(500), Answer(503), Answer(200)))

    execution = await agent.create()
    deliveries = [await agent.delivery(execution["id"], number=number) for number in (1, 2, 3)]
    await kernel.wait_for_event(execution["id"], "dispatch.acked")

    for number, delivery in enumerate(deliveries, start=1):
        _assert_signed(agent.secret, delivery)
        assert delivery.attempt == number
    assert len({delivery.dispatch_id for delivery in deliveries}) == 1
    assert len({delivery.headers["rebuno-signature"] for delivery in deliveries}) == 3
    times = [delivery.body["sent_at"] for delivery in deliveries]
    assert times[1] - times[0] >= 1
    assert times[2] - times[1] >= 1
    assert len(agent.endpoint.of(execution["id"])) == 3


async def test_w2_a_receiver_that_was_away_gets_a_fresh_signature_and_not_a_stale_one(kernel: Kernel) -> None:
    """Case W2. Seconds stand for the twenty minutes of the case: nothing is kept signed, however long it waits."""
    port = free_port()
    agent = await kernel.agent()
    await _register(kernel, agent, webhook_url=f"http://127.0.0.1:{port}/webhook")
    execution = await agent.create()
    await kernel.wait_for_event(execution["id"], "dispatch.failed")

    back_at = int(time.time()) + 2
    await wait_until_async(lambda: time.time() >= back_at, "the receiver to be back")
    async with _listening(port) as endpoint:
        delivery = await endpoint.delivery(execution["id"])

        _assert_signed(agent.secret, delivery)
        assert delivery.body["sent_at"] >= back_at
        assert delivery.attempt == 1
        assert len(endpoint.of(execution["id"])) == 1


@asynccontextmanager
async def _listening(port: int) -> AsyncIterator[Endpoint]:
    """An endpoint where nobody listened before."""
    endpoint = Endpoint(accepting)
    running: set[asyncio.Task[None]] = set()

    def accepted_by(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.add(asyncio.get_running_loop().create_task(_until_gone(endpoint, Connection(reader, writer))))

    server = await asyncio.start_server(accepted_by, "127.0.0.1", port)
    try:
        yield endpoint
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _until_gone(endpoint: Endpoint, connection: Connection) -> None:
    try:
        await endpoint.serve(connection)
    except (OSError, asyncio.IncompleteReadError):
        return
    finally:
        connection.writer.transport.abort()


async def _register(kernel: Kernel, agent: Agent, *, webhook_url: str = "", secret: str = "") -> None:
    body = {"id": agent.id, "webhook_url": webhook_url or agent.endpoint.url, "secret": secret or agent.secret}
    accepted(await kernel.post("/v0/agents", body))


# ---------------------------------------------------------------- bad receivers


class Bad(msgspec.Struct, frozen=True):
    """A receiver of a kind. One of https never gets as far as a certificate."""

    handler: Handler
    scheme: str = "http"


async def _never_answering(connection: Connection) -> None:
    await connection.read_request()
    await connection.hang_up()


async def _never_reading(connection: Connection) -> None:
    """Of https: the handshake stalls; of http it is a receiver that is asleep."""
    await connection.hang_up()


async def _dripping_head(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(b"HTTP/1.1 200 OK\r\n")
    for letter in itertools.repeat(b"x-drip: 1\r\n"):
        await connection.send(letter)
        if await connection.hang_up(wait_seconds=0.5):
            return


async def _dripping_body(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not await connection.hang_up(wait_seconds=0.5):
        await connection.send(b"x")


async def _endless_body(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2147483648\r\n\r\n")
    while True:
        await connection.send(b"x" * 1024)


async def _bomb(connection: Connection) -> None:
    """A megabyte for every kilobyte that somebody would unpack."""
    await connection.read_request()
    body = gzip.compress(b"\0" * 4 * 1024 * 1024)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    await connection.send(head + body)
    await connection.hang_up()


async def _asking_for_an_hour(connection: Connection) -> None:
    await connection.read_request()
    await connection.send(b"HTTP/1.1 429 Too Many\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n")
    await connection.hang_up()


def _alternating() -> Handler:
    statuses = itertools.cycle((b"500 No", b"200 OK"))

    async def handler(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 " + next(statuses) + b"\r\nContent-Length: 0\r\n\r\n")
        await connection.hang_up()

    return handler


BAD = {
    "never answering": Bad(_never_answering),
    "never reading": Bad(_never_reading),
    "stalled handshake": Bad(_never_reading, "https"),
    "dripping head": Bad(_dripping_head),
    "dripping body": Bad(_dripping_body),
    "endless body": Bad(_endless_body),
    "bomb": Bad(_bomb),
    "an hour": Bad(_asking_for_an_hour),
    "alternating": Bad(_alternating()),
}


@asynccontextmanager
async def _bad_agent(kernel: Kernel, bad: Bad) -> AsyncIterator[list[str]]:
    """Executions of a bad receiver, whose webhooks are all due at once."""
    async with peer(bad.handler) as server:
        agent = await kernel.agent()
        await _register(kernel, agent, webhook_url=f"{bad.scheme}://127.0.0.1:{server.port}/webhook")
        created = await asyncio.gather(*(agent.create() for _ in range(BAD_EXECUTIONS)))
        await wait_until_async(lambda: len(server.connections) >= BAD_EXECUTIONS, "the receiver to be called")
        yield [execution["id"] for execution in created]
        await asyncio.gather(*(kernel.cancel(execution["id"]) for execution in created))


@pytest.mark.parametrize("name", BAD)
async def test_w5_a_bad_receiver_holds_up_none_of_twenty_healthy_ones(kernel: Kernel, name: str) -> None:
    """Case W5. Its deadline of thirty seconds is waited for in K75, its lease behind a dead sender in K80."""
    healthy = [await kernel.agent() for _ in range(HEALTHY)]
    async with _bad_agent(kernel, BAD[name]):
        waits = sorted(await _waits(healthy))

    assert len(waits) == HEALTHY * DELIVERIES_EACH
    assert waits[-1] < LATENCY_SECONDS_MAX, waits[-5:]


async def test_w5_all_bad_receivers_at_once_hold_up_none_of_the_healthy_ones(kernel: Kernel) -> None:
    """Case W5."""
    healthy = [await kernel.agent() for _ in range(HEALTHY)]
    async with asyncio.TaskGroup() as group:
        is_over = asyncio.Event()
        running = asyncio.Semaphore(0)

        async def stay(bad: Bad) -> None:
            async with _bad_agent(kernel, bad):
                running.release()
                await is_over.wait()

        for bad in BAD.values():
            group.create_task(stay(bad))
        try:
            for _ in BAD:
                await running.acquire()
            waits = sorted(await _waits(healthy))
        finally:
            is_over.set()

    assert waits[-1] < LATENCY_SECONDS_MAX, waits[-5:]


async def test_w5_an_answer_of_any_length_acknowledges_and_is_cut(kernel: Kernel) -> None:
    """Case W5: endless bodies and bombs cost a few kilobytes, and the head has said all that counts."""
    for name in ("dripping body", "endless body", "bomb"):
        async with _bad_agent(kernel, BAD[name]) as execution_ids:
            for execution_id in execution_ids:
                await kernel.wait_for_event(execution_id, "dispatch.acked")
                assert "dispatch.failed" not in await kernel.event_types(execution_id)


async def _waits(agents: list[Agent]) -> list[float]:
    """Seconds from the answer to each create until its webhook: all agents at once, one after another for each."""

    async def of(agent: Agent) -> list[float]:
        found: list[float] = []
        for _ in range(DELIVERIES_EACH):
            execution = await agent.create()
            created_at = time.time()
            found.append((await agent.delivery(execution["id"])).at - created_at)
        return found

    return [wait for each in await asyncio.gather(*(of(agent) for agent in agents)) for wait in each]
