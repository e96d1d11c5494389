"""Approvals through the door: granted, denied, refused, and what the execution does then."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from nats.aio.client import Client
from redis.asyncio import Redis

from schemas.entries import ApprovalTerms
from tests.support.approvals import MINUTE, RULE, TARGET, approval, ask, events_since
from tests.support.door import SECRET, Rig, Run, rig_in_memory, rig_on_servers
from tests.support.view_dump import view_dump
from tests.support.wait import wait_until_async

UNKNOWN = "0199aaaa-0000-7000-8000-0000000000ff"


@pytest_asyncio.fixture
async def rig(nats_url: str, redis_url: str, fresh_nats: Client, fresh_redis: Redis) -> AsyncIterator[Rig]:
    async with rig_on_servers(nats_url, redis_url) as rig:
        await rig.register()
        yield rig


async def resumed(rig: Rig, run: Run) -> Run:
    """The run of the dispatch that a decision made."""
    return Run(rig, run.execution_id, await rig.claim(run.execution_id))


async def test_a_grant_resumes_the_execution_and_the_step_proceeds(rig: Rig) -> None:
    # Given
    run = await rig.started()
    step_id = await run.proceed("before", {"n": 1})
    await run.complete_step(step_id, {"done": True})
    asked = await ask(run, {"amount": 1})
    before = len(await rig.events(run.execution_id))
    # When
    response = await rig.call("POST", f"{asked.path}/grant", json={"rationale": "go on"})
    # Then
    assert (response.status_code, response.content) == (204, b"")
    shown = await approval(rig, asked)
    assert (shown["status"], shown["decided_by"], shown["asserted_by"], shown["rationale"]) == (
        "granted",
        "api",
        "",
        "go on",
    )
    assert shown["decided_at"] > shown["created_at"]
    ids = {"approval_id": asked.approval_id, "step_id": asked.step_id, "execution_id": run.execution_id}
    granted, allowed, went_on, queued = await events_since(rig, run, before)
    assert granted == ("approval.granted", ids | {"status": "granted", "decided_by": "api", "rationale": "go on"})
    assert allowed == ("step.allowed", {"step_id": asked.step_id, "step_type": "tool_call", "target": TARGET})
    assert went_on == ("execution.resumed", {"execution_id": run.execution_id, "status": "running"})
    assert (queued[0], queued[1]["attempt"]) == ("dispatch.queued", 0)
    again = await resumed(rig, run)
    assert (again.lease.attempt, again.lease.dispatch_id) == (1, queued[1]["dispatch_id"])
    assert again.lease.dispatch_id != run.lease.dispatch_id
    assert (await again.submit("before", {"n": 1})).json()["result"] == {"done": True}
    assert await again.proceed(TARGET, {"amount": 1}) == asked.step_id
    assert (await run.heartbeat()).status_code == 409


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"rationale": "not on a Friday"}, "not on a Friday"),
        ({"rationale": ""}, "approval_denied"),
        (None, "approval_denied"),
    ],
)
async def test_a_denial_is_what_the_agent_is_told_from_then_on(rig: Rig, body: Any, reason: str) -> None:
    run = await rig.started()
    asked = await ask(run)

    response = await rig.call("POST", f"{asked.path}/deny", json=body)

    assert response.status_code == 204
    again = await resumed(rig, run)
    for _ in range(2):
        decision = (await again.submit(TARGET)).json()
        expected = {"decision": "denied", "step_id": asked.step_id, "reason": reason, "rule_id": RULE, "resources": []}
        assert decision == expected
        await rig.expire(again)
        again = await resumed(rig, run)
    assert (await approval(rig, asked))["status"] == "denied"
    assert len((await rig.call("GET", "/v0/approvals?status=all")).json()) == 1


async def test_the_second_decision_learns_of_the_first_whoever_makes_it(rig: Rig) -> None:
    run = await rig.started()
    asked = await ask(run, terms=ApprovalTerms(approvers=("boss",)))
    assert (await rig.call("POST", f"{asked.path}/deny", json={"decided_by": "boss"})).status_code == 204
    winner = await approval(rig, asked)
    before = await rig.events(run.execution_id)

    for verb in ("grant", "deny"):
        # The last of them could not have decided either.
        for body in ({"decided_by": "boss"}, {"decided_by": "nobody"}, None):
            response = await rig.call("POST", f"{asked.path}/{verb}", json=body)
            assert (response.status_code, response.json()["code"]) == (409, "conflict")
            assert response.json()["details"] == {name: winner[name] for name in ("status", "decided_by", "decided_at")}

    assert (winner["status"], winner["decided_by"], winner["asserted_by"]) == ("denied", "boss", "api")
    assert await rig.events(run.execution_id) == before


@pytest.mark.parametrize(
    ("terms", "named"),
    [
        (ApprovalTerms(approvers=("boss", "deputy")), ""),
        (ApprovalTerms(approvers=("boss", "deputy")), "Boss"),
        (ApprovalTerms(approvers=("boss", "deputy")), "boss "),
        (ApprovalTerms(separate_requester=True), ""),
        (ApprovalTerms(separate_requester=True), "boss"),
    ],
)
async def test_who_may_not_decide_is_refused_and_changes_nothing(rig: Rig, terms: ApprovalTerms, named: str) -> None:
    run = await rig.started()
    asked = await ask(run, terms=terms)
    before = await rig.events(run.execution_id), await approval(rig, asked)

    for verb in ("grant", "deny"):
        response = await rig.call("POST", f"{asked.path}/{verb}", json={"decided_by": named})
        assert (response.status_code, response.json()["code"]) == (403, "forbidden")

    assert (await rig.events(run.execution_id), await approval(rig, asked)) == before


async def test_in_dev_anybody_may_be_named_as_the_decider() -> None:
    async with rig_in_memory(mode="dev") as rig:
        await rig.register()
        asked = await ask(await rig.started(), terms=ApprovalTerms(approvers=("boss",)))

        response = await rig.client.post(f"{asked.path}/grant", json={"decided_by": "boss"})

        assert response.status_code == 204
        shown = await approval(rig, asked)
        assert (shown["decided_by"], shown["asserted_by"]) == ("boss", "dev")


async def test_an_agent_decides_nothing_and_nobody_does_without_a_key(rig: Rig) -> None:
    run = await rig.started()
    asked = await ask(run)

    for verb in ("grant", "deny"):
        for scheme in ("v1", "sha256"):
            signed = await run.send("POST", f"{asked.path}/{verb}", {}, scheme=scheme)
            assert (signed.status_code, signed.json()["code"]) == (401, "unauthorized")
        nobody = await rig.client.post(f"{asked.path}/{verb}", headers={"authorization": f"Bearer {SECRET}"})
        assert nobody.status_code == 401
    assert (await run.send("GET", asked.path)).status_code == 401

    assert (await approval(rig, asked))["status"] == "pending"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"rationale":1}', "rationale"),
        (b'{"rationale":null}', "rationale"),
        (b'{"decided_by":["boss"]}', "decided_by"),
        (b"[]", None),
        (b"{", None),
    ],
)
async def test_a_malformed_decision_is_refused_before_it_is_asked_whose_it_is(
    rig: Rig, body: bytes, path: str | None
) -> None:
    asked = await ask(await rig.started())
    for target in (asked.path, f"/v0/approvals/{UNKNOWN}"):
        response = await rig.call("POST", f"{target}/grant", content=body)
        assert (response.status_code, response.json()["code"]) == (400, "validation_error")
        assert response.json().get("details", {}).get("path") == path
    assert (await approval(rig, asked))["status"] == "pending"


async def test_a_decision_repeated_with_its_key_is_given_its_first_answer(rig: Rig) -> None:
    run = await rig.started()
    asked = await ask(run)
    key = {"idempotency-key": "decision"}
    first = await rig.call("POST", f"{asked.path}/grant", headers=key, json={"rationale": "a"})
    before = await rig.events(run.execution_id)

    repeated = await rig.call("POST", f"{asked.path}/grant", headers=key, json={"rationale": "a"})
    another_body = await rig.call("POST", f"{asked.path}/grant", headers=key, json={"rationale": "b"})
    another_way = await rig.call("POST", f"{asked.path}/deny", headers=key, json={"rationale": "a"})
    another_key = await rig.call("POST", f"{asked.path}/grant", headers={"idempotency-key": "x"})

    assert (first.status_code, "idempotent-replayed" in first.headers) == (204, False)
    assert (repeated.status_code, repeated.headers["idempotent-replayed"]) == (204, "true")
    for refused in (another_body, another_way):
        assert (refused.status_code, "details" in refused.json()) == (409, False)
    assert another_key.json()["details"]["status"] == "granted"
    assert await rig.events(run.execution_id) == before


async def test_of_twenty_decisions_at_once_one_wins_and_the_others_are_told_which(rig: Rig) -> None:
    run = await rig.started()
    asked = await ask(run)
    verbs = ["grant", "deny"] * 10

    responses = await asyncio.gather(
        *(
            rig.call("POST", f"{asked.path}/{verb}", json={"decided_by": f"boss-{number}"})
            for number, verb in enumerate(verbs)
        )
    )

    statuses = [response.status_code for response in responses]
    assert sorted(statuses) == [204] + [409] * 19
    winner = await approval(rig, asked)
    number = statuses.index(204)
    assert winner["status"] == {"grant": "granted", "deny": "denied"}[verbs[number]]
    assert winner["decided_by"] == f"boss-{number}"
    expected = {name: winner[name] for name in ("status", "decided_by", "decided_at")}
    assert [response.json()["details"] for response in responses if response.status_code == 409] == [expected] * 19
    ends = [each for each in await rig.event_types(run.execution_id) if each.startswith("approval.")]
    assert ends == ["approval.requested", f"approval.{winner['status']}"]


async def test_the_end_of_the_execution_expires_its_approval(rig: Rig) -> None:
    run = await rig.started()
    asked = await ask(run)
    before = len(await rig.events(run.execution_id))

    assert (await rig.call("POST", f"{run.path}/cancel")).status_code == 204

    types = [(kind, payload.get("rationale")) for kind, payload in await events_since(rig, run, before)]
    assert types == [("execution.cancelled", None), ("approval.expired", "execution_cancelled"), ("step.denied", None)]
    late = await rig.call("POST", f"{asked.path}/grant")
    assert (late.status_code, late.json()["details"]["status"]) == (409, "expired")
    assert late.json()["details"]["decided_by"] == ""


async def test_lists_and_decisions_outlive_the_loss_of_the_view(rig: Rig, redis_url: str, fresh_redis: Redis) -> None:
    decided_one, pending = [await ask(await rig.started(), terms=MINUTE) for _ in range(2)]
    assert (await rig.call("POST", f"{decided_one.path}/deny")).status_code == 204
    before = await asyncio.to_thread(view_dump, redis_url)
    assert any(":approvals:" in key for key in before)

    await fresh_redis.flushall()

    listed = await rig.call("GET", "/v0/approvals?status=all")
    assert {each["id"]: each["status"] for each in listed.json()} == {
        decided_one.approval_id: "denied",
        pending.approval_id: "pending",
    }
    assert (await rig.call("POST", f"{decided_one.path}/grant")).status_code == 409

    async def is_the_same() -> bool:
        after = await asyncio.to_thread(view_dump, redis_url)
        names = {key for key in before if ":approvals:" in key or key.endswith(":due")}
        return {key: after.get(key) for key in names} == {key: before[key] for key in names}

    await wait_until_async(is_the_same, "the lists to be as they were")
    assert (await rig.call("POST", f"{pending.path}/grant")).status_code == 204


async def test_a_rationale_that_the_log_does_not_take_is_too_large_whosever_the_approval_is() -> None:
    async with rig_in_memory(entry_bytes_max=4096) as rig:
        await rig.register()
        asked = await ask(await rig.started())

        for path in (asked.path, f"/v0/approvals/{UNKNOWN}"):
            response = await rig.call("POST", f"{path}/deny", json={"rationale": "x" * 4096})
            assert (response.status_code, response.json()["code"]) == (413, "payload_too_large")
