"""K69, K70, K73, K76, K77: how a dispatch reaches its agent, and what ends its tries."""

import asyncio
import time
from statistics import median
from typing import Any

import pytest

from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.endpoint import Answer, Delivery, in_turn
from tests.conformance.harness.kernel import Kernel
from tests.support.peers import answering, peer

RUNS = 50
ARRIVAL_SECONDS_MAX = 0.1
CREATED = ["execution.created", "execution.started", "dispatch.queued"]
SUBMITTED = ["step.proposed", "step.allowed", "step.executing"]
# Longer than the wait before a second attempt, 1.25 s at most, and far shorter than a lease.
QUIET_SECONDS = 3
USES = ("submit", "heartbeat")


@pytest.mark.alone
async def test_k69_a_webhook_arrives_within_100_ms_of_the_create(kernel: Kernel) -> None:
    agent = await kernel.agent()
    seconds: list[float] = []

    for _ in range(RUNS):
        execution = await agent.create()
        answered_at = time.time()
        delivery = await agent.delivery(execution["id"])
        seconds.append(delivery.at - answered_at)
        accepted(await agent.lease_of(delivery).complete_execution(), 204)

    assert median(seconds) < ARRIVAL_SECONDS_MAX, seconds


async def test_k70_a_503_and_then_a_200_are_a_failed_attempt_and_an_acknowledged_one(kernel: Kernel) -> None:
    agent = await kernel.agent(in_turn(Answer(503), Answer(200)))

    execution = await agent.create()
    await kernel.wait_for_event(execution["id"], "dispatch.acked")

    events = await kernel.events(execution["id"])
    assert [event["type"] for event in events] == [*CREATED, "dispatch.failed", "dispatch.acked"]
    dispatch_id = agent.endpoint.of(execution["id"])[0].dispatch_id
    plain = {"dispatch_id": dispatch_id, "execution_id": execution["id"]}
    assert [event["payload"] for event in events[2:]] == [
        plain | {"status": "pending", "attempt": 0},
        plain | {"status": "failed", "attempt": 1, "reason": "http_503"},
        plain | {"status": "acked", "attempt": 2},
    ]
    assert [each.attempt for each in agent.endpoint.of(execution["id"])] == [1, 2]


