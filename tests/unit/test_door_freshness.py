"""No answer comes from a view that lags behind what was answered before."""

import asyncio
from typing import Any

import pytest

from kernel.domain.errors import Unavailable, ViewUnavailable
from kernel.door.freshness import Freshness
from kernel.ports import Seen
from tests.support.wait import loop_turns

FRESH = Seen(watermark_seq=5, is_rebuilding=False, value="fresh")
STALE = Seen(watermark_seq=4, is_rebuilding=False, value="stale")
REBUILDING = Seen(watermark_seq=9, is_rebuilding=True, value="torn")
LOST = Seen(watermark_seq=-1, is_rebuilding=False, value="lost")
AWAY = ViewUnavailable("away")


class Script:
    """What the view answers, one after another, the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def ask(self) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def known(floor: int = 5) -> Freshness:
    freshness = Freshness(1)
    freshness.learn_floor(0, floor, losses=0)
    return freshness


async def read(freshness: Freshness, script: Script, *, seconds: float = 5.0) -> Any:
    return await freshness.read(0, script.ask, deadline=asyncio.get_running_loop().time() + seconds)


@pytest.mark.parametrize("before", [[], [STALE], [REBUILDING, LOST], [AWAY, STALE, AWAY]])
async def test_a_value_is_returned_as_soon_as_it_is_fresh(before: list[Any]) -> None:
    assert await read(known(), Script(*before, FRESH)) == "fresh"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(STALE, "view_unavailable"), (REBUILDING, "rebuilding"), (LOST, "rebuilding"), (AWAY, "view_unavailable")],
)
async def test_what_is_not_fresh_by_the_deadline_is_refused_with_its_reason(answer: Any, reason: str) -> None:
    with pytest.raises(Unavailable) as refused:
        await read(known(), Script(answer), seconds=0.05)
    assert refused.value.reason == reason


async def test_what_was_seen_once_is_the_floor_of_every_later_read() -> None:
    freshness = known(0)
    assert await read(freshness, Script(FRESH)) == "fresh"
    with pytest.raises(Unavailable):
        await read(freshness, Script(STALE), seconds=0.05)


async def test_nothing_is_read_before_the_reach_of_the_log_is_known() -> None:
    freshness = Freshness(2)
    assert not freshness.is_known
    with pytest.raises(Unavailable):
        await read(freshness, Script(FRESH), seconds=0.05)
    reading = asyncio.create_task(read(freshness, Script(FRESH)))
    await loop_turns(1)
    freshness.raise_floor(0, 3)
    assert freshness.floor(0) == -1, "a watermark that was heard of is not how far the log reaches"
    freshness.learn_floor(0, 3, losses=0)
    assert await reading == "fresh"
    assert not freshness.is_known
    freshness.learn_floor(1, 0, losses=0)
    assert freshness.is_known


def test_a_floor_never_falls() -> None:
    freshness = known(5)
    freshness.raise_floor(0, 3)
    assert freshness.floor(0) == 5


async def test_after_a_loss_nothing_is_read_before_the_log_was_asked_again() -> None:
    losses = 0
    freshness = Freshness(1, losses=lambda: losses)
    freshness.learn_floor(0, 5, losses=0)
    losses = 1

    with pytest.raises(Unavailable):
        await read(freshness, Script(FRESH), seconds=0.05)
    assert not freshness.is_known
    freshness.raise_floor(0, 5)
    freshness.learn_floor(0, 5, losses=0)
    assert not freshness.is_known, "what was asked before the loss tells nothing"
    freshness.learn_floor(0, 6, losses=1)
    with pytest.raises(Unavailable):
        await read(freshness, Script(FRESH), seconds=0.05)


async def test_a_loss_during_a_read_takes_what_it_brought() -> None:
    losses = 0
    freshness = Freshness(1, losses=lambda: losses)
    freshness.learn_floor(0, 5, losses=0)

    async def ask() -> Any:
        nonlocal losses
        losses = 1
        return FRESH

    with pytest.raises(Unavailable):
        await freshness.read(0, ask, deadline=asyncio.get_running_loop().time() + 0.05)
