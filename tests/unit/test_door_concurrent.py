"""Asking several things at once, and a bounded number of places."""

import asyncio

import pytest

from kernel.door.concurrent import Slots, together
from tests.support.wait import loop_turns


class Trouble(Exception):
    """What one of the questions raises."""


async def test_results_come_in_the_order_of_the_questions() -> None:
    gate = asyncio.Event()

    async def slow() -> int:
        await gate.wait()
        return 1

    async def quick() -> int:
        gate.set()
        return 2

    assert await together([slow(), quick()]) == [1, 2]
    assert await together([]) == []


async def test_the_first_failure_is_raised_as_it_is_and_cancels_the_rest() -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def failing() -> None:
        raise Trouble

    with pytest.raises(Trouble):
        await together([endless(), failing(), endless()])
    assert ended == ["cancelled", "cancelled"]


async def test_places_are_handed_over_in_order_and_never_exceeded() -> None:
    slots = Slots(1)
    assert slots.try_enter()
    assert not slots.try_enter()
    order: list[int] = []

    async def enter(number: int) -> None:
        await slots.enter()
        order.append(number)

    tasks = [asyncio.create_task(enter(number)) for number in range(3)]
    await loop_turns()
    assert order == []
    for count in (1, 2, 3):
        slots.leave()
        await loop_turns()
        # The place went to the one that waited; whoever comes now finds none.
        assert (order, slots.try_enter()) == (list(range(count)), False)
    await asyncio.gather(*tasks)
    slots.leave()
    assert slots.try_enter()


async def test_a_place_that_comes_to_one_who_leaves_goes_to_the_next() -> None:
    slots = Slots(1)
    await slots.enter()
    first, second = asyncio.create_task(slots.enter()), asyncio.create_task(slots.enter())
    await loop_turns()
    slots.leave()
    first.cancel()
    await asyncio.wait((first, second), timeout=5)
    assert first.cancelled()
    assert second.done()
    assert not slots.try_enter()


async def test_one_who_leaves_the_queue_is_passed_over() -> None:
    slots = Slots(1)
    await slots.enter()
    first, second = asyncio.create_task(slots.enter()), asyncio.create_task(slots.enter())
    await loop_turns()
    first.cancel()
    await asyncio.wait((first,))
    slots.leave()
    await asyncio.wait((second,), timeout=5)
    assert second.done()
