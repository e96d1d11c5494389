"""K99 to K102: who may decide, under whose name, how often, and the lists of what is to be decided."""

import asyncio
from typing import Any

import pytest

from tests.conformance.harness.answers import accepted, details, envelope, null_members, path_of
from tests.conformance.harness.approvals import (
    TARGET,
    WINNER,
    Approval,
    asked,
    asking_agent,
    blocked,
    bundle_of,
    principal,
)
from tests.conformance.harness.calls import NEXT_CURSOR, REPLAYED
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.routes import UNKNOWN_ID
from tests.conformance.harness.stacks import Stacks

VERBS = ("grant", "deny")
STATUS = {"grant": "granted", "deny": "denied"}


# ---------------------------------------------------------------- who


@pytest.mark.parametrize("verb", VERBS)
async def test_k99_a_listed_approver_decides_and_nobody_else(kernel: Kernel, verb: str) -> None:
    name, boss = await principal(kernel, "approvals:decide")
    _, other = await principal(kernel, "approvals:decide")
    _, shouting = await principal(kernel, "approvals:decide", name=name.upper())
    approval = await asked(kernel, approvers=["deputy", name])
    before = await approval.trace()

    for refused in (other, shouting, kernel):
        envelope(await approval.decide(verb, by=refused), 403, "forbidden")
    assert await approval.trace() == before

    accepted(await approval.decide(verb, by=boss), 204)
    shown = await approval.read()
    assert (shown["status"], shown["decided_by"], shown["asserted_by"]) == (STATUS[verb], name, "")


async def test_k99_an_empty_list_lets_anyone_decide(kernel: Kernel) -> None:
    name, anyone = await principal(kernel, "approvals:decide")
    approval = await asked(kernel)
    assert (await approval.read())["approvers"] == []

    accepted(await approval.grant(by=anyone), 204)

    assert (await approval.read())["decided_by"] == name


@pytest.mark.parametrize("body", [{}, {"decided_by": "boss"}])
async def test_k99_who_created_the_execution_may_not_decide_where_the_rule_separates(kernel: Kernel, body: Any) -> None:
    _, other = await principal(kernel, "approvals:decide")
    approval = await asked(kernel, separate_requester=True)
    before = await approval.trace()

    for verb in VERBS:
        envelope(await approval.decide(verb, body), 403, "forbidden")

    assert await approval.trace() == before
    accepted(await approval.grant(by=other), 204)


async def test_k99_that_it_is_decided_is_told_before_that_one_may_not_decide(kernel: Kernel) -> None:
    name, boss = await principal(kernel, "approvals:decide")
    approval = await asked(kernel, approvers=[name])
    accepted(await approval.deny(by=boss), 204)
    shown = await approval.read()

    for verb in VERBS:
        assert details(await approval.decide(verb), 409, "conflict") == {each: shown[each] for each in WINNER}


async def test_k100_a_decider_in_the_body_counts_from_those_who_may_assert(kernel: Kernel) -> None:
    name, asserting = await principal(kernel, "approvals:decide", "approvals:assert")
    approval = await asked(kernel, approvers=["boss"])

    envelope(await approval.grant({"decided_by": "Boss"}, by=asserting), 403, "forbidden")
    accepted(await approval.grant({"decided_by": "boss", "rationale": "yes"}, by=asserting), 204)

    shown = await approval.read()
    assert (shown["decided_by"], shown["asserted_by"], shown["rationale"]) == ("boss", name, "yes")
    event = await kernel.wait_for_event(approval.execution_id, "approval.granted")
    assert (event["payload"]["decided_by"], event["payload"]["asserted_by"]) == ("boss", name)


async def test_k100_a_decider_in_the_body_is_ignored_from_all_others(kernel: Kernel) -> None:
    name, plain = await principal(kernel, "approvals:decide")
    approval = await asked(kernel)

    accepted(await approval.deny({"decided_by": "boss"}, by=plain), 204)

    shown = await approval.read()
    assert (shown["decided_by"], shown["asserted_by"]) == (name, "")
    payload = (await kernel.wait_for_event(approval.execution_id, "approval.denied"))["payload"]
    assert payload["decided_by"] == name
    assert "asserted_by" not in payload


async def test_k100_in_dev_a_decider_in_the_body_counts(stacks: Stacks) -> None:
    async with connected(stacks.get(mode="dev").url, "ignored") as kernel:
        approval = await asked(kernel, approvers=["boss"])

        accepted(await approval.grant({"decided_by": "boss"}), 204)

        shown = await approval.read()
        assert (shown["decided_by"], shown["asserted_by"]) == ("boss", "dev")


