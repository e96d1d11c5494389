"""K68, K75: what a webhook is, and what an agent that answers badly can do."""

import socket
import time
from statistics import median
from typing import Any

from tests.conformance.harness.agent import Agent
from tests.conformance.harness.calls import AGENT_ID, sha256_signature
from tests.conformance.harness.endpoint import Answer, Delivery, in_turn
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.side_by_side import side_by_side
from tests.conformance.harness.stacks import LEASE_SECONDS
from tests.support.peers import Connection, peer
from tests.support.wait import wait_until_async

DELIVERY_SECONDS = 30.0
# The 4 KiB that are read, what the system takes for a reader that has stopped, and no reader that goes on.
TAKEN_BYTES_MAX = 1024 * 1024
_CHUNK_BYTES = 64 * 1024
SILENT = 40
OTHERS = 30


def _assert_webhook(agent: Agent, delivery: Delivery, execution: dict[str, Any], *, attempt: int) -> None:
    assert (delivery.method, delivery.target, delivery.version) == ("POST", "/webhook", "HTTP/1.1")
    body = delivery.body
    assert body.keys() == {"execution_id", "dispatch_id", "dispatch_attempt", "lease_timeout_seconds", "sent_at"}
    assert body["execution_id"] == execution["id"]
    assert type(body["dispatch_attempt"]) is int
    assert body["dispatch_attempt"] == attempt
    assert type(body["lease_timeout_seconds"]) in {int, float}
    assert body["lease_timeout_seconds"] == LEASE_SECONDS
    assert type(body["sent_at"]) is int
    assert abs(delivery.at - body["sent_at"]) <= 2.0
    assert delivery.headers["content-type"] == "application/json"
    assert delivery.headers["rebuno-execution-id"] == execution["id"]
    assert delivery.headers["rebuno-signature"] == sha256_signature(agent.secret, delivery.raw_body)
    names = [name for name, _ in delivery.header_pairs]
    assert len(names) == len(set(names))
    assert AGENT_ID.lower() not in names


async def test_k68_a_webhook_is_built_anew_and_signed_for_every_attempt(kernel: Kernel) -> None:
    agent = await kernel.agent(in_turn(Answer(503), Answer(503, {"Retry-After": "4"}), Answer(200)))

    execution = await agent.create({"input": "é"})

    deliveries = [await agent.delivery(execution["id"], number=number) for number in (1, 2, 3)]
    for number, delivery in enumerate(deliveries, start=1):
        _assert_webhook(agent, delivery, execution, attempt=number)
    assert len({delivery.dispatch_id for delivery in deliveries}) == 1
    assert deliveries[0].dispatch_id == (await kernel.events(execution["id"]))[2]["payload"]["dispatch_id"]
    # The waits of these attempts are longer than what a time of the first one could be off.
    assert deliveries[2].body["sent_at"] - deliveries[0].body["sent_at"] >= 4


@side_by_side
async def test_k68_a_webhook_after_an_expired_lease_is_built_anew_too(kernel: Kernel) -> None:
    agent = await kernel.agent()
    execution = await agent.create()

    lease = await (await agent.lease(execution["id"])).expired()

    for number, delivery in enumerate(agent.endpoint.of(lease.execution_id), start=1):
        _assert_webhook(agent, delivery, execution, attempt=number)


async def test_k68_the_address_is_called_as_it_was_registered(kernel: Kernel) -> None:
    agent = await kernel.agent()
    url = agent.endpoint.url.replace("/webhook", "/a%2Fb/%C3%A9?token=a%20b&x=1")
    await kernel.post("/v0/agents", {"id": agent.id, "webhook_url": url})

    execution = await agent.create()

    assert (await agent.delivery(execution["id"])).target == "/a%2Fb/%C3%A9?token=a%20b&x=1"


async def _arrival_seconds(agent: Agent) -> float:
    """From the answer of a create to its webhook."""
    execution = await agent.create()
    answered_at = time.time()
    lease = await agent.lease(execution["id"])
    seconds = agent.endpoint.of(execution["id"])[0].at - answered_at
    await lease.complete_execution()
    return seconds


@side_by_side
async def test_k75_a_silent_agent_is_given_up_after_thirty_seconds_and_holds_up_nobody(kernel: Kernel) -> None:
    silent = await kernel.agent(in_turn(Answer(is_silent=True), Answer(200)))
    other = await kernel.agent()
    execution_ids = [(await silent.create())["id"] for _ in range(SILENT)]
    await wait_until_async(lambda: len(silent.endpoint.deliveries) == SILENT, "every webhook to be open")

    seconds: list[float] = []
    ends_at = time.monotonic() + DELIVERY_SECONDS / 2
    while len(seconds) < OTHERS and time.monotonic() < ends_at:
        seconds.append(await _arrival_seconds(other))

    assert median(seconds) < 0.1, seconds
    assert max(seconds) < 1.0, seconds
    assert [each.ended_at for each in silent.endpoint.deliveries] == [None] * SILENT
    for execution_id in execution_ids[:3]:
        failed = await kernel.wait_for_event(execution_id, "dispatch.failed", deadline_seconds=DELIVERY_SECONDS + 5)
        assert (failed["payload"]["reason"], failed["payload"]["attempt"]) == ("timeout", 1)
        first = silent.endpoint.of(execution_id)[0]
        await wait_until_async(lambda gone=first: gone.ended_at is not None, "the connection to be closed")
        assert DELIVERY_SECONDS - 1.0 <= (first.ended_at or 0.0) - first.at <= DELIVERY_SECONDS + 1.0
        # The attempt was neither acknowledged nor lost to its lease: the next one is a retry.
        lease = await silent.lease(execution_id, number=2)
        assert (lease.dispatch_id, lease.attempt) == (first.dispatch_id, 2)


async def test_k75_an_endless_response_is_cut(kernel: Kernel) -> None:
    agent = await kernel.agent(lambda _: Answer(is_endless=True))

    execution = await agent.create()
    delivery = await agent.delivery(execution["id"])

    await kernel.wait_for_event(execution["id"], "dispatch.acked", deadline_seconds=3.0)
    await wait_until_async(lambda: delivery.ended_at is not None, "the connection to be closed", deadline_seconds=3.0)
    types = await kernel.event_types(execution["id"])
    assert types[3:] == ["dispatch.acked"]


async def test_k75_of_a_long_response_hardly_anything_is_taken(kernel: Kernel) -> None:
    """What the kernel does not read stays in buffers of the system, whose size bounds what can be sent to it."""
    sent: list[Connection] = []

    async def handler(connection: Connection) -> None:
        await connection.read_request()
        connection.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK_BYTES)
        sent.append(connection)
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            await connection.send(b"x" * _CHUNK_BYTES)

    agent = await kernel.agent()
    async with peer(handler) as server:
        await kernel.post("/v0/agents", {"id": agent.id, "webhook_url": f"http://127.0.0.1:{server.port}/"})
        execution = await agent.create()

        await kernel.wait_for_event(execution["id"], "dispatch.acked")
        await wait_until_async(lambda: server.ended, "the connection to be closed", deadline_seconds=5.0)

        assert len(sent) == 1
        assert sent[0].sent_bytes < TAKEN_BYTES_MAX
