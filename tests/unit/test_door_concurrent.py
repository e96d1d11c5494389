"""Asking several things at once."""

import asyncio

import pytest

from kernel.door.concurrent import together


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
