"""A door's share of a quota: drawn in portions, handed out in order, and never more than was drawn."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.domain.errors import ViewUnavailable
from kernel.door.allowance import WAITING_MAX, Allowance
from tests.support.wait import loop_turns, wait_until_async


class Source:
    """What all doors share. It gives what it has, where that is enough to be of use."""

    def __init__(self, left: int = 0) -> None:
        self.left = left
        self.asked: list[tuple[int, int]] = []
        self.is_away = False

    async def draw(self, wanted: int, least: int) -> int:
        self.asked.append((wanted, least))
        await loop_turns(1)
        if self.is_away:
            raise ViewUnavailable("away")
        given = min(wanted, self.left)
        if given < least:
            return 0
        self.left -= given
        return given


def allowance_of(source: Source, *, portion: int = 1) -> Allowance:
    return Allowance(source.draw, portion=portion, pause_seconds=0.001)


def later(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_one_portion_serves_many_requests() -> None:
    source = Source(100)
    allowance = allowance_of(source, portion=10)

    taken = [await allowance.take(1, ends_at=later(5)) for _ in range(10)]

    assert (taken, source.asked, source.left) == ([True] * 10, [(10, 1)], 90)


async def test_those_who_wait_are_drawn_for_at_once() -> None:
    source = Source(100)
    allowance = allowance_of(source)

    taken = await asyncio.gather(*(allowance.take(1, ends_at=later(5)) for _ in range(8)))

    assert taken == [True] * 8
    # The first draw is asked for by the first who came, before the others had come or with them: never one for each.
    assert len(source.asked) <= 2
    assert source.left == 92


async def test_who_finds_nothing_waits_until_there_is_some() -> None:
    source = Source()
    allowance = allowance_of(source)
    taking = asyncio.create_task(allowance.take(1, ends_at=later(30)))
    await wait_until_async(lambda: len(source.asked) > 2, "several draws in vain")
    assert not taking.done()

    source.left = 1

    assert await taking
    assert allowance.waiting == 0


async def test_who_finds_nothing_in_time_is_told_so_and_leaves_nothing_behind() -> None:
    source = Source()
    allowance = allowance_of(source)

    assert not await allowance.take(1, ends_at=later(0.02))

    assert allowance.waiting == 0
    await wait_until_async(lambda: len(asyncio.all_tasks()) == 1, "the drawing to end")
    source.left = 1
    assert await allowance.take(1, ends_at=later(5))


async def test_one_that_needs_much_holds_up_nobody_who_needs_little() -> None:
    source = Source(5)
    allowance = allowance_of(source)
    much = asyncio.create_task(allowance.take(100, ends_at=later(30)))
    await wait_until_async(lambda: source.asked, "the draw")

    assert await allowance.take(3, ends_at=later(5))

    assert not much.done()
    much.cancel()
    await asyncio.wait((much,))


async def test_more_than_so_many_do_not_wait() -> None:
    allowance = allowance_of(Source())
    waiting = [asyncio.create_task(allowance.take(1, ends_at=later(30))) for _ in range(WAITING_MAX)]
    await loop_turns()
    assert allowance.waiting == WAITING_MAX

    refused = asyncio.create_task(allowance.take(1, ends_at=later(30)))
    await loop_turns()
    assert refused.done()
    assert not refused.result()

    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await wait_until_async(lambda: len(asyncio.all_tasks()) == 1, "the drawing to end")


async def test_where_nobody_can_say_how_much_there_is_nothing_is_taken() -> None:
    source = Source(10)
    source.is_away = True
    allowance = allowance_of(source)

    with pytest.raises(ViewUnavailable):
        await allowance.take(1, ends_at=later(30))

    source.is_away = False
    assert await allowance.take(1, ends_at=later(5))


async def test_who_is_cancelled_takes_nothing() -> None:
    source = Source(1)
    allowance = allowance_of(source)
    taking = asyncio.create_task(allowance.take(1, ends_at=later(30)))
    await wait_until_async(lambda: source.left == 0, "the portion to be drawn")
    taking.cancel()
    await asyncio.wait((taking,))

    # Whether the cancellation came before or after the share was handed out, the share is still there.
    if taking.cancelled():
        assert await allowance.take(1, ends_at=later(5))
    else:
        assert taking.result()


@given(
    left=st.integers(0, 30),
    portion=st.integers(1, 8),
    amounts=st.lists(st.integers(1, 6), min_size=1, max_size=20),
    cancelled=st.sets(st.integers(0, 19)),
)
def test_never_more_is_taken_than_was_there_and_nothing_is_lost(
    left: int, portion: int, amounts: list[int], cancelled: set[int]
) -> None:
    asyncio.run(_taken(left, portion, amounts, cancelled))


async def _taken(left: int, portion: int, amounts: list[int], cancelled: set[int]) -> None:
    source = Source(left)
    allowance = Allowance(source.draw, portion=portion, pause_seconds=0)
    tasks = [asyncio.create_task(allowance.take(amount, ends_at=later(0.01))) for amount in amounts]
    for at in cancelled:
        if at < len(tasks):
            await loop_turns(1)
            tasks[at].cancel()
    await asyncio.wait(tasks)
    spent = sum(amount for amount, task in zip(amounts, tasks, strict=True) if not task.cancelled() and task.result())
    assert spent <= left
    # What was drawn and not spent is held, and can be had one by one.
    rest = 0
    while await allowance.take(1, ends_at=later(0.01)):
        rest += 1
    assert spent + rest == left