@pytest.mark.parametrize("scheme", ["v1", "sha256"])
async def test_k100_the_signature_of_an_agent_decides_nothing(kernel: Kernel, scheme: str) -> None:
    approval = await asked(kernel)
    before = await approval.trace()
    agent = approval.lease.agent

    for verb in VERBS:
        for body in (b"", b"{}"):
            signed = agent.call("POST", f"{approval.path}/{verb}", body, scheme=scheme)
            envelope(await kernel.send(signed), 401, "unauthorized")
    envelope(await agent.request("GET", approval.path), 401, "unauthorized")

    assert await approval.trace() == before


async def test_k100_a_key_without_the_scope_reads_or_decides_as_its_scopes_say(kernel: Kernel) -> None:
    _, reader = await principal(kernel, "executions:read")
    _, decider = await principal(kernel, "approvals:decide")
    _, neither = await principal(kernel, "executions:write")
    approval = await asked(kernel)

    for access in (reader, decider):
        assert accepted(await access.get(approval.path))["id"] == approval.id
    for target in (approval.path, "/v0/approvals"):
        envelope(await neither.get(target), 403, "forbidden")
    for access in (reader, neither):
        for verb in VERBS:
            envelope(await approval.decide(verb, by=access), 403, "forbidden")
            # Before the body is looked at, and before whose the approval is.
            envelope(await access.post(f"/v0/approvals/{UNKNOWN_ID}/{verb}", b"["), 403, "forbidden")
    assert (await approval.read())["status"] == "pending"


# ---------------------------------------------------------------- once


async def test_k101_of_twenty_decisions_at_once_one_wins_and_the_others_learn_which(kernel: Kernel) -> None:
    _, asserting = await principal(kernel, "approvals:decide", "approvals:assert")
    approval = await asked(kernel)
    verbs = VERBS * 10
    bodies = [{"decided_by": f"person-{number}"} for number in range(len(verbs))]

    answers = await asyncio.gather(
        *(
            approval.decide(verb, body, key=f"key-{number}", by=asserting)
            for number, (verb, body) in enumerate(zip(verbs, bodies, strict=True))
        )
    )

    winners = [number for number, answer in enumerate(answers) if answer.status_code == 204]
    assert len(winners) == 1
    won = winners[0]
    shown = await approval.read()
    assert (shown["status"], shown["decided_by"]) == (STATUS[verbs[won]], f"person-{won}")
    for number, answer in enumerate(answers):
        if number != won:
            assert details(answer, 409, "conflict") == {each: shown[each] for each in WINNER}
    events = await kernel.events(approval.execution_id)
    ends = [event["type"] for event in events if event["type"].startswith("approval.")]
    assert ends == ["approval.requested", f"approval.{shown['status']}"]

    repeated = await approval.decide(verbs[won], bodies[won], key=f"key-{won}", by=asserting)
    accepted(repeated, 204)
    assert repeated.headers[REPLAYED] == "true"
    envelope(await approval.decide(verbs[won], {"decided_by": "x"}, key=f"key-{won}", by=asserting), 409, "conflict")
    # A refusal binds no key.
    lost = (won + 1) % len(verbs)
    again = await approval.decide(verbs[lost], bodies[lost], key=f"key-{lost}", by=asserting)
    assert details(again, 409, "conflict") == {each: shown[each] for each in WINNER}


@pytest.mark.parametrize("verb", VERBS)
async def test_k101_an_unknown_approval_is_404_and_a_malformed_one_400(kernel: Kernel, verb: str) -> None:
    for target in (f"/v0/approvals/{UNKNOWN_ID}", f"/v0/approvals/{UNKNOWN_ID.upper()}"):
        for answer in (await kernel.get(target), await kernel.post(f"{target}/{verb}")):
            assert answer.content == b'{"code":"not_found","message":"approval not found"}'
            envelope(answer, 404, "not_found")
    for target in ("/v0/approvals/x", f"/v0/approvals/{UNKNOWN_ID.replace('-', '')}"):
        for answer in (await kernel.get(target), await kernel.post(f"{target}/{verb}")):
            assert path_of(answer) == "approval_id"
    for body in (b"[]", b"{", {"rationale": 1}, {"decided_by": None}):
        envelope(await kernel.post(f"/v0/approvals/{UNKNOWN_ID}/{verb}", body), 400, "validation_error")


