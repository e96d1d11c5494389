"""Cases P5 and P6: one decision on the log and one delivery that resumes, whoever dies meanwhile; and who may decide is
read from the credential alone.
"""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
import pytest_asyncio

from kernel.domain.identity import shard_of
from kernel.log.jetstream import JetStreamLog
from schemas.entries import ApprovalDecided, decode_entry
from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, details, envelope, path_of
from tests.conformance.harness.approvals import TARGET, WINNER, Approval, asked, asking_agent, blocked, principal
from tests.conformance.harness.kernel import Kernel, connected
from tests.scenario.test_guarantees import SHARDS
from tests.support.scripted_agent import pass_time
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

VERBS = ("grant", "deny")
RACES = 10
TIMEOUT_SECONDS = 2.0
AROUND_SECONDS = (-0.05, -0.01, -0.001, 0.0, 0.001, 0.01, 0.05)
QUIET_SECONDS = 1.0
"""Work that is due leaves within tens of milliseconds."""


@pytest_asyncio.fixture
async def doors(apart: Stack) -> AsyncIterator[list[Kernel]]:
    """Access through each of two doors that share nothing but the servers."""
    async with AsyncExitStack() as closing:
        yield [await closing.enter_async_context(connected(url, apart.api_key)) for url in apart.urls]


def resumes(approval: Approval) -> list[str]:
    """The dispatch ids that came to the agent after the one that asked."""
    deliveries = approval.lease.agent.endpoint.of(approval.execution_id)
    return [each.dispatch_id for each in deliveries if each.dispatch_id != approval.lease.dispatch_id]


async def ends_of(approval: Approval) -> list[str]:
    """The events that ended it."""
    types = await approval.kernel.event_types(approval.execution_id)
    return [each for each in types if each.startswith("approval.") and each != "approval.requested"]


async def resumed_once(approval: Approval) -> Lease:
    """The lease of the one dispatch that followed."""
    lease = await approval.next_lease()
    await approval.kernel.wait_for_event(approval.execution_id, "dispatch.acked", count=2)
    assert resumes(approval) == [lease.dispatch_id]
    assert (await approval.kernel.event_types(approval.execution_id)).count("execution.resumed") == 1
    return lease


# ---------------------------------------------------------------- P5


async def test_p5_of_two_decisions_through_two_doors_one_wins_and_the_other_learns_which(doors: list[Kernel]) -> None:
    here, there = doors
    (first, one), (second, other) = [await principal(each, "approvals:decide") for each in doors]
    # A key made at one door is known at the other within a second, and each is used where it was made.
    names = {first: one, second: other}
    for verbs in itertools.islice(itertools.cycle(itertools.product(VERBS, VERBS)), RACES):
        approval = await asked(here)

        answers = await asyncio.gather(
            approval.decide(verbs[0], by=one),
            approval.decide(verbs[1], by=other),
        )

        shown = await approval.read()
        assert sorted(answer.status_code for answer in answers) == [204, 409]
        won = next(at for at, answer in enumerate(answers) if answer.status_code == 204)
        assert shown["decided_by"] == list(names)[won]
        assert shown["status"] == ("granted" if verbs[won] == "grant" else "denied")
        assert details(answers[1 - won], 409, "conflict") == {each: shown[each] for each in WINNER}
        assert await ends_of(approval) == [f"approval.{shown['status']}"]
        lease = await resumed_once(approval)
        wanted = "proceed" if shown["status"] == "granted" else "denied"
        assert (await lease.decide(TARGET))["decision"] == wanted
        assert (await there.execution(approval.execution_id))["status"] == "running"


async def test_p5_a_decision_around_the_expiry_ends_it_once_and_the_log_says_by_what(doors: list[Kernel]) -> None:
    """One clock ends it: that of the view. A grant that comes before the expiry in the log wins, however late it is."""
    here, there = doors
    agent = await asking_agent(here, timeout=f"{TIMEOUT_SECONDS}s")
    approvals = [await blocked(await agent.acknowledged()) for _ in AROUND_SECONDS]

    async def decided(approval: Approval, seconds: float, by: Kernel) -> httpx.Response:
        ends_at = datetime.fromisoformat((await approval.read())["timeout_at"])
        await pass_time((ends_at - datetime.now(ends_at.tzinfo) + timedelta(seconds=seconds)).total_seconds())
        return await approval.grant(by=by)

    answers = await asyncio.gather(
        *(
            decided(approval, seconds, by)
            for approval, seconds, by in zip(approvals, AROUND_SECONDS, itertools.cycle((here, there)), strict=False)
        )
    )

    for approval, answer in zip(approvals, answers, strict=True):
        lease = await resumed_once(approval)
        shown = await approval.read()
        status = "granted" if answer.status_code == 204 else "expired"
        assert shown["status"] == status
        assert await ends_of(approval) == [f"approval.{status}"]
        decision = await lease.decide(TARGET)
        assert decision["decision"] == ("proceed" if status == "granted" else "denied")
        if status == "expired":
            assert details(answer, 409, "conflict")["status"] == "expired"
            assert decision["reason"] == "approval_timeout"


