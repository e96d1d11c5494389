"""Quotas at a door: who is over one waits inside the budget of the request, and is refused where no room comes."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from nats.aio.client import Client
from redis.asyncio import Redis

from kernel.domain.buckets import quota_bucket
from kernel.view.keys import bucket_key
from tests.integration.test_door_order import GUARDED, Requests, faults_of
from tests.support.approvals import ask
from tests.support.door import OPERATOR_KEY, MemoryRig, Rig, rig_in_memory, rig_on_servers
from tests.support.wait import loop_turns, wait_until_async

BUDGET_SECONDS = 2.0
WORK_SECONDS = 1.0
"""What is kept of the budget for the work."""
FAR_MS = 4_000_000_000_000
UNCOUNTED = frozenset({"heartbeat", "put_tenant", "list_tenants"})


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[MemoryRig]:
    async with rig_in_memory(budget_seconds=BUDGET_SECONDS) as rig:
        yield rig


async def put(rig: Rig, tenant: str = "default", **quotas: int) -> None:
    response = await rig.call("POST", "/v0/tenants", key=OPERATOR_KEY, json={"id": tenant, "quotas": quotas})
    assert response.status_code in (200, 201), response.text


async def key_of(rig: Rig, tenant: str) -> str:
    body = {"name": "test", "tenant": tenant, "scopes": ["executions:read", "executions:write", "agents:admin"]}
    response = await rig.call("POST", "/v0/keys", key=OPERATOR_KEY, json=body)
    return response.json()["key"]


async def ask_often(rig: Rig, count: int, **options: Any) -> list[httpx.Response]:
    return list(await asyncio.gather(*(rig.call("GET", "/v0/executions", **options) for _ in range(count))))


async def create(rig: Rig) -> httpx.Response:
    return await rig.call("POST", "/v0/executions", json={"agent_id": "agent"})


def refused(response: httpx.Response, quota: str) -> None:
    assert response.status_code == 429, response.text
    assert response.json()["code"] == "rate_limited"
    assert response.json()["details"] == {"reason": quota}
    assert int(response.headers["retry-after"]) >= 1


# ---------------------------------------------------------------- rates


@pytest.mark.alone
async def test_requests_over_quota_wait_for_room_and_pass(rig: Rig) -> None:
    await put(rig, requests_per_second=20)
    await ask_often(rig, 20)
    started_at = time.monotonic()

    answers = await ask_often(rig, 10)

    assert {each.status_code for each in answers} == {200}
    # Ten tokens flow back in half a second; a little had flowed back before.
    assert 0.2 <= time.monotonic() - started_at <= 2.0


async def test_where_no_room_comes_inside_the_budget_the_request_is_refused(rig: Rig) -> None:
    await put(rig, requests_per_second=2)

    answers = await ask_often(rig, 20)

    passed = [each for each in answers if each.status_code == 200]
    # Two at once, and two more for each second of waiting.
    assert 2 <= len(passed) <= 2 + 2 * (BUDGET_SECONDS + 1)
    for each in answers:
        if each.status_code != 200:
            refused(each, "requests_per_second")


@pytest.mark.alone
async def test_another_tenant_is_unaffected(rig: Rig) -> None:
    await put(rig, requests_per_second=1)
    await put(rig, "quiet")
    quiet = await key_of(rig, "quiet")
    flood = asyncio.create_task(ask_often(rig, 30))
    await loop_turns(1)

    started_at = time.monotonic()
    answers = await ask_often(rig, 30, key=quiet)

    assert {each.status_code for each in answers} == {200}
    assert time.monotonic() - started_at < WORK_SECONDS
    assert not flood.done()
    assert {each.status_code for each in await flood} == {200, 429}


@pytest.mark.alone
async def test_heartbeats_count_against_no_quota(rig: Rig) -> None:
    await rig.register()
    run = await rig.started()
    await put(rig, requests_per_second=1)
    await ask_often(rig, 1)

    started_at = time.monotonic()
    answers = [await run.heartbeat() for _ in range(20)]

    assert {each.status_code for each in answers} == {204}
    assert time.monotonic() - started_at < WORK_SECONDS


async def test_a_quota_that_is_raised_or_taken_away_holds_at_once(rig: Rig) -> None:
    await put(rig, requests_per_second=1)
    await ask_often(rig, 1)
    await put(rig, requests_per_second=1000)
    assert {each.status_code for each in await ask_often(rig, 50)} == {200}
    await put(rig, requests_per_second=1)
    await put(rig)
    assert {each.status_code for each in await ask_often(rig, 50)} == {200}


async def test_while_nobody_can_say_what_is_left_nothing_passes(rig: MemoryRig) -> None:
    await put(rig, requests_per_second=1)
    rig.memory_view.is_unavailable = True
    answers = await asyncio.gather(*(rig.call("GET", "/v0/agents") for _ in range(3)))
    rig.memory_view.is_unavailable = False
    assert {each.status_code for each in answers} == {503}


async def test_creates_have_a_rate_of_their_own(rig: Rig) -> None:
    await rig.register()
    await put(rig, creates_per_second=1)

    answers = await asyncio.gather(*(create(rig) for _ in range(8)))

    assert {each.status_code for each in answers} == {201, 429}
    for each in answers:
        if each.status_code == 429:
            refused(each, "creates_per_second")
    listed = (await rig.call("GET", "/v0/executions")).json()["executions"]
    assert len(listed) == sum(each.status_code == 201 for each in answers)


# ---------------------------------------------------------------- what is counted


async def test_a_create_waits_for_a_live_execution_to_end(rig: Rig) -> None:
    await rig.register()
    await put(rig, live_executions=1)
    first = await rig.create()

    refused(await create(rig), "live_executions")
    waiting = asyncio.create_task(create(rig))
    assert (await rig.call("POST", f"/v0/executions/{first}/cancel")).status_code == 204

    assert (await waiting).status_code == 201


async def test_of_many_creates_at_once_as_many_pass_as_there_is_room_for(rig: Rig) -> None:
    await rig.register()
    await put(rig, live_executions=3)

    answers = await asyncio.gather(*(create(rig) for _ in range(10)))

    assert sorted(each.status_code for each in answers) == [201] * 3 + [429] * 7


async def test_bytes_are_counted_until_the_day_ends(rig: Rig) -> None:
    await rig.register()
    run = await rig.started()
    await put(rig, bytes_per_day=2000)

    assert (await run.submit("t", "x" * 500)).status_code == 200
    assert (await run.submit("t", "y" * 500)).status_code == 200
    over = await run.submit("t", "z" * 1500)
    # What is left is enough for a small one, and a request without a body needs nothing.
    small = await run.submit("t", "s")

    refused(over, "bytes_per_day")
    assert 1 <= int(over.headers["retry-after"]) <= 24 * 3600
    assert small.status_code == 200
    assert (await rig.call("GET", f"/v0/executions/{run.execution_id}")).status_code == 200
    assert len((await rig.call("GET", f"/v0/executions/{run.execution_id}/steps")).json()) == 3


async def test_what_is_kept_in_the_log_bounds_new_work_and_lets_what_runs_end(rig: MemoryRig) -> None:
    await rig.register()
    run = await rig.started()
    step_id = await run.proceed("t", "x" * 3000)
    kept = sum([await rig.view.count_log_bytes(shard, "default") for shard in range(rig.settings.shards)])
    assert kept > 3000
    await put(rig, log_bytes=kept + 3000)

    assert (await run.submit("t", "y" * 1000)).status_code == 200
    over = await run.submit("t", "z" * 2500)
    created = await create(rig)

    refused(over, "log_bytes")
    assert created.status_code == 201
    assert (await run.complete_step(step_id, "r" * 5000)).status_code == 200

    async def is_full() -> bool:
        answer = await create(rig)
        return answer.status_code == 429

    await wait_until_async(is_full, "the new count to be seen")
    refused(await create(rig), "log_bytes")
    assert (await run.complete("o" * 5000)).status_code == 204


# ---------------------------------------------------------------- where it is judged


async def test_every_route_is_counted_after_the_request_is_judged_and_before_its_id_is(
    nats_url: str, redis_url: str, fresh_nats: Client, fresh_redis: Redis
) -> None:
    async with rig_on_servers(nats_url, redis_url, budget_seconds=BUDGET_SECONDS, body_bytes_max=4096) as rig:
        await rig.register()
        live, ended = await rig.started(), await rig.started()
        requests = Requests(rig, live, ended, await live.proceed())
        for run in (live, ended):
            requests.approvals[run.execution_id] = (await ask(run)).approval_id
        await put(rig, requests_per_second=1)
        # Given a bucket into which nothing flows back.
        await ask_often(rig, 1)
        bucket = bucket_key("default", quota_bucket("requests_per_second", 1))
        await fresh_redis.set(bucket, f"0/{FAR_MS}")

        counted = [route for route in GUARDED if route.operation not in UNCOUNTED]
        asked = [
            (route.operation, faults, STATUSES[faults[0] if faults else ""], requests.send(route, set(faults)))
            for route in counted
            for faults in [(), *((each,) for each in faults_of(route) if each in STATUSES)]
        ]
        answers = await asyncio.gather(*(sending for *_, sending in asked))

        wrong = {
            (operation, faults): answer.text
            for (operation, faults, status, _), answer in zip(asked, answers, strict=True)
            if answer.status_code != status
        }
        assert wrong == {}
        assert len(counted) >= 20
        assert (await live.heartbeat()).status_code == 204
        # Nothing of it left a trace.
        await put(rig)
        assert (await rig.event_types(live.execution_id))[-1] == "execution.blocked"


STATUSES = {"": 429, "too_large": 413, "unauthorized": 401, "invalid": 400, "unknown": 429, "ended": 429}
"""What is answered to a request of a tenant that is over its quota, by what else is wrong with it."""