# ---------------------------------------------------------------- lists


async def listed(kernel: Kernel, **query: object) -> list[str]:
    found = accepted(await kernel.get("/v0/approvals", **query))
    assert list(null_members(found)) == []
    return [each["id"] for each in found]


async def of_every_status(kernel: Kernel) -> dict[str, Approval]:
    """Four executions of one agent, whose approvals have come to every end."""
    agent = await asking_agent(kernel)
    approvals = {
        status: await blocked(await agent.acknowledged()) for status in ("pending", "granted", "denied", "expired")
    }
    accepted(await approvals["granted"].grant(), 204)
    accepted(await approvals["denied"].deny(), 204)
    accepted(await kernel.cancel(approvals["expired"].execution_id), 204)
    return approvals


async def test_k102_lists_are_filtered_by_status_agent_and_execution(kernel: Kernel) -> None:
    mine = await of_every_status(kernel)
    other = await asked(kernel)
    agent_id = mine["pending"].lease.agent.id

    for status, approval in mine.items():
        assert await listed(kernel, agent_id=agent_id, status=status) == [approval.id]
        assert await listed(kernel, execution_id=approval.execution_id, status=status) == [approval.id]
        assert await listed(kernel, execution_id=approval.execution_id.upper(), status="all") == [approval.id]
    in_order = sorted(approval.id for approval in mine.values())
    assert await listed(kernel, agent_id=agent_id, status="all") == in_order
    assert in_order == [mine[status].id for status in ("pending", "granted", "denied", "expired")]
    for default in ({}, {"status": ""}, {"status": "pending", "execution_id": ""}):
        assert await listed(kernel, agent_id=agent_id, **default) == [mine["pending"].id]
    assert {mine["pending"].id, other.id} <= set(await listed(kernel))
    assert await listed(kernel, agent_id=agent_id, execution_id=other.execution_id, status="all") == []
    assert await listed(kernel, execution_id=UNKNOWN_ID, status="all") == []
    assert await listed(kernel, agent_id="nobody") == []


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ({"status": "waiting"}, "status"),
        ({"status": "PENDING"}, "status"),
        ({"limit": 0}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"cursor": "x"}, "cursor"),
        ({"execution_id": "x"}, "execution_id"),
    ],
)
async def test_k102_an_unknown_status_or_a_malformed_query_is_400(
    kernel: Kernel, query: dict[str, object], path: str
) -> None:
    assert path_of(await kernel.get("/v0/approvals", **query)) == path


async def test_k102_all_come_in_one_answer_and_with_a_limit_in_pages(kernel: Kernel) -> None:
    agent = await asking_agent(kernel)
    made = sorted([(await blocked(await agent.acknowledged())).id for _ in range(5)])

    whole = await kernel.get("/v0/approvals", agent_id=agent.id)
    assert [each["id"] for each in accepted(whole)] == made
    assert NEXT_CURSOR not in whole.headers

    shown: list[str] = []
    query: dict[str, object] = {"agent_id": agent.id, "limit": 2}
    lengths: list[int] = []
    while True:
        page = await kernel.get("/v0/approvals", **query)
        shown += [each["id"] for each in accepted(page)]
        lengths.append(len(accepted(page)))
        if NEXT_CURSOR not in page.headers:
            break
        query["cursor"] = page.headers[NEXT_CURSOR]
    assert (shown, lengths) == (made, [2, 2, 1])


async def test_k102_one_execution_may_ask_again_and_its_approvals_are_listed_by_creation(kernel: Kernel) -> None:
    first = await asked(kernel)
    accepted(await first.deny(), 204)
    second = await blocked(await first.next_lease(), {"n": 2})

    assert await listed(kernel, execution_id=first.execution_id, status="all") == [first.id, second.id]
    assert await listed(kernel, execution_id=first.execution_id) == [second.id]


async def test_k102_the_rule_of_the_time_of_asking_is_the_approvals(kernel: Kernel) -> None:
    approval = await asked(kernel, approvers=["nobody"], message="first")
    agent_id = approval.lease.agent.id

    accepted(await kernel.post(f"/v0/policies/{agent_id}", {"bundle": bundle_of(message="second")}), 204)

    shown = await approval.read()
    assert (shown["message"], shown["approvers"], shown["target"]) == ("first", ["nobody"], TARGET)
    envelope(await approval.grant(), 403, "forbidden")
