"""A21: outcomes ride on the next request, go alone after a linger, and ride again until they are acknowledged."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from stepwell import NetworkError, Terminated
from stepwell.keeper import Keeper
from stepwell.kernel import KernelClient, Outcome
from stepwell.settling import RIDING_BYTES_MAX, RIDING_MAX, Settling
from tests.support.wait import wait_until_async


def outcome(number: int, json: bytes = b"1") -> Outcome:
    return Outcome(step_id=f"{number:064x}", member="result", json=json)


class Desk:
    """Where lone outcomes are recorded, and what is told of those that cannot be."""

    def __init__(self) -> None:
        self.recorded: list[Outcome] = []
        self.refusals: list[BaseException] = []
        self.failure: BaseException | None = None
        self.may_answer = asyncio.Event()
        self.keeper = Keeper(lambda: KernelClient(agent_id="agent", secret="s", base_url="http://127.0.0.1:1"))
        self.settling = Settling(self.keeper, self.record, self.refusals.append)

    async def record(self, recorded: Outcome) -> None:
        self.recorded.append(recorded)
        if self.failure is not None:
            raise self.failure


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    await asyncio.to_thread(desk.keeper.close)


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes alone by itself, however slow the machine is."""
    monkeypatch.setattr("stepwell.settling.LINGER_SECONDS", 60.0)


@pytest.mark.usefixtures("_patient")
async def test_a21_an_outcome_rides_on_the_next_request_and_goes_nowhere_else(desk: Desk) -> None:
    desk.settling.add(outcome(1))

    carried = await desk.settling.board()
    desk.settling.arrived(carried)
    await desk.settling.flushed()

    assert carried == (outcome(1),)
    assert desk.recorded == []
    assert await desk.settling.board() == ()


async def test_a21_alone_it_goes_after_the_linger_though_this_loop_does_nothing(desk: Desk) -> None:
    desk.settling.add(outcome(1))

    await wait_until_async(lambda: desk.recorded == [outcome(1)], "the outcome to go alone")
    await desk.settling.flushed()
    assert await desk.settling.board() == ()


@pytest.mark.usefixtures("_patient")
async def test_a22_until_it_is_acknowledged_it_rides_on_every_request(desk: Desk) -> None:
    desk.settling.add(outcome(1))
    first = await desk.settling.board()
    desk.settling.add(outcome(2))

    second = await desk.settling.board()

    assert (first, second) == ((outcome(1),), (outcome(1), outcome(2)))
    desk.settling.arrived(second)
    desk.settling.arrived(first)
    assert await desk.settling.board() == ()


async def test_a22_what_a_refused_request_carried_goes_on_its_own(desk: Desk) -> None:
    desk.settling.add(outcome(1))
    carried = await desk.settling.board()
    # The linger ends while it is under way, so nothing goes alone by that.
    await wait_until_async(lambda: not desk.settling._is_lingering, "the linger to end")
    assert desk.recorded == []

    desk.settling.missed(carried)

    await wait_until_async(lambda: desk.recorded == [outcome(1)], "the outcome to go alone")


async def test_what_is_too_much_to_ride_goes_alone_and_the_request_waits_for_it(desk: Desk) -> None:
    desk.settling.add(outcome(1, b'"' + b"x" * RIDING_BYTES_MAX + b'"'))

    assert await desk.settling.board() == ()
    assert len(desk.recorded) == 1


async def test_more_outcomes_than_a_request_may_carry_go_alone(desk: Desk) -> None:
    for number in range(RIDING_MAX + 1):
        desk.settling.add(outcome(number))

    assert await desk.settling.board() == ()
    assert len({each.step_id for each in desk.recorded}) == RIDING_MAX + 1


@pytest.mark.parametrize("failure", [Terminated("over"), NetworkError("away")])
async def test_an_outcome_that_cannot_be_recorded_is_told_and_holds_up_nothing(desk: Desk, failure: Any) -> None:
    desk.failure = failure
    desk.settling.add(outcome(1))

    await desk.settling.flushed()

    assert desk.refusals
    assert set(desk.refusals) == {failure}
    assert await desk.settling.board() == ()


@pytest.mark.usefixtures("_patient")
async def test_an_outcome_that_the_end_of_the_execution_carries_too_is_not_told_as_lost(desk: Desk) -> None:
    desk.failure = Terminated("over")
    desk.settling.add(outcome(1))
    await desk.settling.board()

    await desk.settling.flushed()

    assert desk.recorded == [outcome(1)]
    assert desk.refusals == []


async def test_what_is_dropped_goes_nowhere(desk: Desk) -> None:
    carried = await desk.settling.board()
    desk.settling.add(outcome(1))
    desk.settling.drop()
    desk.settling.arrived(carried)

    assert await desk.settling.board() == ()
