"""K29 to K32: listing executions, and reading events as they come."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from tests.conformance.harness.answers import accepted, details
from tests.conformance.harness.calls import NEXT_CURSOR
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.side_by_side import side_by_side


async def _page(kernel: Kernel, **query: object) -> dict[str, Any]:
    return accepted(await kernel.get("/v0/executions", **query))


def _ids(page: dict[str, Any]) -> list[str]:
    return [execution["id"] for execution in page["executions"]]


async def test_k29_pages_are_newest_first_without_gap_or_repeat_while_others_are_created(kernel: Kernel) -> None:
    agent = await kernel.agent()
    old = [(await agent.create(number))["id"] for number in range(11)]
    newest_first = sorted(old, reverse=True)
    assert newest_first == old[::-1], "ids grow with the time of creation"
    seen: list[str] = []
    query: dict[str, object] = {}

    while True:
        page, _ = await asyncio.gather(_page(kernel, agent_id=agent.id, limit=3, **query), agent.create("later"))
        seen += _ids(page)
        assert len(page["executions"]) <= 3
        if "next_cursor" not in page:
            break
        assert page["next_cursor"] == page["executions"][-1]["id"]
        query = {"cursor": page["next_cursor"]}

    assert [each for each in seen if each in old] == newest_first
    assert seen == sorted(set(seen), reverse=True)


async def test_k29_the_last_page_has_no_cursor_even_when_it_is_full(kernel: Kernel) -> None:
    agent = await kernel.agent()
    created = [(await agent.create())["id"] for _ in range(4)]

    first = await _page(kernel, agent_id=agent.id, limit=2)
    last = await _page(kernel, agent_id=agent.id, limit=2, cursor=first["next_cursor"])
    beyond = await _page(kernel, agent_id=agent.id, limit=2, cursor=created[0])

    assert _ids(first) + _ids(last) == created[::-1]
    assert last.keys() == {"executions"}
    assert beyond == {"executions": []}


async def test_k29_the_whole_list_pages_through_everybodys_executions(kernel: Kernel) -> None:
    agents = [await kernel.agent() for _ in range(3)]
    made = [(await agents[number % 3].create())["id"] for number in range(9)]
    seen: list[str] = []
    query: dict[str, object] = {}

    while not set(made) <= set(seen):
        page = await _page(kernel, limit=2, **query)
        seen += _ids(page)
        query = {"cursor": page["next_cursor"]}

    assert [each for each in seen if each in made] == made[::-1]
    assert seen == sorted(set(seen), reverse=True)


async def test_k30_each_filter_holds_alone_and_with_the_others(kernel: Kernel) -> None:
    agent, other = await kernel.agent(), await kernel.agent()
    running, completed, failed, cancelled = [await agent.start() for _ in range(4)]
    foreign = await other.start()
    accepted(await completed.complete_execution(), 204)
    accepted(await foreign.complete_execution(), 204)
    accepted(await failed.fail_execution("e"), 204)
    accepted(await kernel.cancel(cancelled.execution_id), 204)
    by_status = {"running": running, "completed": completed, "failed": failed, "cancelled": cancelled}
    in_order = [lease.execution_id for lease in (running, completed, failed, cancelled)]
    created = {each: (await kernel.execution(each))["created_at"] for each in in_order}
    second, third = created[in_order[1]], created[in_order[2]]
    mine = {"agent_id": agent.id}

    assert _ids(await _page(kernel, **mine)) == in_order[::-1]
    for status, lease in by_status.items():
        assert _ids(await _page(kernel, **mine, status=status)) == [lease.execution_id]
    for status in ("pending", "blocked"):
        assert _ids(await _page(kernel, **mine, status=status)) == []
    # The lower bound is part of the range, the upper one is not.
    assert _ids(await _page(kernel, **mine, created_after=second)) == in_order[:0:-1]
    assert _ids(await _page(kernel, **mine, created_before=third)) == in_order[1::-1]
    assert _ids(await _page(kernel, **mine, created_after=second, created_before=third)) == [in_order[1]]
    assert _ids(await _page(kernel, **mine, created_after=second, created_before=second)) == []
    assert _ids(await _page(kernel, **mine, created_after=second, status="completed")) == [in_order[1]]
    assert _ids(await _page(kernel, **mine, created_after=third, status="completed")) == []
    assert _ids(await _page(kernel, agent_id="nobody-of-this-name")) == []


async def test_k30_each_filter_holds_without_an_agent(kernel: Kernel) -> None:
    agents = [await kernel.agent() for _ in range(2)]
    leases = [await agent.start() for agent in agents]
    for lease in leases:
        accepted(await lease.fail_execution("e"), 204)
    ids = [lease.execution_id for lease in leases]
    after = (await kernel.execution(ids[0]))["created_at"]
    before = (await kernel.execution(ids[1]))["created_at"]

    found = _ids(await _page(kernel, status="failed", created_after=after, limit=200))
    older = _ids(await _page(kernel, status="failed", created_before=before, limit=200))
    listed = await _page(kernel, created_after=after, limit=200)

    assert [each for each in found if each in ids] == ids[::-1]
    assert ids[0] in older
    assert ids[1] not in older
    assert set(ids) <= set(_ids(listed))
    assert all(execution["created_at"] >= after for execution in listed["executions"])


@pytest.mark.parametrize(
    "times",
    [
        ("2026-01-01T00:00:00Z", "2126-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00.5Z", "2126-01-01T00:00:00.123456Z"),
        ("2026-01-01T01:00:00%2B01:00", "2126-01-01T00:00:00-05:30"),
    ],
)
async def test_k30_a_time_may_be_any_rfc_3339_spelling(kernel: Kernel, times: tuple[str, str]) -> None:
    agent = await kernel.agent()
    execution_id = (await agent.create())["id"]
    target = f"/v0/executions?agent_id={agent.id}"

    after, before = times
    within = accepted(await kernel.get(f"{target}&created_after={after}&created_before={before}"))
    outside = accepted(await kernel.get(f"{target}&created_after={before}"))

    assert _ids(within) == [execution_id]
    assert _ids(outside) == []


async def test_k30_an_unknown_status_or_a_time_that_is_none_is_400(kernel: Kernel) -> None:
    for status in ("unknown", "Running", "running,failed", "executing", "all", "%00"):
        details(await kernel.get(f"/v0/executions?status={status}"), 400, "validation_error")
    for name in ("created_after", "created_before"):
        for wrong in ("x", "1700000000", "2026-01-01", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "%FF"):
            details(await kernel.get(f"/v0/executions?{name}={wrong}"), 400, "validation_error")


async def test_k31_sequence_numbers_have_no_gap_under_50_submits_at_once(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()

    await asyncio.gather(*(lease.done(f"tool-{number}") for number in range(50)))
    events = await kernel.events(lease.execution_id)

    assert [event["event_seq"] for event in events] == list(range(1, len(events) + 1))
    # Created, started, queued and acked, and four of every step.
    assert len(events) == 4 + 50 * 4
    for step_id in {event["payload"]["step_id"] for event in events if event["type"].startswith("step.")}:
        own = [event["type"] for event in events if event["payload"].get("step_id") == step_id]
        assert own == ["step.proposed", "step.allowed", "step.executing", "step.succeeded"]


async def test_k31_after_seq_and_limit_hold_and_the_cursor_says_exactly_whether_more_exist(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()
    await lease.done()
    every = await kernel.events(lease.execution_id)
    target = f"/v0/executions/{lease.execution_id}/events"
    last = len(every)
    assert last == 8

    for after_seq in range(last + 2):
        for limit in range(1, last + 2):
            response = await kernel.get(target, after_seq=after_seq, limit=limit)
            page = accepted(response)
            assert page == every[after_seq : after_seq + limit]
            has_more = after_seq + limit < last
            assert response.headers.get(NEXT_CURSOR) == (str(page[-1]["event_seq"]) if has_more else None)


@pytest.mark.parametrize("query", ["after_seq=-1", "after_seq=x", "after_seq=1.0", "after_seq=%00"])
async def test_k31_an_after_seq_that_is_no_whole_number_is_400(kernel: Kernel, query: str) -> None:
    execution_id = (await (await kernel.agent()).create())["id"]

    details(await kernel.get(f"/v0/executions/{execution_id}/events?{query}"), 400, "validation_error")


async def test_k31_an_event_can_be_read_as_soon_as_its_answer_was_given(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()

    for number in range(20):
        step_id = await lease.proceed("t", {"n": number})
        events, steps = await asyncio.gather(kernel.events(lease.execution_id), kernel.steps(lease.execution_id))
        assert events[-1]["payload"]["step_id"] == step_id
        assert steps[-1]["step_id"] == step_id


async def _settled(kernel: Kernel) -> tuple[Any, str, int]:
    """A lease whose webhook was acknowledged, the target of its events, and the last of them."""
    lease = await (await kernel.agent()).acknowledged()
    last = (await kernel.events(lease.execution_id))[-1]
    assert last["type"] == "dispatch.acked"
    return lease, f"/v0/executions/{lease.execution_id}/events", last["event_seq"]


async def _waiting(kernel: Kernel, target: str, **query: object) -> "asyncio.Task[httpx.Response]":
    """A read that waits, after as many others were answered as leave no doubt that it has arrived."""
    waiting = asyncio.create_task(kernel.get(target, **query))
    for _ in range(10):
        await kernel.get("/v0/executions", limit=1)
    assert not waiting.done()
    return waiting


@pytest.mark.alone
async def test_k32_a_waiting_read_returns_as_soon_as_an_event_is_appended(kernel: Kernel) -> None:
    lease, target, last = await _settled(kernel)

    waiting = await _waiting(kernel, target, after_seq=last, wait=5)
    step_id = await lease.proceed()
    appended_at = time.monotonic()
    page = accepted(await waiting)

    assert time.monotonic() - appended_at < 1.0
    assert page[0]["event_seq"] == last + 1
    assert {event["payload"]["step_id"] for event in page} == {step_id}


@side_by_side
async def test_k32_a_waiting_read_returns_an_empty_list_when_nothing_comes(kernel: Kernel) -> None:
    _, target, last = await _settled(kernel)

    started_at = time.monotonic()
    page = accepted(await kernel.get(target, after_seq=last, wait=5))

    assert page == []
    assert 4.9 <= time.monotonic() - started_at < 7.0


async def test_k32_a_waiting_read_returns_at_once_when_there_is_something_or_the_end(kernel: Kernel) -> None:
    lease, target, last = await _settled(kernel)
    started_at = time.monotonic()

    assert len(accepted(await kernel.get(target, wait=20))) == last
    waiting = await _waiting(kernel, target, after_seq=last + 1, wait=20)
    accepted(await lease.complete_execution(), 204)
    # The end is event last + 1, so the waiting read ends without one.
    assert accepted(await waiting) == []
    assert accepted(await kernel.get(target, after_seq=last + 1, wait=20)) == []

    assert time.monotonic() - started_at < 3.0


@pytest.mark.parametrize("wait", ["26", "-1", "x", "25.1", "nan", "inf", "1e9", "%00"])
async def test_k32_a_wait_outside_its_range_is_400(kernel: Kernel, wait: str) -> None:
    _, target, _ = await _settled(kernel)

    details(await kernel.get(f"{target}?wait={wait}"), 400, "validation_error")
    # Nor is it held back until the time is up.
    assert accepted(await kernel.get(target, wait=25))
    assert accepted(await kernel.get(target, after_seq=10**6, wait=0)) == []
