"""K117: a target that cannot be reached."""

import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conformance.harness.agent import Agent
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.endpoint import accepting, serving
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.side_by_side import side_by_side
from tests.conformance.harness.stacks import Stacks
from tests.support.peers import Connection, answering, peer, refusing, self_signed
from tests.support.wait import wait_until_async

CREATED = ["execution.created", "execution.started", "dispatch.queued"]
# By then four or five tries have failed (after 0, 1, 3 and 7 s and the jitter): as many as a dispatch has attempts
# are no reason to give up, nor to say so more than once.
DOWN_SECONDS = 20.0
SECONDS_TO_THE_SEVENTH_TRY_MAX = 1.25 * (1 + 2 + 4 + 8 + 16 + 30) + 5.0
TOLD_SECONDS_MIN = 60.0
LIMIT_SECONDS = 2.0


async def _at(kernel: Kernel, url: str) -> Agent:
    """An agent whose webhooks go to this address instead of its endpoint."""
    agent = await kernel.agent()
    await _move(agent, url)
    return agent


async def _move(agent: Agent, url: str) -> None:
    accepted(await agent.kernel.post("/v0/agents", {"id": agent.id, "webhook_url": url}), 200)


async def _down(kernel: Kernel, execution_id: str) -> None:
    """Let the target be down for a while, and assert what the history says of it."""
    failed = await kernel.wait_for_event(execution_id, "dispatch.failed")
    assert (failed["payload"]["reason"], failed["payload"]["attempt"]) == ("unreachable", 1)
    ends_at = time.monotonic() + DOWN_SECONDS
    while time.monotonic() < ends_at:
        # A read that waits and finds nothing: the history stays as it is.
        answer = await kernel.get(f"/v0/executions/{execution_id}/events", after_seq=failed["event_seq"], wait=5)
        assert accepted(answer) == []
    assert await kernel.event_types(execution_id) == [*CREATED, "dispatch.failed"]


async def _assert_delivered_as_the_first_attempt(kernel: Kernel, execution_id: str) -> None:
    acked = await kernel.wait_for_event(execution_id, "dispatch.acked", deadline_seconds=45.0)
    assert acked["payload"]["attempt"] == 1
    assert await kernel.event_types(execution_id) == [*CREATED, "dispatch.failed", "dispatch.acked"]


@side_by_side
async def test_k117_a_refused_connection_uses_up_no_attempt(kernel: Kernel) -> None:
    bound = refusing()
    agent = await _at(kernel, f"http://127.0.0.1:{bound.getsockname()[1]}/webhook")
    execution = await agent.create()

    await _down(kernel, execution["id"])

    async with serving(accepting, bound=bound) as back:
        await _assert_delivered_as_the_first_attempt(kernel, execution["id"])
        assert [each.attempt for each in back.of(execution["id"])] == [1]


@side_by_side
async def test_k117_an_unknown_name_uses_up_no_attempt(kernel: Kernel) -> None:
    agent = await _at(kernel, "http://nobody-has-this-name.invalid/webhook")
    execution = await agent.create()

    await _down(kernel, execution["id"])

    await _move(agent, agent.endpoint.url)
    await _assert_delivered_as_the_first_attempt(kernel, execution["id"])
    assert [each.attempt for each in agent.endpoint.of(execution["id"])] == [1]


@side_by_side
async def test_k117_a_failing_handshake_uses_up_no_attempt(kernel: Kernel) -> None:
    with TemporaryDirectory() as folder:
        # A certificate that nobody vouches for.
        server_side, _ = self_signed(Path(folder), "127.0.0.1")
    async with peer(answering(b""), tls=server_side) as untrusted:
        agent = await _at(kernel, f"https://127.0.0.1:{untrusted.port}/webhook")
        execution = await agent.create()

        await _down(kernel, execution["id"])

        # Nobody has come through a handshake.
        assert untrusted.connections == []
    await _move(agent, agent.endpoint.url)
    await _assert_delivered_as_the_first_attempt(kernel, execution["id"])
    assert [each.attempt for each in agent.endpoint.of(execution["id"])] == [1]


