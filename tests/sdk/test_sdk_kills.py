"""Agents that are killed at random moments lose nothing that was acknowledged, and repeat nothing beyond a kill."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from stepwell import Execution, step
from stepwell.testing import LocalKernel
from tests.fault.history import Delivered, Line
from tests.sdk.ground import Ground, ground
from tests.sdk.judging import Ran, decide, findings, read_run
from tests.sdk.killed_agent import SECRET, Order
from tests.sdk.scenarios import BY_NAME, SCENARIOS, Scenario
from tests.support.wait import wait_until_async

AT_ONCE, PAYING = 40, 10
"""Of one batch; so many of them at least make payments, which are orphaned for a short moment only."""
BATCHES, BATCHES_OF_A_SOAK = 5, 25
KILLS_MIN, KILLS_MAX = 1, 4
"""Of one batch, beyond the first one."""
BEGUN_BYTES, KILLED_BYTES_MAX = 100_000, 200_000
"""Of history that a life writes before it is killed: about as much as a batch has written once it is well under way,
and half of what one writes that nobody disturbs.
"""
END_SECONDS_MAX = 120.0


class Killing:
    """Batches of executions, and the processes of their agent that are killed meanwhile."""

    def __init__(self, on: Ground) -> None:
        self._on = on
        self._number = 0

    async def play(self, choose: random.Random) -> list[Ran]:
        """Run one batch of scenarios, all at once, and return how they ended."""
        client = self._on.client
        paying = [BY_NAME["at-most-once"]] * PAYING
        scenarios = choose.sample([*paying, *choose.choices(SCENARIOS, k=AT_ONCE - PAYING)], AT_ONCE)
        created = [await client.create(each.name, each.given) for each in scenarios]
        async with asyncio.timeout(END_SECONDS_MAX), asyncio.TaskGroup() as group:
            ends = [group.create_task(client.wait(each.id), name=each.id) for each in created]
            group.create_task(self._person(sum(bool(each.verdict) for each in scenarios)))
            await self._live(choose.randint(BEGUN_BYTES, KILLED_BYTES_MAX), ends)
            for _ in range(choose.randint(KILLS_MIN, KILLS_MAX)):
                await self._live(choose.randint(1, KILLED_BYTES_MAX), ends)
            await self._live(None, ends)
        effects = self._on.effects()
        return [
            await read_run(client, scenario, each.id, effects)
            for scenario, each in zip(scenarios, created, strict=True)
        ]

    async def _live(self, bytes_max: int | None, ends: "Sequence[asyncio.Task[Execution]]") -> None:
        """Let a process live until it has written so much of history or everything has ended, and kill it."""
        path = self._on.history_path
        path.touch()
        written = path.stat().st_size
        self._number += 1
        await self._on.lives.begin(
            Order(number=self._number, kernel_url=self._on.kernel.url, folder=str(self._on.folder))
        )
        await wait_until_async(
            lambda: all(end.done() for end in ends) or (bytes_max and path.stat().st_size > written + bytes_max),
            "the agent to come that far",
            deadline_seconds=END_SECONDS_MAX,
        )
        self._on.lives.kill()
        await self._on.lives.ended()
        await self._on.bury(*(end.get_name() for end in ends if not end.done()))

    async def _person(self, count: int) -> None:
        """Decide so many approvals."""

        async def asked() -> list[tuple[str, Scenario]]:
            return [(each.id, BY_NAME[each.agent_id]) for each in await self._on.client.list_approvals()]

        for _ in range(count):
            pending: list[tuple[str, Scenario]] = await wait_until_async(
                asked, "an approval to be asked for", deadline_seconds=END_SECONDS_MAX
            )
            approval_id, scenario = pending[0]
            await decide(self._on.client, scenario, approval_id)


async def _survive(folder: Path, seed: int, batches: int) -> None:
    async with ground("tests.sdk.killed_agent", folder) as on:
        for each in SCENARIOS:
            await on.register(each.name, secret=SECRET, path=f"/{each.name}", policy=each.policy)
        killing = Killing(on)
        runs: list[Ran] = []
        for batch in range(batches):
            runs += await killing.play(random.Random(f"{seed}/{batch}"))
        history = on.history()

    found = findings(runs, history)
    assert not found, "\n".join(found)
    # Else nobody would see that the kills have met nothing.
    assert len(_interrupted(history)) > len(runs) // 4
    assert _repeated(runs) > 0


def _interrupted(history: list[Line]) -> set[str]:
    """Return the executions that more than one attempt has worked on."""
    return {line.execution_id for line in history if isinstance(line, Delivered) and line.attempt > 1}


def _repeated(runs: list[Ran]) -> int:
    """Return how many effects happened again because of a kill."""
    return sum(len(run.effects) - len({each.step_id for each in run.effects}) for run in runs)


async def test_two_hundred_runs_with_random_kills_keep_every_promise(tmp_path: Path, seed: int) -> None:
    await _survive(tmp_path, seed, BATCHES)


@pytest.mark.soak
async def test_a_thousand_runs_with_random_kills_keep_every_promise(tmp_path: Path, seed: int) -> None:
    await _survive(tmp_path, seed, BATCHES_OF_A_SOAK)


async def test_an_execution_that_nobody_works_on_cannot_be_taken_away() -> None:
    async def handle() -> str:
        return await step("ask", lambda: "answered")

    policy = "rules: [{id: ask, when: {target: ask}, then: {decision: require_approval}}]"
    async with LocalKernel() as kernel:
        running = await kernel.start(handle, policy=policy)
        approval = await running.approval()
        await asyncio.to_thread(kernel.kernel.end_lease, running.execution_id)
        await kernel.client.grant_approval(approval.id)
        run = await running.wait()
        await asyncio.to_thread(kernel.kernel.end_lease, running.execution_id)

    assert run.output == "answered"
