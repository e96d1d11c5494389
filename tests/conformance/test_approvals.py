"""K34, K36, K59, K65, K66, K94 to K98: a step that waits for an approval, and what becomes of its execution."""

import asyncio
import time
from datetime import datetime
from typing import Any

import pytest

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, envelope
from tests.conformance.harness.approvals import RULE, TARGET, Approval, asked, asking_agent, blocked, in_short
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.side_by_side import side_by_side
from tests.conformance.harness.stacks import LEASE_SECONDS
from tests.support.wait import wait_until_async

EXPIRY_SECONDS_MAX = 1.0
REDELIVERY_SECONDS_MAX = 1.5
QUIET_SECONDS = 1.0
DEFAULT_TIMEOUT_SECONDS = 15 * 60.0


def seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


async def events_after(approval: Approval, count: int) -> list[dict[str, Any]]:
    return await approval.kernel.events(approval.execution_id, after_seq=count)


async def count_of(approval: Approval) -> int:
    return len(await approval.kernel.events(approval.execution_id))


# ---------------------------------------------------------------- asking


async def test_k94_a_step_that_needs_an_approval_blocks_its_execution(kernel: Kernel) -> None:
    approvers, message = ["boss", "Deputy é"], "move the money?"
    agent = await asking_agent(kernel, approvers=approvers, message=message, timeout="90s", separate_requester=True)
    lease = await agent.acknowledged()
    before = len(await kernel.events(lease.execution_id))

    decision = await lease.decide(TARGET, {"amount": 1})

    assert decision | {"step_id": "", "approval_id": ""} == {
        "decision": "blocked",
        "step_id": "",
        "approval_id": "",
        "rule_id": RULE,
        "resources": [],
    }
    approval = Approval(lease, decision)
    shown = await approval.read()
    assert seconds_between(shown["created_at"], shown["timeout_at"]) == 90.0
    assert {name: shown[name] for name in shown if not name.endswith("_at")} == {
        "id": approval.id,
        "step_id": approval.step_id,
        "execution_id": lease.execution_id,
        "agent_id": agent.id,
        "target": TARGET,
        "rule_id": RULE,
        "status": "pending",
        "approvers": approvers,
        "message": message,
        "decided_by": "",
        "asserted_by": "",
        "rationale": "",
    }
    assert "decided_at" not in shown
    events = await kernel.events(lease.execution_id, after_seq=before)
    assert in_short(events, "status", "rule_id", "approval_id") == [
        ("step.proposed", None, None, None),
        ("step.awaiting_approval", None, RULE, None),
        ("approval.requested", "pending", None, approval.id),
        ("execution.blocked", "blocked", None, None),
    ]
    assert events[1]["payload"]["policy_version"] > 0
    assert (await kernel.execution(lease.execution_id))["status"] == "blocked"
    assert (await kernel.step(lease.execution_id, approval.step_id))["status"] == "awaiting_approval"


async def test_k94_without_a_configuration_anyone_may_decide_for_fifteen_minutes(kernel: Kernel) -> None:
    shown = await (await asked(kernel)).read()

    assert (shown["approvers"], shown["message"]) == ([], "")
    assert seconds_between(shown["created_at"], shown["timeout_at"]) == DEFAULT_TIMEOUT_SECONDS


async def test_k95_the_blocked_submission_repeated_with_its_key_is_blocked_again(kernel: Kernel) -> None:
    lease = await (await asking_agent(kernel)).acknowledged()
    approval = await blocked(lease, {"n": 1}, key="ask")
    before = await approval.trace()

    repeated = await lease.submit(TARGET, {"n": 1}, key="ask")

    assert accepted(repeated) == approval.decision
    assert repeated.headers["Idempotent-Replayed"] == "true"
    envelope(await lease.submit(TARGET, {"n": 2}, key="ask"), 409, "conflict")
    assert await approval.trace() == before