@pytest.mark.parametrize("away", ["dispatcher", "projector", "both"])
async def test_p5_a_decision_that_nobody_could_act_on_is_seen_and_acted_on_once(
    apart: Stack, doors: list[Kernel], away: str
) -> None:
    """What resumes an execution is a duty of the record, not a process that waits for the decision."""
    here, there = doors
    approval = await asked(here)
    killed = ["dispatcher", "projector"] if away == "both" else [away]
    for name in killed:
        apart.kill(name)
    try:
        granting = asyncio.create_task(approval.grant())
        if away == "dispatcher":
            accepted(await granting, 204)
            # It is decided and visibly not resumed yet.
            assert (await approval.read())["status"] == "granted"
            assert (await there.execution(approval.execution_id))["status"] == "running"
            assert (await here.event_types(approval.execution_id))[-1] == "dispatch.queued"
            assert resumes(approval) == []
        else:
            await pass_time(QUIET_SECONDS)
            assert not granting.done()
    finally:
        for name in killed:
            await asyncio.to_thread(apart.restart, name)

    accepted(await granting, 204)
    lease = await resumed_once(approval)
    assert (await lease.decide(TARGET))["decision"] == "proceed"
    await pass_time(QUIET_SECONDS)
    assert resumes(approval) == [lease.dispatch_id]


@pytest.mark.parametrize("verb", VERBS)
async def test_p5_a_decision_after_a_cancel_is_told_so_and_resumes_nothing(doors: list[Kernel], verb: str) -> None:
    here, there = doors
    approval = await asked(here)
    accepted(await there.cancel(approval.execution_id), 204)
    before = await approval.trace()

    refused = await approval.decide(verb)

    assert details(refused, 409, "conflict") == {each: before[0][each] for each in WINNER if each in before[0]}
    assert before[0]["status"] == "expired"
    await pass_time(QUIET_SECONDS)
    assert await approval.trace() == before
    assert resumes(approval) == []


# ---------------------------------------------------------------- P6


async def test_p6_an_agent_decides_nothing_by_whatever_it_holds(kernel: Kernel) -> None:
    """Its signature is no credential there, and the key of a worker has no scope for it."""
    approval = await asked(kernel)
    before = await approval.trace()
    agent = approval.lease.agent
    _, worker = await principal(kernel, "executions:read", "executions:write", "agents:admin", "steps:delegate")

    for verb in VERBS:
        for body in ({}, {"approved_by": "ceo@corp.example"}, {"decided_by": "boss"}):
            envelope(await agent.request("POST", f"{approval.path}/{verb}", body), 401, "unauthorized")
            signed = agent.call("POST", f"{approval.path}/{verb}", body)
            envelope(await kernel.send(signed.with_bearer(worker.api_key)), 403, "forbidden")
            envelope(await approval.decide(verb, body, by=worker), 403, "forbidden")
    assert await approval.trace() == before


@pytest.mark.parametrize(
    "body",
    [
        {"approved_by": "ceo@corp.example"},
        {"decided_by": "ceo@corp.example"},
        {"decided_by": "ceo@corp.example", "asserted_by": "ceo@corp.example", "principal": "ceo@corp.example"},
    ],
)
async def test_p6_the_decider_is_the_credentials_and_never_the_bodys(
    stack: Stack, kernel: Kernel, body: dict[str, str]
) -> None:
    """Dropped: that the record holds the id of the key. Section 9 makes the decider a principal, and that is what the
    approval, its event and its entry in the log name; the record of keys leads from there to the keys of that name.
    """
    name, boss = await principal(kernel, "approvals:decide")
    approval = await asked(kernel)

    accepted(await approval.grant(body, by=boss), 204)

    shown = await approval.read()
    assert (shown["decided_by"], shown["asserted_by"]) == (name, "")
    entry = await _decision_in_the_log(stack, approval)
    assert (entry.principal, entry.decided_by, entry.asserted_by) == (name, name, "")
    granted = await kernel.wait_for_event(approval.execution_id, "approval.granted")
    assert granted["payload"]["decided_by"] == name
    keys = accepted(await kernel.get("/v0/keys"))
    assert [key["scopes"] for key in keys if key["name"] == name] == [["approvals:decide"]]


