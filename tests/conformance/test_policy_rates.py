"""K91 to K93, K116: rate limits of executions, agents and tenants, what they cost, and what they refuse."""

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.approvals import Approval
from tests.conformance.harness.calls import REPLAYED
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.policy import ALLOW, ASK, DENY, bundle, governed, load, rule
from tests.conformance.harness.side_by_side import side_by_side
from tests.conformance.harness.stacks import SETTINGS
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

SCOPES = ("execution", "agent", "global")
HOUR = "1h"
SHORT_SECONDS = 1.0
OVER = "rate_limit_exceeded"
TARGET = "limited"
PAST_ANY_RECORD = 2**53


def a_name() -> str:
    """A rule id of the test's own: a global bucket belongs to the whole tenant."""
    return f"rule-{secrets.token_hex(6)}"


def limited(
    rule_id: str = "limit", *, calls: int = 1, window: str = HOUR, per: str = "", decision: str = ALLOW
) -> dict[str, Any]:
    """A rule that limits the calls of `TARGET`."""
    rate = {"max_calls": calls, "window": window} | ({"per_what": per} if per else {})
    return rule(rule_id, decision, when={"target": TARGET}, rate_limit=rate)


async def limited_agent(kernel: Kernel, rule_id: str = "limit", **terms: Any) -> Agent:
    return await governed(kernel, limited(rule_id, **terms), default=ALLOW)


async def is_limited(lease: Lease, args: Any = None, **options: Any) -> bool:
    """Submit the call that is limited: whether it was refused for that."""
    decision = await lease.decide(TARGET, args, **options)
    if decision["decision"] == "proceed":
        return False
    assert (decision["decision"], decision["reason"]) == ("rate_limited", OVER), decision
    return True


async def taken(lease: Lease, count: int) -> int:
    """How many of so many calls got through."""
    return count - sum([await is_limited(lease) for _ in range(count)])


# ---------------------------------------------------------------- over the limit


@pytest.mark.parametrize("per", ["", *SCOPES])
async def test_k91_a_call_over_the_limit_is_refused_and_leaves_no_trace(kernel: Kernel, per: str) -> None:
    rule_id = a_name()
    agent = await limited_agent(kernel, rule_id, per=per)
    lease = await agent.acknowledged()
    await lease.proceed(TARGET, {"n": 1})
    before = await kernel.trace(lease.execution_id)

    for args in ({"n": 1}, {"n": 1}, {"n": 2}):
        refused = await lease.decide(TARGET, args)
        assert refused == {"decision": "rate_limited", "reason": OVER, "rule_id": rule_id, "resources": []}

    assert await kernel.trace(lease.execution_id) == before
    await lease.proceed("other")
    # The counters stood still: the next use of each call is the one after those that were recorded.
    await load(agent, bundle(default=ALLOW))
    for args, occurrence in (({"n": 1}, 1), ({"n": 2}, 0)):
        step = await kernel.step(lease.execution_id, await lease.proceed(TARGET, args))
        assert step["occurrence"] == occurrence


@pytest.mark.parametrize("per", SCOPES)
async def test_k91_a_short_window_refills_and_never_beyond_full(kernel: Kernel, per: str) -> None:
    calls = 2
    lease = await (await limited_agent(kernel, a_name(), calls=calls, window=f"{SHORT_SECONDS}s", per=per)).start()
    started_at = time.monotonic()
    for _ in range(calls):
        await lease.proceed(TARGET)
    got = calls

    async def is_let_through() -> bool:
        return not await is_limited(lease)

    for _ in range(calls):
        await wait_until_async(is_let_through, "the bucket to refill", deadline_seconds=10 * SHORT_SECONDS)
        got += 1
        # Continuously: what came through is never more than the bucket held and what flowed in since.
        passed = time.monotonic() - started_at
        assert got <= calls + passed * calls / SHORT_SECONDS


@pytest.mark.parametrize("per", SCOPES)
async def test_k91_of_many_calls_at_once_as_many_get_through_as_the_bucket_holds(kernel: Kernel, per: str) -> None:
    lease = await (await limited_agent(kernel, a_name(), calls=3, per=per)).start()

    found = await asyncio.gather(*(is_limited(lease, number) for number in range(20)))

    assert found.count(False) == 3
    steps = await kernel.steps(lease.execution_id)
    assert len(steps) == 3


@pytest.mark.parametrize("per", SCOPES)
@pytest.mark.parametrize(("decision", "first"), [(DENY, "denied"), (ASK, "blocked")])
async def test_k91_the_limit_holds_whatever_the_rule_decides(
    kernel: Kernel, per: str, decision: str, first: str
) -> None:
    agent = await limited_agent(kernel, a_name(), per=per, decision=decision)
    lease = await agent.start()

    asked = await lease.decide(TARGET)
    assert asked["decision"] == first
    if first == "blocked":
        # While it is blocked the refusal is that, and costs no token either.
        assert (await lease.decide(TARGET))["decision"] == "execution_blocked"
        approval = Approval(lease, asked)
        accepted(await approval.grant(), 204)
        lease = await approval.next_lease()
        # What has been decided is not new.
        assert (await lease.decide(TARGET))["decision"] == "proceed"

    assert await is_limited(lease)


