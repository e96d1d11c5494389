"""K71, K72, K74: the waits between attempts, and what happens when all are used up."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise

from tests.conformance.harness.agent import Agent
from tests.conformance.harness.endpoint import Answer, in_turn
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.side_by_side import side_by_side
from tests.conformance.harness.stacks import LEASE_SECONDS

ATTEMPTS = 5
CREATED = ["execution.created", "execution.started", "dispatch.queued"]
# What a busy machine may add to a wait, and to a lease in addition to the second that an expiry may take.
SLACK_SECONDS = 0.5
RETRY_AFTER_SECONDS_MAX = 60.0


async def _wait_seconds(agent: Agent, execution_id: str, *, deadline_seconds: float = 20.0) -> float:
    """From the answer to the first webhook of an execution to the second webhook."""
    first = await agent.delivery(execution_id)
    second = await agent.delivery(execution_id, number=2, deadline_seconds=deadline_seconds)
    assert (second.dispatch_id, second.attempt) == (first.dispatch_id, 2)
    assert first.answered_at is not None
    return second.at - first.answered_at


@side_by_side
async def test_k71_five_failed_deliveries_at_growing_waits_end_the_execution(kernel: Kernel) -> None:
    agent = await kernel.agent(lambda _: Answer(500))
    execution = await agent.create()

    ended = await kernel.ended(execution["id"], deadline_seconds=30.0)

    deliveries = agent.endpoint.of(execution["id"])
    assert [each.attempt for each in deliveries] == [1, 2, 3, 4, 5]
    assert len({each.dispatch_id for each in deliveries}) == 1
    waits = [later.at - (earlier.answered_at or 0.0) for earlier, later in pairwise(deliveries)]
    for number, wait in enumerate(waits):
        assert 2**number <= wait <= 1.25 * 2**number + SLACK_SECONDS, waits
    events = await kernel.events(execution["id"])
    assert [event["type"] for event in events] == [*CREATED, *["dispatch.failed"] * ATTEMPTS, "execution.failed"]
    assert [(each["payload"]["attempt"], each["payload"]["reason"]) for each in events[3:-1]] == [
        (attempt, "http_500") for attempt in range(1, ATTEMPTS + 1)
    ]
    assert events[-1]["payload"]["reason"] == "dispatch_exhausted"
    assert (ended["status"], ended["failure_reason"]) == ("failed", "dispatch_exhausted")


@side_by_side
async def test_k71_the_waits_of_different_executions_are_not_the_same(kernel: Kernel) -> None:
    agent = await kernel.agent(in_turn(Answer(500), Answer(200)))
    ids = [(await agent.create())["id"] for _ in range(20)]

    waits = [await _wait_seconds(agent, each) for each in ids]

    assert all(1.0 <= wait <= 1.25 + SLACK_SECONDS for wait in waits), waits
    # Without jitter they would lie within the noise; with it, twenty of them reach over most of a quarter second.
    assert max(waits) - min(waits) > 0.1, waits


@side_by_side
async def test_k72_an_acknowledged_dispatch_that_is_never_worked_on_has_five_leases(kernel: Kernel) -> None:
    agent = await kernel.agent()
    execution = await agent.create()

    ended = await kernel.ended(execution["id"], deadline_seconds=(ATTEMPTS + 1) * (LEASE_SECONDS + 2))
    ended_at = time.time()

    deliveries = agent.endpoint.of(execution["id"])
    assert [each.attempt for each in deliveries] == [1, 2, 3, 4, 5]
    assert len({each.dispatch_id for each in deliveries}) == 1
    moments = [each.at for each in deliveries] + [ended_at]
    leases = [later - earlier for earlier, later in pairwise(moments)]
    for lease in leases:
        assert LEASE_SECONDS - 0.1 <= lease <= LEASE_SECONDS + 1.0 + SLACK_SECONDS, leases
    types = await kernel.event_types(execution["id"])
    assert types == [*CREATED, *["dispatch.acked"] * ATTEMPTS, "execution.failed"]
    assert (ended["status"], ended["failure_reason"]) == ("failed", "dispatch_exhausted")


@side_by_side
async def test_k72_failed_deliveries_and_expired_leases_share_the_attempts(kernel: Kernel) -> None:
    agent = await kernel.agent(in_turn(Answer(500), Answer(200), Answer(500), Answer(500), Answer(200)))
    execution = await agent.create()

    await kernel.ended(execution["id"], deadline_seconds=60.0)

    failed, acked = "dispatch.failed", "dispatch.acked"
    events = await kernel.events(execution["id"])
    assert [event["type"] for event in events] == [*CREATED, failed, acked, failed, failed, acked, "execution.failed"]
    assert [event["payload"]["attempt"] for event in events[3:-1]] == [1, 2, 3, 4, 5]
    assert events[-1]["payload"]["reason"] == "dispatch_exhausted"


@side_by_side
async def test_k74_retry_after_raises_the_wait(kernel: Kernel) -> None:
    for_seconds = [in_turn(Answer(status, {"Retry-After": "3"}), Answer(200)) for status in (503, 429)]
    agents = [await kernel.agent(script) for script in for_seconds]
    executions = [await agent.create() for agent in agents]

    waits = [await _wait_seconds(agent, each["id"]) for agent, each in zip(agents, executions, strict=True)]

    assert all(3.0 <= wait <= 3.0 * 1.25 + SLACK_SECONDS for wait in waits), waits


@side_by_side
async def test_k74_retry_after_may_be_a_date(kernel: Kernel) -> None:
    moment = datetime.now(UTC) + timedelta(seconds=8)
    # A date has whole seconds.
    date = moment.replace(microsecond=0)
    agent = await kernel.agent(in_turn(Answer(503, {"Retry-After": format_datetime(date, usegmt=True)}), Answer(200)))
    execution = await agent.create()

    await _wait_seconds(agent, execution["id"])

    arrived = datetime.fromtimestamp(agent.endpoint.of(execution["id"])[1].at, tz=UTC)
    # The kernel counts whole seconds from its own clock.
    assert -1.0 <= (arrived - date).total_seconds() <= 2.0 + SLACK_SECONDS


@side_by_side
async def test_k74_retry_after_never_lowers_the_wait_and_counts_on_429_and_503_only(kernel: Kernel) -> None:
    answers = [Answer(503, {"Retry-After": "0"}), Answer(503, {"Retry-After": "soon"})]
    answers += [Answer(500, {"Retry-After": "5"}), Answer(302, {"Retry-After": "5"})]
    agents = [await kernel.agent(in_turn(answer, Answer(200))) for answer in answers]
    executions = [await agent.create() for agent in agents]

    waits = [await _wait_seconds(agent, each["id"]) for agent, each in zip(agents, executions, strict=True)]

    assert all(1.0 <= wait <= 1.25 + SLACK_SECONDS for wait in waits), waits


@side_by_side
async def test_k74_retry_after_raises_the_wait_to_a_minute_at_most(kernel: Kernel) -> None:
    far = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)
    agents = [
        await kernel.agent(in_turn(Answer(503, {"Retry-After": wish}), Answer(200))) for wish in ("600", "9" * 30, far)
    ]
    executions = [await agent.create() for agent in agents]

    for agent, execution in zip(agents, executions, strict=True):
        wait = await _wait_seconds(agent, execution["id"], deadline_seconds=RETRY_AFTER_SECONDS_MAX + 10)
        assert RETRY_AFTER_SECONDS_MAX - 1.0 <= wait <= RETRY_AFTER_SECONDS_MAX + 1.0