async def test_p6_who_names_another_is_on_record_beside_the_name(stack: Stack, kernel: Kernel) -> None:
    name, asserting = await principal(kernel, "approvals:decide", "approvals:assert")
    approval = await asked(kernel)

    accepted(await approval.grant({"decided_by": "ann"}, by=asserting), 204)

    shown = await approval.read()
    assert (shown["decided_by"], shown["asserted_by"]) == ("ann", name)
    entry = await _decision_in_the_log(stack, approval)
    assert (entry.principal, entry.decided_by, entry.asserted_by) == (name, "ann", name)


async def test_p6_no_name_that_looks_like_an_approvers_is_one(kernel: Kernel) -> None:
    name = f"alice-{secrets.token_hex(4)}"
    alike = [
        name.upper(),
        name.replace("a", "\u0430", 1),
        name.replace("i", "\u0456", 1),
        name.replace("l", "I", 1),
    ]
    # What nobody could see is no part of a name at all.
    unseen = [name + "\u200b", name + " ", " " + name]
    holders = [(await principal(kernel, "approvals:decide", name=each))[1] for each in alike]
    for each in unseen:
        refused = await kernel.post("/v0/keys", {"name": each, "scopes": ["approvals:decide"]})
        assert path_of(refused) == "name", each
    _, asserting = await principal(kernel, "approvals:decide", "approvals:assert")
    approval = await asked(kernel, approvers=[name])
    before = await approval.trace()

    for holder in holders:
        envelope(await approval.grant(by=holder), 403, "forbidden")
    for each in alike + unseen:
        envelope(await approval.grant({"decided_by": each}, by=asserting), 403, "forbidden")

    assert await approval.trace() == before


async def test_p6_neither_another_tenants_approver_nor_one_whose_key_was_revoked_decides(
    stack: Stack, kernel: Kernel
) -> None:
    """The approver of the other tenant has the very name that the rule lists."""
    operator = kernel.holding(stack.operator_key)
    name = f"boss-{secrets.token_hex(4)}"
    tenant = f"tenant-{secrets.token_hex(4)}"
    accepted(await operator.post("/v0/tenants", {"id": tenant}), 201)
    key = {"name": name, "scopes": ["approvals:decide"]}
    foreign, own = [
        accepted(await operator.post("/v0/keys", key | {"tenant": each}), 201) for each in (tenant, "default")
    ]
    approval = await asked(kernel, approvers=[name])
    before = await approval.trace()

    envelope(await approval.grant(by=kernel.holding(foreign["key"])), 404, "not_found")
    accepted(await operator.request("DELETE", f"/v0/keys/{own['id']}"), 204)
    envelope(await approval.grant(by=kernel.holding(own["key"])), 401, "unauthorized")

    assert await approval.trace() == before


@pytest.mark.parametrize("separate", [True, False])
async def test_p6_whether_the_requester_may_approve_is_the_rules_to_say(kernel: Kernel, separate: bool) -> None:
    """Dropped: that it is refused unless policy allows it. By section 8 `separate_requester` is false unless set."""
    _, requester = await principal(kernel, "executions:write", "executions:read", "approvals:decide")
    agent = await asking_agent(kernel, **({"separate_requester": True} if separate else {}))
    created = accepted(await requester.create(agent.id), 201)
    approval = await blocked(await agent.lease(created["id"]))

    answer: Any = await approval.grant(by=requester)

    assert answer.status_code == (403 if separate else 204)
    assert (await approval.read())["status"] == ("pending" if separate else "granted")


async def _decision_in_the_log(stack: Stack, approval: Approval) -> ApprovalDecided:
    log = await JetStreamLog.connect(stack.nats.url, shards=SHARDS, name="test")
    try:
        shard = shard_of(approval.execution_id, SHARDS)

        async def found() -> ApprovalDecided | None:
            for seq in range((await log.state(shard)).last_seq, 0, -1):
                message = await log.get(shard, seq)
                entry = None if message is None else decode_entry(message.payload)
                if isinstance(entry, ApprovalDecided) and entry.approval_id == approval.id:
                    return entry
            return None

        entry = await wait_until_async(found, "the decision in the log")
        assert entry is not None
        return entry
    finally:
        await log.close()