async def test_k95_while_blocked_new_steps_are_refused_and_leave_no_trace(kernel: Kernel) -> None:
    lease = await (await asking_agent(kernel)).acknowledged()
    done = await lease.done("before", {"n": 1}, result="first")
    approval = await blocked(lease, {"n": 1})
    before = await approval.trace()

    for decision in (
        await lease.decide(TARGET, {"n": 1}),
        await lease.decide("other", {"n": 1}),
        await lease.decide("before", {"n": 1}),
        await lease.decide("keyed", key="later"),
        await lease.decide("now", kind="local"),
    ):
        assert decision == {"decision": "execution_blocked", "resources": []}

    assert await approval.trace() == before
    accepted(await approval.grant(), 204)
    resumed = await approval.next_lease()
    assert (await resumed.decide("before", {"n": 1}))["step_id"] == done
    # The refusal bound no key, and the counter stood still.
    assert (await resumed.decide("keyed", key="later"))["decision"] == "proceed"
    assert (await resumed.decide(TARGET, {"n": 1}))["step_id"] == approval.step_id


# ---------------------------------------------------------------- decided


async def test_k96_a_grant_resumes_by_a_new_dispatch_and_the_step_proceeds(kernel: Kernel) -> None:
    lease = await (await asking_agent(kernel)).acknowledged()
    earlier = await lease.done("earlier", {"n": 1}, result={"kept": 1.0})
    approval = await blocked(lease)
    before = await count_of(approval)

    accepted(await approval.grant(), 204)

    resumed = await approval.next_lease()
    replay = await resumed.decide("earlier", {"n": 1})
    assert (replay["decision"], replay["step_id"], replay["result"]) == ("replay", earlier, {"kept": 1.0})
    granted = await resumed.decide(TARGET)
    assert (granted["decision"], granted["step_id"]) == ("proceed", approval.step_id)
    events = [each for each in await events_after(approval, before) if each["type"] != "dispatch.acked"]
    assert in_short(events, "status", "rule_id", "step_id") == [
        ("approval.granted", "granted", None, approval.step_id),
        ("step.allowed", None, None, approval.step_id),
        ("execution.resumed", "running", None, None),
        ("dispatch.queued", "pending", None, None),
        ("step.executing", None, None, approval.step_id),
    ]
    assert events[3]["payload"]["dispatch_id"] == resumed.dispatch_id
    assert accepted(await resumed.complete(approval.step_id, "sent")) == {"decision": "recorded"}
    accepted(await resumed.complete_execution("done"), 204)


@pytest.mark.parametrize("idempotency", ["safe_to_retry", "at_most_once"])
async def test_k96_a_granted_step_proceeds_in_either_mode(kernel: Kernel, idempotency: str) -> None:
    lease = await (await asking_agent(kernel)).acknowledged()
    approval = await blocked(lease, idempotency=idempotency)
    accepted(await approval.grant(), 204)

    decision = await (await approval.next_lease()).decide(TARGET, idempotency=idempotency)

    assert (decision["decision"], decision["step_id"]) == ("proceed", approval.step_id)


@side_by_side
async def test_k96_a_crash_after_the_grant_follows_the_rule_of_orphans(kernel: Kernel) -> None:
    agent = await asking_agent(kernel)

    async def crashed(idempotency: str) -> tuple[Approval, dict[str, Any]]:
        approval = await blocked(await agent.acknowledged(), idempotency=idempotency)
        accepted(await approval.grant(), 204)
        resumed = await approval.next_lease()
        assert await resumed.proceed(TARGET, idempotency=idempotency) == approval.step_id
        number = len(agent.endpoint.of(approval.execution_id)) + 1
        again = await agent.lease(approval.execution_id, number=number, deadline_seconds=LEASE_SECONDS + 8)
        assert (again.dispatch_id, again.attempt) == (resumed.dispatch_id, 2)
        return approval, await again.decide(TARGET, idempotency=idempotency)

    (safe, again), (once, indeterminate) = await asyncio.gather(crashed("safe_to_retry"), crashed("at_most_once"))

    assert (again["decision"], again["step_id"]) == ("proceed", safe.step_id)
    assert (indeterminate["decision"], indeterminate["step_id"]) == ("replay", once.step_id)
    assert indeterminate["error"]["reason"] == "indeterminate"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"rationale": "not on a Friday, é"}, "not on a Friday, é"),
        ({"rationale": ""}, "approval_denied"),
        ({}, "approval_denied"),
        (b"", "approval_denied"),
    ],
)
async def test_k97_a_denial_is_the_steps_answer_from_then_on(kernel: Kernel, body: Any, reason: str) -> None:
    approval = await asked(kernel)
    before = await count_of(approval)

    accepted(await approval.deny(body), 204)

    resumed = await approval.next_lease()
    expected = {"decision": "denied", "step_id": approval.step_id, "reason": reason, "rule_id": RULE, "resources": []}
    assert await resumed.decide(TARGET) == expected
    events = (await events_after(approval, before))[:4]
    assert in_short(events, "status", "error") == [
        ("approval.denied", "denied", None),
        ("step.denied", None, {"reason": reason}),
        ("execution.resumed", "running", None),
        ("dispatch.queued", "pending", None),
    ]
    step = await kernel.step(approval.execution_id, approval.step_id)
    assert (step["status"], step["error"]["reason"]) == ("denied", reason)
    assert step["completed_at"]
    assert (await approval.read())["status"] == "denied"
    # The same step never asks again; the next use of the call is another one.
    listed = accepted(await kernel.get("/v0/approvals", execution_id=approval.execution_id, status="all"))
    assert [each["id"] for each in listed] == [approval.id]
    assert (await blocked(resumed)).step_id != approval.step_id


