"""Approvals through the door: the block that asks, one approval, lists and their pages."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec import Raw
from nats.aio.client import Client
from redis.asyncio import Redis

from kernel.domain.identity import shard_of
from kernel.door.executions import limits_of
from schemas.entries import ApprovalTerms, DispatchClaimed, ExecutionCreated, Lease
from schemas.http import rfc3339
from schemas.ids import new_uuid7, uuid7_ms
from schemas.records import decode_header
from tests.support.approvals import (
    POLICY_VERSION,
    RULE,
    TARGET,
    Asked,
    approval,
    ask,
    asked_of,
    asking_entry,
    events_since,
)
from tests.support.door import Rig, rig_in_memory, rig_on_servers
from tests.support.wait import wait_until_async

UNKNOWN = "0199aaaa-0000-7000-8000-0000000000ff"
NOT_FOUND = b'{"code":"not_found","message":"approval not found"}'
MALFORMED = ("x", UNKNOWN.replace("-", ""), UNKNOWN + "0", "%00")


@pytest_asyncio.fixture
async def rig(nats_url: str, redis_url: str, fresh_nats: Client, fresh_redis: Redis) -> AsyncIterator[Rig]:
    async with rig_on_servers(nats_url, redis_url) as rig:
        await rig.register()
        yield rig


async def test_a_step_that_asks_shows_its_approval_and_blocks_its_execution(rig: Rig) -> None:
    run = await rig.started()
    terms = ApprovalTerms(approvers=("boss", "deputy"), timeout_ms=90_000, message="sure?", separate_requester=True)

    asked = await ask(run, {"amount": 1.0}, terms=terms)

    shown = await approval(rig, asked)
    created_at, timeout_at = shown.pop("created_at"), shown.pop("timeout_at")
    assert shown == {
        "id": asked.approval_id,
        "step_id": asked.step_id,
        "execution_id": run.execution_id,
        "agent_id": "agent",
        "target": TARGET,
        "rule_id": RULE,
        "status": "pending",
        "approvers": ["boss", "deputy"],
        "message": "sure?",
        "decided_by": "",
        "asserted_by": "",
        "rationale": "",
    }
    header = await rig.header(run.execution_id)
    assert header.approval is not None
    assert timeout_at == rfc3339(header.approval.timeout_at)
    assert created_at == rfc3339(header.approval.timeout_at - 90_000_000)
    assert (await rig.call("GET", "/v0/approvals")).json() == [
        shown | {"created_at": created_at, "timeout_at": timeout_at}
    ]
    assert (await rig.call("GET", run.path)).json()["status"] == "blocked"
    step = (await rig.call("GET", f"{run.path}/steps/{asked.step_id}")).json()
    assert (step["status"], step["rule_id"], step["policy_version"]) == ("awaiting_approval", RULE, POLICY_VERSION)
    assert "started_at" not in step


async def test_the_block_is_told_by_its_events_in_order(rig: Rig) -> None:
    run = await rig.started()
    await run.heartbeat()
    before = len(await rig.events(run.execution_id))

    asked = await ask(run)

    ids = {"approval_id": asked.approval_id, "step_id": asked.step_id, "execution_id": run.execution_id}
    step = {"step_id": asked.step_id, "step_type": "tool_call", "target": TARGET}
    assert await events_since(rig, run, before) == [
        ("step.proposed", step),
        ("step.awaiting_approval", step | {"rule_id": RULE, "policy_version": POLICY_VERSION}),
        ("approval.requested", ids | {"status": "pending"}),
        ("execution.blocked", {"execution_id": run.execution_id, "status": "blocked"}),
    ]


async def test_a_blocked_execution_takes_no_new_step_and_repeats_its_own(rig: Rig) -> None:
    run = await rig.started()
    asked = await ask(run)

    new = await run.submit("another")

    assert new.json() == {"decision": "execution_blocked", "resources": []}
    assert (await rig.header(run.execution_id)).step_count == 1
    early = await run.complete_step(asked.step_id, 1)
    assert (early.status_code, early.json()["code"]) == (409, "conflict")


async def test_lists_show_what_is_asked_for_by_creation(rig: Rig) -> None:
    await rig.register("writer")
    runs = [await rig.started(agent_id) for agent_id in ("agent", "writer", "agent", "agent", "writer")]
    asked = [await ask(run) for run in runs]
    for verb, which in (("grant", 0), ("deny", 1)):
        assert (await rig.call("POST", f"{asked[which].path}/{verb}")).status_code == 204

    async def listed(query: str) -> list[int]:
        response = await rig.call("GET", f"/v0/approvals{query}")
        assert response.status_code == 200, response.text
        assert "rebuno-next-cursor" not in response.headers
        ids = [each["id"] for each in response.json()]
        assert ids == sorted(ids)
        return sorted(next(at for at, each in enumerate(asked) if each.approval_id == found) for found in ids)

    assert await listed("") == await listed("?status=pending") == await listed("?status=") == [2, 3, 4]
    assert await listed("?status=granted") == [0]
    assert await listed("?status=denied") == [1]
    assert await listed("?status=expired") == []
    assert await listed("?status=all") == [0, 1, 2, 3, 4]
    assert await listed("?agent_id=writer") == [4]
    assert await listed("?agent_id=writer&status=all") == [1, 4]
    assert await listed(f"?execution_id={runs[3].execution_id.upper()}") == [3]
    assert await listed(f"?execution_id={runs[0].execution_id}&status=all&agent_id=agent") == [0]
    assert await listed(f"?execution_id={runs[0].execution_id}&status=all&agent_id=writer") == []
    assert await listed(f"?execution_id={UNKNOWN}&status=all") == []
    assert await listed("?agent_id=no%20such") == []


async def test_pages_lead_through_all_shards_and_end(rig: Rig) -> None:
    asked = [await ask(await rig.started()) for _ in range(7)]
    assert len({uuid7_ms(each.approval_id) for each in asked}) > 1

    shown: list[str] = []
    pages = 0
    query = "?limit=2"
    while query:
        response = await rig.call("GET", f"/v0/approvals{query}")
        page = [each["id"] for each in response.json()]
        shown += page
        pages += 1
        cursor = response.headers.get("rebuno-next-cursor")
        assert cursor in (None, page[-1])
        query = f"?limit=2&cursor={cursor}" if cursor else ""

    assert (shown, pages) == (sorted(each.approval_id for each in asked), 4)
    exact = await rig.call("GET", "/v0/approvals?limit=7")
    assert (len(exact.json()), "rebuno-next-cursor" in exact.headers) == (7, False)
    after = await rig.call("GET", f"/v0/approvals?cursor={shown[-3].upper()}")
    assert [each["id"] for each in after.json()] == shown[-2:]


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("?status=waiting", "status"),
        ("?status=Pending", "status"),
        ("?limit=0", "limit"),
        ("?limit=x", "limit"),
        ("?cursor=1", "cursor"),
        ("?execution_id=1", "execution_id"),
    ],
)
async def test_a_list_that_cannot_be_meant_is_malformed(rig: Rig, query: str, path: str) -> None:
    response = await rig.call("GET", f"/v0/approvals{query}")

    assert response.status_code == 400
    assert response.json()["details"] == {"path": path}


async def test_unknown_ids_are_not_found_and_malformed_ones_are_malformed(rig: Rig) -> None:
    run = await rig.started()
    for path, method in (("", "GET"), ("/grant", "POST"), ("/deny", "POST")):
        for unknown in (UNKNOWN, new_uuid7(), run.execution_id):
            response = await rig.call(method, f"/v0/approvals/{unknown}{path}")
            assert (response.status_code, response.content) == (404, NOT_FOUND)
        for malformed in MALFORMED:
            response = await rig.call(method, f"/v0/approvals/{malformed}{path}")
            assert (response.status_code, response.json()["details"]) == (400, {"path": "approval_id"})


async def test_an_approval_of_another_tenant_is_an_unknown_one(rig: Rig) -> None:
    asked = await foreign_approval(rig)

    for path, method in (("", "GET"), ("/grant", "POST"), ("/deny", "POST")):
        response = await rig.call(method, f"{asked.path}{path}")
        assert (response.status_code, response.content) == (404, NOT_FOUND)
    for query in ("", "?status=all", f"?status=all&execution_id={asked.execution_id}", "?agent_id=agent"):
        assert (await rig.call("GET", f"/v0/approvals{query}")).json() == []


async def foreign_approval(rig: Rig) -> Asked:
    """An approval of the tenant `acme`, made past the door."""
    execution_id, lease = new_uuid7(), Lease(new_uuid7(), 1)
    stamp: dict[str, Any] = {"tenant": "acme", "execution_id": execution_id, "at": time.time_ns() // 1000}
    created = ExecutionCreated(
        id=new_uuid7(),
        **stamp,
        agent_id="agent",
        created_by="api",
        input=Raw(b"null"),
        dispatch_id=lease.dispatch_id,
        limits=limits_of(rig.settings),
        deadline_at=None,
        life_ends_at=stamp["at"] + 10**12,
    )
    asking = asking_entry(execution_id, lease, shards=rig.settings.shards, tenant="acme")
    for entry in (created, DispatchClaimed(id=new_uuid7(), **stamp, lease=lease, claimed_by="test"), asking):
        await rig.append(entry)
    asked = asked_of(asking)

    async def is_there() -> bool:
        located = await rig.call("GET", f"/v0/executions/{execution_id}")
        assert located.status_code == 404
        seen = await rig.view.fields(shard_of(execution_id, rig.settings.shards), "acme", execution_id, (b"h",))
        return seen.value[0] is not None and decode_header(seen.value[0]).approval is not None

    await wait_until_async(is_there, "the approval of another tenant")
    return asked


async def test_a_list_ends_before_its_body_would_pass_the_largest_page() -> None:
    message = "m" * 3_000_000
    async with rig_in_memory() as rig:
        await rig.register()
        asked = [await ask(await rig.started(), terms=ApprovalTerms(message=message)) for _ in range(12)]

        first = await rig.call("GET", "/v0/approvals")
        rest = await rig.call("GET", f"/v0/approvals?cursor={first.headers['rebuno-next-cursor']}")

    assert 32 * 2**20 - len(message) - 1024 < len(first.content) <= 32 * 2**20
    shown = [each["id"] for each in (*first.json(), *rest.json())]
    assert shown == sorted(each.approval_id for each in asked)
    assert "rebuno-next-cursor" not in rest.headers
