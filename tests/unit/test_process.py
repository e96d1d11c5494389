"""The frame of a process: what a signal does to work that waits, and how a role's end is taken."""

import asyncio
import signal

import pytest

from kernel import process
from kernel.domain.errors import InvariantBroken, Misconfigured, Unavailable, ViewUnavailable
from kernel.process import Stops
from kernel.view.door_side import Evicting
from tests.support.wait import loop_turns


async def test_work_that_ends_before_a_signal_gives_its_result() -> None:
    async def work() -> str:
        await loop_turns()
        return "done"

    assert await Stops().unless_asked(work()) == "done"


async def test_a_signal_cancels_the_work_and_waits_for_its_end() -> None:
    stops, steps = Stops(), list[str]()

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await loop_turns()
            steps.append("undone")
        return "done"

    waiting = asyncio.create_task(stops.unless_asked(work()))
    await loop_turns()
    stops.hear()

    assert await waiting is None
    assert steps == ["undone"]


async def test_work_that_fails_raises_its_error() -> None:
    async def work() -> None:
        raise Misconfigured("no")

    with pytest.raises(Misconfigured):
        await Stops().unless_asked(work())


async def test_the_second_signal_insists() -> None:
    stops = Stops()

    stops.hear()
    assert stops.asked.is_set()
    assert not stops.insisted.is_set()
    stops.hear()
    assert stops.insisted.is_set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_both_signals_are_heard(number: signal.Signals) -> None:
    stops = Stops()
    stops.listen()
    try:
        signal.raise_signal(number)
        await asyncio.wait_for(stops.asked.wait(), 5)
    finally:
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(each)


async def test_a_start_waits_for_a_server_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "RETRY_SECONDS", 0.001)
    tries = iter([Unavailable("not yet"), ViewUnavailable("not yet"), None])

    async def connect() -> str:
        error = next(tries)
        if error is not None:
            raise error
        return "connected"

    assert await process.patiently("NATS", connect) == "connected"


async def test_a_start_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(process, "START_SECONDS_MAX", 0.05)

    async def connect() -> None:
        raise Unavailable("refused")

    with pytest.raises(Unavailable, match=r"NATS did not answer within 0.05 s \(refused\): is it running\?"):
        await process.patiently("NATS", connect)


async def test_a_start_does_not_wait_for_what_no_time_repairs() -> None:
    async def connect() -> None:
        raise Evicting("set maxmemory-policy to noeviction")

    with pytest.raises(Misconfigured, match="noeviction"):
        await process.patiently("Redis", connect)


class _Role:
    title = "clerk"

    async def run(self) -> None:
        return

    async def stop(self) -> None:
        return


async def test_a_role_that_ends_by_itself_is_a_fault() -> None:
    with pytest.raises(InvariantBroken, match="the clerk ended by itself"):
        await process.endless(_Role(), Stops())


async def test_a_role_that_ends_when_asked_is_none() -> None:
    stops = Stops()
    stops.hear()

    await process.endless(_Role(), stops)
