"""The scenarios end as they must: on the kernel in this process, on real servers, and replayed after every step."""

from pathlib import Path

import pytest

from stepwell.context import ExecutionContext
from stepwell.testing import LocalKernel
from stepwell.testing.local import Replay
from tests.sdk.conftest import Serve, Served
from tests.sdk.effects import Sink, telling_steps
from tests.sdk.judging import Ran, decide, findings, read_run
from tests.sdk.scenarios import SCENARIOS, Scenario
from tests.support.wait import wait_until_async

pytestmark = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sink:
    monkeypatch.setattr(ExecutionContext, "_perform", telling_steps())
    return Sink(tmp_path / "effects.jsonl")


@pytest.mark.parametrize("replay", ["needed", "always"])
async def test_on_the_kernel_in_this_process(scenario: Scenario, replay: Replay, sink: Sink) -> None:
    async with LocalKernel() as kernel:
        running = await kernel.start(scenario.handler(sink), scenario.given, policy=scenario.policy, replay=replay)
        if scenario.verdict:
            await decide(kernel.client, scenario, (await running.approval()).id)
        await running.wait()
        ran = await read_run(kernel.client, scenario, running.execution_id, sink.effects())

    _went_undisturbed(ran)


async def test_on_real_servers(scenario: Scenario, serve: Serve, sink: Sink) -> None:
    served = await serve(scenario.handler(sink))
    if scenario.policy:
        await served.policy(scenario.policy)
    created = await served.client.create(served.agent.agent_id, scenario.given)
    if scenario.verdict:
        await decide(served.client, scenario, await _asked(served, created.id))
    await served.client.wait(created.id, timeout=30)
    ran = await read_run(served.client, scenario, created.id, sink.effects())

    _went_undisturbed(ran)


def _went_undisturbed(ran: Ran) -> None:
    """Nobody was killed: every step has an outcome, and every effect happened once."""
    assert findings([ran]) == []
    assert {step.status for step in ran.steps} <= {"succeeded", "failed", "denied"}
    ending = ran.scenario.ending(ran.steps)
    assert ending.perhaps == ()
    assert sorted(each.name for each in ran.effects) == sorted(ending.effects)


async def _asked(served: Served, execution_id: str) -> str:
    """Return the approval that the execution waits for, once it does."""

    async def found() -> str:
        approvals = await served.client.list_approvals()
        return next((each.id for each in approvals if each.execution_id == execution_id), "")

    return await wait_until_async(found, "an approval to be asked for")