@side_by_side
async def test_k117_an_unreachable_target_is_told_at_most_once_a_minute(kernel: Kernel) -> None:
    tries: list[float] = []

    async def no_tls(connection: Connection) -> None:
        tries.append(time.monotonic())
        await connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with peer(no_tls) as plain:
        agent = await _at(kernel, f"https://127.0.0.1:{plain.port}/webhook")
        execution = await agent.create()

        await wait_until_async(
            lambda: len(tries) >= 7, "the seventh try", deadline_seconds=SECONDS_TO_THE_SEVENTH_TRY_MAX
        )

        waits = [later - earlier for earlier, later in pairwise(tries)]
        for number, wait in enumerate(waits):
            expected = min(2.0**number, 30.0)
            assert expected <= wait <= 1.25 * expected + 0.5, waits
        await kernel.wait_for_event(execution["id"], "dispatch.failed", count=2)
        events = await kernel.events(execution["id"])
    assert [event["type"] for event in events] == [*CREATED, "dispatch.failed", "dispatch.failed"]
    first, second = (datetime.fromisoformat(event["occurred_at"]) for event in events[3:])
    assert (second - first).total_seconds() >= TOLD_SECONDS_MIN
    assert [(event["payload"]["reason"], event["payload"]["attempt"]) for event in events[3:]] == [
        ("unreachable", 1)
    ] * 2


async def test_k117_past_the_limit_it_counts_as_failed_deliveries(stacks: Stacks) -> None:
    stack = stacks.get(
        STEPWELL_DISPATCH_UNREACHABLE=f"{LIMIT_SECONDS:g}s",
        STEPWELL_DISPATCH_BASE_DELAY="200ms",
        STEPWELL_DISPATCH_MAX_DELAY="400ms",
    )
    bound = refusing()
    async with connected(stack.url, stack.api_key) as kernel:
        agent = await _at(kernel, f"http://127.0.0.1:{bound.getsockname()[1]}/webhook")
        execution = await agent.create()

        ended = await kernel.ended(execution["id"])

        assert (ended["status"], ended["failure_reason"]) == ("failed", "dispatch_exhausted")
        events = await kernel.events(execution["id"])
    bound.close()
    types = [event["type"] for event in events]
    assert types == [*CREATED, *["dispatch.failed"] * (len(types) - 4), "execution.failed"]
    failed = events[3:-1]
    assert {event["payload"]["reason"] for event in failed} == {"unreachable"}
    # One told while the target was merely unreachable, then the five that count.
    assert [event["payload"]["attempt"] for event in failed] == [1, 1, 2, 3, 4, 5]
    moments = [datetime.fromisoformat(event["occurred_at"]) for event in failed]
    assert (moments[1] - moments[0]).total_seconds() >= LIMIT_SECONDS


async def test_k117_a_target_that_is_back_before_the_limit_starts_it_anew(stacks: Stacks) -> None:
    stack = stacks.get(
        STEPWELL_DISPATCH_UNREACHABLE=f"{LIMIT_SECONDS:g}s",
        STEPWELL_DISPATCH_BASE_DELAY="200ms",
        STEPWELL_DISPATCH_MAX_DELAY="400ms",
    )
    bound = refusing()
    async with connected(stack.url, stack.api_key) as kernel:
        agent = await _at(kernel, f"http://127.0.0.1:{bound.getsockname()[1]}/webhook")
        execution = await agent.create()
        await kernel.wait_for_event(execution["id"], "dispatch.failed")

        async with serving(accepting, bound=bound) as back:
            await kernel.wait_for_event(execution["id"], "dispatch.acked")

            assert [each.attempt for each in back.of(execution["id"])] == [1]
            assert await kernel.event_types(execution["id"]) == [*CREATED, "dispatch.failed", "dispatch.acked"]
