"""A22: an agent that is killed at any point around settle and linger has never had a step decided too early."""

import asyncio
import itertools
import signal
from pathlib import Path

import pytest

from tests.sdk.crashing_agent import MODES, SECRET, Mode, Order, Passage
from tests.sdk.effects import read_lines
from tests.sdk.ground import Ground, ground
from tests.sdk.judging import Ran, findings, read_run

LIFE_SECONDS_MAX = 60.0
CRASHED = -signal.SIGKILL
POINTS = {
    "before the webhook is answered",
    "before the read leaves",
    "before a submission leaves",
    "a request has left",
    "before the answer to a submission is taken",
    "before the body",
    "after the body",
    "before add",
    "after add",
    "boarded",
    "before arrived",
    "after arrived",
    "before the end leaves",
    "before the answer to the end is taken",
}
POINTS_OF_A_LINGER = {
    "before the linger fires",
    "after the linger fires",
    "before a lone outcome leaves",
    "before the answer to a lone outcome is taken",
}


class Crashing:
    """Executions whose agent ends itself, and is followed by another process."""

    def __init__(self, on: Ground, mode: Mode) -> None:
        self._on = on
        self._mode: Mode = mode
        self._number = 0

    async def crash_at(self, passage: int) -> tuple[str, Ran]:
        """Run an execution whose agent ends at that passage; another process brings it to its end.

        Returns the point that was passed, empty where the agent came to its end before.
        """
        client, lives = self._on.client, self._on.lives
        created = await client.create(self._mode)
        async with asyncio.timeout(LIFE_SECONDS_MAX):
            process = await self._begin(passage)
            has_crashed = await lives.ended() == CRASHED
            if has_crashed:
                await self._on.bury(created.id)
                await self._begin(0)
            await client.wait(created.id)
            if has_crashed:
                lives.kill()
                await lives.ended()
        point = next(each.point for each in reversed(self.passages()) if each.process == process)
        ran = await read_run(client, MODES[self._mode], created.id, self._on.effects())
        return point if has_crashed else "", ran

    def passages(self) -> list[Passage]:
        return read_lines(self._on.folder / "passages.jsonl", Passage)

    async def _begin(self, crashes_at: int) -> int:
        self._number += 1
        order = Order(
            number=self._number,
            kernel_url=self._on.kernel.url,
            folder=str(self._on.folder),
            mode=self._mode,
            crashes_at=crashes_at,
        )
        return await self._on.lives.begin(order)


@pytest.mark.parametrize("mode", MODES)
async def test_a22_no_step_is_decided_before_what_it_depends_on_is_durable(mode: Mode, tmp_path: Path) -> None:
    runs: list[Ran] = []
    async with ground("tests.sdk.crashing_agent", tmp_path) as on:
        await on.register(mode, secret=SECRET)
        crashing = Crashing(on, mode)
        for passage in itertools.count(1):
            point, ran = await crashing.crash_at(passage)
            found = findings([ran])
            assert not found, f"killed at passage {passage}, {point or 'beyond the last'}:\n" + "\n".join(found)
            runs.append(ran)
            if not point:
                break
        passed = {each.point for each in crashing.passages()}
        history = on.history()

    # What was asked and told is judged as a whole, and no body ran more than once in each of the two processes.
    assert findings(runs, history) == []
    assert passed >= POINTS | (POINTS_OF_A_LINGER if mode in ("goes-alone", "races") else set())