@pytest.mark.parametrize("per", SCOPES)
async def test_k91_the_largest_limit_that_can_be_loaded_lets_calls_through(kernel: Kernel, per: str) -> None:
    lease = await (await limited_agent(kernel, a_name(), calls=PAST_ANY_RECORD, window="8784h", per=per)).start()

    assert await taken(lease, 3) == 3


async def test_k91_what_is_refused_for_another_cause_costs_no_call(kernel: Kernel) -> None:
    for per in SCOPES:
        lease = await (await limited_agent(kernel, a_name(), per=per)).start()
        for _ in range(2):
            answer = await lease.submit(TARGET, settle=[{"step_id": "0" * 64, "result": 1}])
            assert answer.status_code == 404
            assert (await lease.submit(TARGET, idempotency="twice")).status_code == 400
            assert (await lease.but(attempt=9).submit(TARGET)).status_code == 409
        assert await taken(lease, 2) == 1, per


# ---------------------------------------------------------------- whose bucket


async def test_k92_executions_have_a_bucket_each(kernel: Kernel) -> None:
    for per in ("", "execution"):
        agent = await limited_agent(kernel, per=per, calls=2)
        assert [await taken(await agent.start(), 4) for _ in range(2)] == [2, 2]


async def test_k92_executions_of_an_agent_share_its_bucket_and_agents_do_not(kernel: Kernel) -> None:
    rule_id = a_name()
    agents = [await limited_agent(kernel, rule_id, per="agent", calls=2) for _ in range(2)]

    for agent in agents:
        assert [await taken(await agent.start(), 2) for _ in range(2)] == [2, 0]


async def test_k92_agents_share_a_global_bucket_where_rule_and_terms_are_equal(kernel: Kernel) -> None:
    rule_id = a_name()
    terms: list[dict[str, Any]] = [
        {"calls": 2, "window": "1h"},
        {"calls": 2, "window": "60m"},
        {"calls": 2, "window": "3600"},
    ]
    first, *same = [await limited_agent(kernel, rule_id, per="global", **each) for each in terms]
    more_calls = await limited_agent(kernel, rule_id, per="global", calls=3)
    other_window = await limited_agent(kernel, rule_id, per="global", calls=2, window="2h")
    other_rule = await limited_agent(kernel, a_name(), per="global", calls=2)

    assert await taken(await first.start(), 3) == 2
    assert [await taken(await agent.start(), 1) for agent in same] == [0, 0]
    assert await taken(await more_calls.start(), 4) == 3
    assert [await taken(await agent.start(), 3) for agent in (other_window, other_rule)] == [2, 2]


async def test_k92_rules_of_one_agent_have_a_bucket_each(kernel: Kernel) -> None:
    rate = {"max_calls": 1, "window": HOUR}
    for per in SCOPES:
        rules = [
            rule(a_name(), ALLOW, when={"target": target}, priority=at, rate_limit=rate | {"per_what": per})
            for at, target in enumerate(("one", "two"))
        ]
        lease = await (await governed(kernel, *rules)).start()
        found = [(await lease.decide(target))["decision"] for target in ("one", "two", "one", "two")]
        assert found == ["proceed", "proceed", "rate_limited", "rate_limited"], per


@pytest.mark.parametrize("per", SCOPES)
async def test_k92_no_bucket_is_shared_across_tenants(kernel: Kernel, stack: Stack, per: str) -> None:
    rule_id = a_name()
    mine = await limited_agent(kernel, rule_id, per=per)
    other = await _tenant(kernel.holding(stack.operator_key))
    theirs = await other.agent(agent_id=mine.id)
    await load(theirs, bundle(limited(rule_id, per=per), default=ALLOW))

    assert [await taken(await agent.start(), 2) for agent in (mine, theirs)] == [1, 1]


async def _tenant(operator: Kernel) -> Kernel:
    """A new tenant, reached with a key of its own."""
    tenant = f"tenant-{secrets.token_hex(6)}"
    accepted(await operator.post("/v0/tenants", {"id": tenant}), 201)
    scopes = ["executions:read", "executions:write", "agents:admin", "policies:admin"]
    key = {"name": "test", "scopes": scopes, "tenant": tenant}
    return operator.holding(accepted(await operator.post("/v0/keys", key), 201)["key"])


async def test_k92_doors_share_the_buckets(new_stack: Callable[..., Stack]) -> None:
    doors = new_stack(processes="apart", doors=2, settings=SETTINGS)
    async with (
        connected(doors.urls[0], doors.api_key) as here,
        connected(doors.urls[1], doors.api_key) as there,
    ):
        for per in SCOPES:
            agent = await limited_agent(here, calls=4, per=per)
            beside = Agent(there, agent.endpoint, agent_id=agent.id, secret=agent.secret, scheme=agent.scheme)
            lease = await agent.start()
            other = beside.lease_of(await agent.delivery(lease.execution_id))

            async def knows(other: Lease = other) -> bool:
                return (await other.decide("other"))["rule_id"] == "default"

            await wait_until_async(knows, "the other door to have the bundle")
            assert [await taken(each, 3) for each in (lease, other)] == [3, 1], per