@pytest.mark.parametrize("status", [200, 201, 204, 299])
async def test_k70_every_2xx_acknowledges(kernel: Kernel, status: int) -> None:
    agent = await kernel.agent(lambda _: Answer(status))

    execution = await agent.create()
    await kernel.wait_for_event(execution["id"], "dispatch.acked")

    assert await kernel.event_types(execution["id"]) == [*CREATED, "dispatch.acked"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_k73_a_redirect_is_a_failed_delivery_and_never_followed(kernel: Kernel, status: int) -> None:
    async with peer(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as target:
        location = f"http://127.0.0.1:{target.port}/webhook"
        agent = await kernel.agent(in_turn(Answer(status, {"Location": location}), Answer(200)))

        execution = await agent.create()
        failed = await kernel.wait_for_event(execution["id"], "dispatch.failed")
        await kernel.wait_for_event(execution["id"], "dispatch.acked")

        assert failed["payload"]["reason"] == f"http_{status}"
        assert [each.attempt for each in agent.endpoint.of(execution["id"])] == [1, 2]
        assert target.connections == []


class Held:
    """A script whose answer to the first delivery waits until the test says which it is."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def give(self, answer: Answer) -> None:
        self._answer.set_result(answer)

    async def __call__(self, delivery: Delivery) -> Answer:
        # Shielded, because the end of a test cancels what waits at its endpoint.
        return await asyncio.shield(self._answer) if delivery.attempt == 1 else Answer(200)


async def _use(lease: Lease, what: str) -> list[str]:
    """Make a request that acknowledges, and return the events of its own that it has."""
    if what == "heartbeat":
        accepted(await lease.heartbeat(), 204)
        return []
    await lease.proceed("search")
    return SUBMITTED


async def _quiet(agent: Agent, execution_id: str) -> list[dict[str, Any]]:
    """The events, after a time in which none was added and no delivery made."""
    before = await agent.kernel.events(execution_id)
    count = len(agent.endpoint.of(execution_id))
    answer = await agent.kernel.get(f"/v0/executions/{execution_id}/events", after_seq=len(before), wait=QUIET_SECONDS)
    assert accepted(answer) == []
    assert len(agent.endpoint.of(execution_id)) == count
    return before


async def test_k76_a_request_before_the_webhooks_answer_acknowledges_the_attempt(kernel: Kernel) -> None:
    runs = [_used_before_the_answer(kernel, what, status) for what in USES for status in (500, 200)]
    await asyncio.gather(*runs)


async def _used_before_the_answer(kernel: Kernel, what: str, status: int) -> None:
    held = Held()
    agent = await kernel.agent(held)
    lease = await agent.start()
    assert await kernel.event_types(lease.execution_id) == CREATED

    own = await _use(lease, what)
    assert await kernel.event_types(lease.execution_id) == [*CREATED, "dispatch.acked", *own]
    held.give(Answer(status))

    events = await _quiet(agent, lease.execution_id)
    assert [event["type"] for event in events] == [*CREATED, "dispatch.acked", *own]
    assert events[3]["payload"] == {
        "dispatch_id": lease.dispatch_id,
        "execution_id": lease.execution_id,
        "status": "acked",
        "attempt": 1,
    }
    assert len(agent.endpoint.of(lease.execution_id)) == 1


async def test_k76_a_request_after_the_500_acknowledges_and_cancels_the_redelivery(kernel: Kernel) -> None:
    await asyncio.gather(*(_used_after_the_500(kernel, what) for what in USES))


async def _used_after_the_500(kernel: Kernel, what: str) -> None:
    agent = await kernel.agent(in_turn(Answer(500), Answer(200)))
    lease = await agent.start()
    await kernel.wait_for_event(lease.execution_id, "dispatch.failed")

    own = await _use(lease, what)

    events = await _quiet(agent, lease.execution_id)
    assert [event["type"] for event in events] == [*CREATED, "dispatch.failed", "dispatch.acked", *own]
    assert [(event["payload"]["attempt"], event["payload"]["status"]) for event in events[3:5]] == [
        (1, "failed"),
        (1, "acked"),
    ]
    assert len(agent.endpoint.of(lease.execution_id)) == 1


@pytest.mark.parametrize("outcome", ["complete", "fail"])
async def test_k76_an_outcome_that_is_not_accepted_acknowledges_nothing(kernel: Kernel, outcome: str) -> None:
    held = Held()
    agent = await kernel.agent(held)
    lease = await agent.start()

    for refused in (
        await lease.request(f"/steps/{'f' * 64}/{outcome}", {"error": "no"}),
        await lease.submit(target=7),
        await lease.but(attempt=2).heartbeat(),
        await lease.submit(settle=[{"step_id": "f" * 64, "result": 1}]),
    ):
        assert refused.status_code in {400, 404, 409}
    assert await kernel.event_types(lease.execution_id) == CREATED

    held.give(Answer(500))
    await kernel.wait_for_event(lease.execution_id, "dispatch.acked")
    types = await kernel.event_types(lease.execution_id)
    assert types == [*CREATED, "dispatch.failed", "dispatch.acked"]


async def test_k77_a_cancel_during_a_retry_wait_discards_the_dispatch(kernel: Kernel) -> None:
    agent = await kernel.agent(lambda _: Answer(500))
    execution = await agent.create()
    execution_id = execution["id"]
    await kernel.wait_for_event(execution_id, "dispatch.failed")

    accepted(await kernel.cancel(execution_id), 204)

    events = await kernel.events(execution_id)
    assert [event["type"] for event in events] == [
        *CREATED,
        "dispatch.failed",
        "execution.cancelled",
        "dispatch.discarded",
    ]
    assert events[-1]["payload"] == {
        "dispatch_id": agent.endpoint.of(execution_id)[0].dispatch_id,
        "execution_id": execution_id,
        "status": "exhausted",
        "attempt": 1,
    }
    # Another execution's second attempt, due later, shows that the time of the first one's has passed.
    other = await agent.create()
    await agent.delivery(other["id"], number=2)
    assert len(agent.endpoint.of(execution_id)) == 1
    assert await kernel.events(execution_id) == events


async def test_k77_a_cancel_while_the_webhook_is_open_or_acknowledged_retires_it_silently(kernel: Kernel) -> None:
    held = Held()
    agent = await kernel.agent(held)
    opened, acknowledged = await agent.start(), await (await kernel.agent()).acknowledged()

    for lease in (opened, acknowledged):
        accepted(await kernel.cancel(lease.execution_id), 204)
    held.give(Answer(500))

    # A cancelled execution ends a waiting read at once, so what passes the time is one that lives.
    await _quiet(acknowledged.agent, (await acknowledged.agent.acknowledged()).execution_id)
    assert await kernel.event_types(opened.execution_id) == [*CREATED, "execution.cancelled"]
    assert await kernel.event_types(acknowledged.execution_id) == [*CREATED, "dispatch.acked", "execution.cancelled"]
    assert len(agent.endpoint.of(opened.execution_id)) == 1