@pytest.mark.alone
async def test_k98_what_nobody_decides_expires_within_a_second_and_the_execution_goes_on(kernel: Kernel) -> None:
    lease = await (await asking_agent(kernel, timeout="1s")).acknowledged()
    approval = await blocked(lease)
    before = await count_of(approval)

    resumed = await approval.next_lease()

    decision = await resumed.decide(TARGET)
    assert (decision["decision"], decision["reason"]) == ("denied", "approval_timeout")
    shown = await approval.read()
    assert (shown["status"], shown["rationale"], shown["decided_by"]) == ("expired", "timeout", "")
    assert 0 <= seconds_between(shown["timeout_at"], shown["decided_at"]) <= EXPIRY_SECONDS_MAX
    events = (await events_after(approval, before))[:4]
    assert in_short(events, "status", "rationale", "error") == [
        ("approval.expired", "expired", "timeout", None),
        ("step.denied", None, None, {"reason": "approval_timeout"}),
        ("execution.resumed", "running", None, None),
        ("dispatch.queued", "pending", None, None),
    ]
    assert envelope(await approval.grant(), 409, "conflict")["details"]["status"] == "expired"


# ---------------------------------------------------------------- the end while blocked


async def test_k34_a_cancel_while_blocked_denies_the_step_and_nothing_more_is_sent(kernel: Kernel) -> None:
    approval = await asked(kernel)
    before = await count_of(approval)

    accepted(await kernel.cancel(approval.execution_id), 204)

    assert in_short(await events_after(approval, before), "reason", "rationale", "error") == [
        ("execution.cancelled", "client_cancelled", None, None),
        ("approval.expired", None, "execution_cancelled", None),
        ("step.denied", None, None, {"reason": "execution_cancelled"}),
    ]
    assert (await approval.read())["status"] == "expired"
    assert envelope(await approval.grant(), 409, "conflict")["details"]["status"] == "expired"
    await assert_quiet(approval, deliveries=1, seconds=QUIET_SECONDS)


async def test_k36_a_completion_while_blocked_closes_the_approval_and_the_open_steps(kernel: Kernel) -> None:
    lease = await (await asking_agent(kernel)).acknowledged()
    executing = await lease.proceed("parallel")
    approval = await blocked(lease)
    before = await count_of(approval)

    accepted(await lease.complete_execution({"answer": 1}), 204)

    events = await events_after(approval, before)
    assert in_short(events, "step_id", "rationale", "error") == [
        ("execution.completed", None, None, None),
        ("approval.expired", approval.step_id, "execution_completed", None),
        ("step.denied", approval.step_id, None, {"reason": "execution_completed"}),
        ("step.cancelled", executing, None, {"reason": "execution_completed"}),
    ]
    assert events[0]["payload"]["output"] == {"answer": 1}
    assert (await kernel.execution(lease.execution_id))["status"] == "completed"