# ---------------------------------------------------------------- what is not new


@side_by_side
async def test_k93_replays_and_retries_of_orphans_pass_an_empty_bucket(kernel: Kernel) -> None:
    async def check(per: str) -> None:
        lease = await (await limited_agent(kernel, a_name(), calls=3, per=per)).acknowledged()
        done = await lease.done(TARGET, "done", result={"n": 1})
        failed = await lease.proceed(TARGET, "failed")
        accepted(await lease.fail(failed, {"message": "no"}))
        orphan = await lease.proceed(TARGET, "orphan")
        assert await is_limited(lease, "new")

        again = await lease.expired()

        wanted = {"done": ("replay", done), "failed": ("replay", failed), "orphan": ("proceed", orphan)}
        for args, expected in wanted.items():
            decision = await again.decide(TARGET, args)
            assert (decision["decision"], decision["step_id"]) == expected, (per, args)
        assert await is_limited(again, "new")

    await asyncio.gather(*(check(per) for per in SCOPES))


@side_by_side
async def test_k93_replays_and_retries_cost_no_call(kernel: Kernel) -> None:
    async def check(per: str) -> None:
        lease = await (await limited_agent(kernel, a_name(), calls=3, per=per)).acknowledged()
        await lease.done(TARGET, "done")
        await lease.proceed(TARGET, "orphan")

        again = await lease.expired()
        assert (await again.decide(TARGET, "done"))["decision"] == "replay"
        assert not await is_limited(again, "orphan", key="k")
        assert REPLAYED in (await again.submit(TARGET, "orphan", key="k")).headers

        assert await taken(again, 2) == 1

    await asyncio.gather(*(check(per) for per in SCOPES))


@side_by_side
async def test_k93_a_call_that_may_have_run_already_is_refused_before_its_limit_is_touched(kernel: Kernel) -> None:
    async def check(per: str) -> None:
        lease = await (await limited_agent(kernel, a_name(), calls=2, per=per)).acknowledged()
        await lease.proceed(TARGET, idempotency="at_most_once")

        again = await lease.expired()
        assert (await again.decide(TARGET, idempotency="at_most_once"))["decision"] == "replay"
        for _ in range(3):
            refused = await again.decide(TARGET, idempotency="at_most_once")
            assert (refused["decision"], refused["reason"]) == ("denied", "indeterminate_retry"), per

        assert [await is_limited(again, number) for number in range(2)] == [False, True], per

    await asyncio.gather(*(check(per) for per in SCOPES))


# ---------------------------------------------------------------- keys and outcomes


@pytest.mark.parametrize("per", SCOPES)
async def test_k116_a_call_that_was_over_the_limit_binds_no_key_and_keeps_its_outcomes(
    kernel: Kernel, per: str
) -> None:
    agent = await limited_agent(kernel, a_name(), per=per)
    lease = await agent.start()
    open_step = await lease.proceed(TARGET)

    for _ in range(2):
        settle = [{"step_id": open_step, "result": "kept"}]
        answer = await lease.submit(TARGET, key="k", settle=settle)
        assert accepted(answer)["decision"] == "rate_limited"
        assert REPLAYED not in answer.headers
        step = await kernel.step(lease.execution_id, open_step)
        assert (step["status"], step["result"]) == ("succeeded", "kept")

    await load(agent, bundle(default=ALLOW))
    fresh = await lease.submit(TARGET, {"another": "body"}, key="k")
    assert accepted(fresh)["decision"] == "proceed"
    assert REPLAYED not in fresh.headers
    assert REPLAYED in (await lease.submit(TARGET, {"another": "body"}, key="k")).headers


async def test_k116_a_call_of_a_blocked_execution_binds_no_key_and_keeps_its_outcomes(kernel: Kernel) -> None:
    agent = await governed(kernel, rule("ask", ASK, when={"target": "pay"}), default=ALLOW)
    lease = await agent.start()
    open_step = await lease.proceed("parallel")
    approval = Approval(lease, await lease.decide("pay"))

    for _ in range(2):
        answer = await lease.submit("next", key="k", settle=[{"step_id": open_step, "error": "failed"}])
        assert accepted(answer) == {"decision": "execution_blocked", "resources": []}
        assert REPLAYED not in answer.headers
        step = await kernel.step(lease.execution_id, open_step)
        assert (step["status"], step["error"]) == ("failed", {"message": "failed"})

    accepted(await approval.grant(), 204)
    # The dispatch that was blocked keeps its lease until the next one is claimed; either way the key is free.
    resumed = await approval.next_lease()
    fresh = await resumed.submit("next", {"another": "body"}, key="k")
    assert accepted(fresh)["decision"] == "proceed"
    assert REPLAYED not in fresh.headers
