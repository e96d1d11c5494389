"""K61: listing steps and getting one."""

import asyncio

import httpx
import pytest

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, details, envelope
from tests.conformance.harness.calls import NEXT_CURSOR
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.routes import UNKNOWN_STEP

PAGE_MAX = 1000
AT_ONCE = 20


async def _mixed(kernel: Kernel) -> tuple[Lease, list[str]]:
    """A lease with steps of several statuses, and their ids by first submission."""
    lease = await (await kernel.agent()).acknowledged()
    ids = [await lease.proceed(target) for target in ("a", "b", "c", "d", "e")]
    # Outcomes in another order than that of the submissions.
    accepted(await lease.complete(ids[3], 1))
    accepted(await lease.fail(ids[1], "no"))
    accepted(await lease.complete(ids[0], 1))
    return lease, ids


async def _listed(kernel: Kernel, lease: Lease, **query: object) -> list[str]:
    """The ids of a list that is one page."""
    answer = await kernel.get(f"{lease.path}/steps", **query)
    assert NEXT_CURSOR not in answer.headers
    return [step["step_id"] for step in accepted(answer)]


async def test_k61_steps_are_listed_by_their_first_submission(kernel: Kernel) -> None:
    lease, ids = await _mixed(kernel)

    assert await _listed(kernel, lease) == ids
    signed = await lease.agent.request("GET", f"{lease.path}/steps")
    assert [step["step_id"] for step in accepted(signed)] == ids


async def test_k61_steps_are_listed_by_status(kernel: Kernel) -> None:
    lease, ids = await _mixed(kernel)

    expected = {
        "succeeded": [ids[0], ids[3]],
        "failed": [ids[1]],
        "executing": [ids[2], ids[4]],
        "terminal": [ids[0], ids[1], ids[3]],
        "denied": [],
        "cancelled": [],
        "allowed": [],
        "awaiting_approval": [],
    }
    assert {status: await _listed(kernel, lease, status=status) for status in expected} == expected

    accepted(await kernel.cancel(lease.execution_id), 204)

    expected |= {"executing": [], "cancelled": [ids[2], ids[4]], "terminal": ids}
    assert {status: await _listed(kernel, lease, status=status) for status in expected} == expected


@pytest.mark.parametrize("status", ["done", "TERMINAL", "all", "terminal,failed", "%00"])
async def test_k61_an_unknown_status_is_400(kernel: Kernel, status: str) -> None:
    lease, _ = await _mixed(kernel)

    details(await kernel.get(f"{lease.path}/steps?status={status}"), 400, "validation_error")


@pytest.mark.parametrize("query", [{}, {"status": "terminal"}, {"status": "executing"}])
@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_k61_pages_follow_each_other_by_the_cursor(kernel: Kernel, limit: int, query: dict[str, str]) -> None:
    lease, _ = await _mixed(kernel)
    everything = await _listed(kernel, lease, **query)

    pages = [accepted(answer) for answer in await _pages(kernel, lease, limit=limit, **query)]

    assert [step["step_id"] for page in pages for step in page] == everything
    assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1)
    assert pages[-1]


async def test_k61_steps_added_between_pages_come_on_later_ones(kernel: Kernel) -> None:
    lease, ids = await _mixed(kernel)

    first = await kernel.get(f"{lease.path}/steps", limit=4)
    late = [await lease.proceed("a"), await lease.proceed("f")]
    second = await kernel.get(f"{lease.path}/steps", cursor=first.headers[NEXT_CURSOR])

    assert [step["step_id"] for step in accepted(first) + accepted(second)] == [*ids, *late]


async def test_k61_without_a_limit_all_steps_are_in_one_answer(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).acknowledged()
    waiting = asyncio.Semaphore(AT_ONCE)

    async def submit(number: int) -> str:
        async with waiting:
            return await lease.proceed("search", number)

    ids = list(await asyncio.gather(*(submit(number) for number in range(PAGE_MAX))))
    outcomes = [{"step_id": step_id, "result": 1} for step_id in ids[:100]]
    ids += [await lease.proceed("later", number, settle=outcomes if number == 0 else []) for number in range(5)]

    everything = await _listed(kernel, lease)
    assert sorted(everything) == sorted(ids)
    assert sorted(await _listed(kernel, lease, status="terminal")) == sorted(ids[:100])
    for limit in (PAGE_MAX, PAGE_MAX + 5):
        pages = [accepted(answer) for answer in await _pages(kernel, lease, limit=limit)]
        assert [len(page) for page in pages] == [PAGE_MAX, 5]
        assert [step["step_id"] for page in pages for step in page] == everything


@pytest.mark.parametrize("step_id", [UNKNOWN_STEP, "x", "F" * 64, "f" * 63, "f" * 65, "f" * 63 + "g", "%00", "%C3%A9"])
async def test_k61_an_absent_or_malformed_step_is_404(kernel: Kernel, step_id: str) -> None:
    lease, _ = await _mixed(kernel)

    bodies = {
        answer.content
        for answer in (
            await kernel.get(f"{lease.path}/steps/{step_id}"),
            await lease.agent.request("GET", f"{lease.path}/steps/{step_id}"),
        )
        if envelope(answer, 404, "not_found")
    }

    assert bodies == {b'{"code":"not_found","message":"step not found"}'}


async def test_k61_a_step_is_found_by_its_id_in_lower_case_only(kernel: Kernel) -> None:
    lease, ids = await _mixed(kernel)

    signed = await lease.agent.request("GET", f"{lease.path}/steps/{ids[0]}")
    assert accepted(signed) == await kernel.step(lease.execution_id, ids[0])
    envelope(await kernel.get(f"{lease.path}/steps/{ids[0].upper()}"), 404, "not_found")


async def _pages(kernel: Kernel, lease: Lease, **query: object) -> list[httpx.Response]:
    """The answers from the first page to the last."""
    answers = [await kernel.get(f"{lease.path}/steps", **query)]
    while NEXT_CURSOR in answers[-1].headers:
        answers.append(await kernel.get(f"{lease.path}/steps", cursor=answers[-1].headers[NEXT_CURSOR], **query))
    return answers