async def test_k59_a_step_that_waits_or_was_only_allowed_cannot_be_completed(kernel: Kernel) -> None:
    approval = await asked(kernel)

    await assert_not_completed(approval, approval.lease)
    accepted(await approval.grant(), 204)
    resumed = await approval.next_lease()
    await kernel.wait_for_event(approval.execution_id, "dispatch.acked", count=2)

    await assert_not_completed(approval, resumed)


async def assert_not_completed(approval: Approval, lease: Lease) -> None:
    before = await approval.trace()
    settled = [{"step_id": approval.step_id, "result": 1}]
    for answer in (
        await lease.complete(approval.step_id, 1),
        await lease.fail(approval.step_id, "no"),
        await lease.submit("other", settle=settled),
        await lease.complete_execution(settle=settled),
        await lease.fail_execution("no", settle=settled),
    ):
        envelope(answer, 409, "conflict")
    assert await approval.trace() == before


# ---------------------------------------------------------------- leases and what runs beside


@side_by_side
async def test_k65_an_approval_that_outlasts_the_lease_brings_no_redelivery(kernel: Kernel) -> None:
    approval = await asked(kernel)

    await assert_quiet(approval, deliveries=1, seconds=LEASE_SECONDS + REDELIVERY_SECONDS_MAX)

    accepted(await approval.lease.heartbeat(), 204)
    accepted(await approval.grant(), 204)
    resumed = await approval.next_lease()
    accepted(await resumed.heartbeat(), 204)
    envelope(await approval.lease.heartbeat(), 409, "lease_superseded")


async def test_k66_a_parallel_tool_records_its_outcome_after_the_block(kernel: Kernel) -> None:
    lease = await (await asking_agent(kernel)).acknowledged()
    parallel = await lease.proceed("parallel")
    approval = await blocked(lease)

    recorded = await lease.complete(parallel, "kept")

    assert accepted(recorded) == {"decision": "recorded"}
    accepted(await approval.grant(), 204)
    resumed = await approval.next_lease()
    assert (await resumed.decide("parallel"))["result"] == "kept"
    envelope(await lease.complete(parallel, "again"), 409, "lease_superseded")
    envelope(await lease.submit("late"), 409, "lease_superseded")


async def test_k66_a_step_that_must_not_run_twice_holds_the_dispatch_back_until_it_ends(kernel: Kernel) -> None:
    lease = await (await asking_agent(kernel)).acknowledged()
    once = await lease.proceed("once", idempotency="at_most_once")
    approval = await blocked(lease)
    accepted(await approval.grant(), 204)
    await assert_quiet(approval, deliveries=1, seconds=QUIET_SECONDS)

    recorded = await lease.complete(once, "kept")

    assert accepted(recorded) == {"decision": "recorded"}
    resumed = await approval.next_lease()
    assert (await resumed.decide("once", idempotency="at_most_once"))["result"] == "kept"


@side_by_side
async def test_k66_a_step_that_never_ends_holds_the_dispatch_back_until_its_lease_ends(kernel: Kernel) -> None:
    lease = await (await asking_agent(kernel)).acknowledged()
    once = await lease.proceed("once", idempotency="at_most_once")
    submitted_at = time.monotonic()
    approval = await blocked(lease)
    accepted(await approval.grant(), 204)

    resumed = await approval.next_lease(deadline_seconds=LEASE_SECONDS + 8)

    waited = time.monotonic() - submitted_at
    assert LEASE_SECONDS - 0.5 <= waited <= LEASE_SECONDS + 2 * REDELIVERY_SECONDS_MAX
    orphan = await resumed.decide("once", idempotency="at_most_once")
    assert (orphan["decision"], orphan["step_id"]) == ("replay", once)
    assert orphan["error"]["reason"] == "indeterminate"


async def assert_quiet(approval: Approval, *, deliveries: int, seconds: float) -> None:
    """No webhook beyond these arrives for so long."""
    ends_at = time.monotonic() + seconds
    endpoint = approval.lease.agent.endpoint

    def is_over() -> bool:
        assert len(endpoint.of(approval.execution_id)) == deliveries
        return time.monotonic() >= ends_at

    await wait_until_async(is_over, "the quiet to have lasted", deadline_seconds=seconds + 5)
