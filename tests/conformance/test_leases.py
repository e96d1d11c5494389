"""K52, K63, K64, K67: which lease may do what, and how long it lasts."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx
import pytest

from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted, details, envelope
from tests.conformance.harness.calls import ATTEMPT, DISPATCH_ID, REPLAYED
from tests.conformance.harness.endpoint import Answer, Delivery, in_turn
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.routes import ROUTES, UNKNOWN_ID, Route, Scene
from tests.conformance.harness.side_by_side import side_by_side
from tests.conformance.harness.stacks import LEASE_SECONDS
from tests.support.wait import wait_until_async

LEASED = tuple(route for route in ROUTES if route.is_leased)
# A redelivery is due within a second of the expiry; the rest is for the way and for a busy machine.
REDELIVERY_SECONDS_MAX = 1.0 + 0.5

each_leased_route = pytest.mark.parametrize("route", LEASED, ids=lambda route: route.name)


def test_k52_the_routes_under_a_lease_are_all_there() -> None:
    assert {route.name for route in LEASED} == {
        "submit",
        "complete_step",
        "fail_step",
        "heartbeat",
        "complete_execution",
        "fail_execution",
    }


@each_leased_route
async def test_k52_a_missing_or_malformed_lease_header_is_400(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)
    await kernel.wait_for_event(scene.execution_id, "dispatch.acked")
    plain = scene.unsigned(route)
    dispatch_id = plain.headers[DISPATCH_ID]
    wrong = [plain.without_headers(name) for name in (DISPATCH_ID, ATTEMPT)]
    wrong += [plain.with_headers({ATTEMPT: text}) for text in ("0", "-1", "1.0", "x", "", "1 1", "0x1", "1e0")]
    wrong += [plain.with_headers({DISPATCH_ID: text}) for text in ("x", "", dispatch_id[:-1], f"{{{dispatch_id}}}")]
    before = await kernel.trace(scene.execution_id)

    for call in wrong:
        details(await kernel.send(scene.authorized(route, call)), 400, "validation_error")

    assert await kernel.trace(scene.execution_id) == before


@each_leased_route
async def test_k52_a_malformed_lease_header_is_400_after_the_end_too(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)
    accepted(await kernel.cancel(scene.execution_id), 204)

    call = scene.unsigned(route).without_headers(ATTEMPT)

    details(await kernel.send(scene.authorized(route, call)), 400, "validation_error")


@each_leased_route
async def test_k52_an_unknown_dispatch_is_400_while_the_execution_lives(kernel: Kernel, route: Route) -> None:
    scene, other = await Scene.of(kernel), await Scene.of(kernel)
    await kernel.wait_for_event(scene.execution_id, "dispatch.acked")
    foreign = str(other.lease.dispatch_id)
    before = await kernel.trace(scene.execution_id)

    for dispatch_id in (UNKNOWN_ID, foreign):
        call = scene.unsigned(route).with_headers({DISPATCH_ID: dispatch_id})
        details(await kernel.send(scene.authorized(route, call)), 400, "validation_error")

    assert await kernel.trace(scene.execution_id) == before


@each_leased_route
async def test_k52_an_unknown_dispatch_gets_the_terminal_answer_after_the_end(kernel: Kernel, route: Route) -> None:
    scene, other = await Scene.of(kernel), await Scene.of(kernel)
    accepted(await scene.lease.complete_execution(), 204)
    before = await kernel.trace(scene.execution_id)

    for dispatch_id in (UNKNOWN_ID, str(other.lease.dispatch_id), str(scene.lease.dispatch_id)):
        call = scene.unsigned(route).with_headers({DISPATCH_ID: dispatch_id})
        answer = await kernel.send(scene.authorized(route, call))
        match route.name:
            case "submit" | "complete_step" | "fail_step":
                assert accepted(answer)["decision"] == "execution_terminal"
            case "heartbeat":
                envelope(answer, 409, "lease_superseded")
            case _:
                assert details(answer, 409, "execution_terminal")["status"] == "completed"

    assert await kernel.trace(scene.execution_id) == before


async def _refused_everywhere(lease: Lease, step_id: str) -> None:
    """Assert that the attempts before and after this lease may do nothing."""
    for attempt in (int(str(lease.attempt)) - 1, int(str(lease.attempt)) + 1):
        stale = lease.but(attempt=attempt)
        for answer in (
            await stale.submit("search", {"q": 1}),
            await stale.submit("search", {"q": 1}, key="k"),
            await stale.complete(step_id, 1),
            await stale.fail(step_id, "no"),
            await stale.heartbeat(),
            await stale.complete_execution("output"),
            await stale.fail_execution("reason"),
        ):
            envelope(answer, 409, "lease_superseded")


async def test_k63_after_a_failed_delivery_only_the_claimed_attempt_counts(kernel: Kernel) -> None:
    agent = await kernel.agent(in_turn(Answer(500), Answer(200)))
    execution = await agent.create()
    lease = await agent.lease(execution["id"], number=2)
    assert lease.attempt == 2
    await kernel.wait_for_event(lease.execution_id, "dispatch.acked")
    step_id = await lease.proceed("scene-step")
    before = await kernel.trace(lease.execution_id)

    await _refused_everywhere(lease, step_id)

    assert await kernel.trace(lease.execution_id) == before
    # Neither a use of the call nor the key was remembered.
    answer = await lease.submit("search", {"q": 1}, key="k")
    assert accepted(answer)["decision"] == "proceed"
    assert REPLAYED not in answer.headers
    assert (await kernel.step(lease.execution_id, answer.json()["step_id"]))["occurrence"] == 0
    assert accepted(await lease.complete(step_id, 1)) == {"decision": "recorded"}


@side_by_side
async def test_k63_after_an_expiry_only_the_claimed_attempt_counts(kernel: Kernel) -> None:
    is_answered = asyncio.Event()

    async def script(delivery: Delivery) -> Answer:
        if delivery.attempt == 2:
            await is_answered.wait()
        return Answer()

    agent = await kernel.agent(script)
    first = await agent.start()
    step_id = await first.proceed("scene-step")
    lease = await agent.lease(first.execution_id, number=2, deadline_seconds=LEASE_SECONDS + 5)
    before = await kernel.trace(lease.execution_id)

    await _refused_everywhere(lease, step_id)

    # Nor did what was refused acknowledge the attempt.
    assert await kernel.trace(lease.execution_id) == before
    is_answered.set()
    await kernel.wait_for_event(lease.execution_id, "dispatch.acked", count=2)
    assert accepted(await lease.complete(step_id, 1)) == {"decision": "recorded"}


@side_by_side
async def test_k63_a_refused_attempt_does_not_renew_the_lease(kernel: Kernel) -> None:
    agent = await kernel.agent()
    first = await agent.start()
    lease = await first.expired()
    claimed_at = agent.endpoint.of(lease.execution_id)[1].at

    async def refused() -> None:
        for stale in (lease.but(attempt=1), lease.but(attempt=3)):
            envelope(await stale.heartbeat(), 409, "lease_superseded")
            envelope(await stale.submit(), 409, "lease_superseded")

    # Its requests may be slow, and the last of them must still meet the second attempt.
    await _every(2.0, refused, until=claimed_at + LEASE_SECONDS - 3.0)

    third = await agent.delivery(lease.execution_id, number=3, deadline_seconds=LEASE_SECONDS)
    assert third.attempt == 3
    assert LEASE_SECONDS - 0.1 <= third.at - claimed_at <= LEASE_SECONDS + REDELIVERY_SECONDS_MAX


async def _assert_redelivered(agent: Agent, lease: Lease, renewed: tuple[float, float]) -> None:
    """Assert a second delivery one lease after the last renewal, sent and answered at these times."""
    second = await agent.delivery(lease.execution_id, number=2, deadline_seconds=LEASE_SECONDS + 5)
    assert (second.dispatch_id, second.attempt) == (lease.dispatch_id, 2)
    sent_at, answered_at = renewed
    assert sent_at + LEASE_SECONDS <= second.at <= answered_at + LEASE_SECONDS + REDELIVERY_SECONDS_MAX
    types = await agent.kernel.event_types(lease.execution_id)
    assert types.count("dispatch.queued") == 1
    assert types.count("dispatch.failed") == 0


@side_by_side
async def test_k64_heartbeats_alone_keep_the_lease(kernel: Kernel) -> None:
    await _kept_by(kernel, Lease.heartbeat, status=204)


@side_by_side
async def test_k64_submissions_alone_keep_the_lease(kernel: Kernel) -> None:
    await _kept_by(kernel, Lease.submit, status=200)


async def _kept_by(kernel: Kernel, renew: Callable[[Lease], Awaitable[httpx.Response]], *, status: int) -> None:
    agent = await kernel.agent()
    lease = await agent.acknowledged()
    renewed = (0.0, 0.0)

    async def renewing() -> None:
        nonlocal renewed
        sent_at = time.time()
        accepted(await renew(lease), status)
        renewed = (sent_at, time.time())

    await _every(LEASE_SECONDS / 3, renewing, until=time.time() + 1.6 * LEASE_SECONDS)

    assert len(agent.endpoint.of(lease.execution_id)) == 1
    await _assert_redelivered(agent, lease, renewed)


@side_by_side
async def test_k64_a_lease_that_nothing_renews_ends_after_its_period(kernel: Kernel) -> None:
    agent = await kernel.agent()
    before = time.time()
    lease = await agent.acknowledged()

    await _assert_redelivered(agent, lease, (before, time.time()))


@side_by_side
async def test_k64_outcomes_do_not_keep_the_lease(kernel: Kernel) -> None:
    agent = await kernel.agent()
    lease = await agent.acknowledged()
    ids = [await lease.proceed("search") for _ in range(4)]
    submitted_at = time.time()

    async def complete() -> None:
        accepted(await lease.complete(ids.pop(), 1))

    await _every(2.0, complete, until=submitted_at + 7.0)

    second = await agent.delivery(lease.execution_id, number=2, deadline_seconds=LEASE_SECONDS + 5)
    assert second.at - submitted_at <= LEASE_SECONDS + REDELIVERY_SECONDS_MAX


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
async def test_k67_a_heartbeat_after_the_end_is_superseded(kernel: Kernel, end: str) -> None:
    lease = await (await kernel.agent()).acknowledged()
    accepted(await lease.heartbeat(), 204)
    match end:
        case "complete":
            accepted(await lease.complete_execution(), 204)
        case "fail":
            accepted(await lease.fail_execution("no"), 204)
        case _:
            accepted(await kernel.cancel(lease.execution_id), 204)
    before = await kernel.trace(lease.execution_id)

    for each in (lease, lease.but(attempt=2), lease.but(dispatch_id=UNKNOWN_ID)):
        envelope(await each.heartbeat(), 409, "lease_superseded")

    assert await kernel.trace(lease.execution_id) == before


async def _every(interval_seconds: float, act: Callable[[], Awaitable[None]], *, until: float) -> None:
    """Act now and after every interval, and never begin to after a moment in unix seconds."""
    at = time.time()
    while max(at, time.time()) < until:
        await act()
        at += interval_seconds
        await wait_until_async(
            lambda moment=at: time.time() >= moment,
            "the next moment",
            deadline_seconds=interval_seconds + 5.0,
        )
