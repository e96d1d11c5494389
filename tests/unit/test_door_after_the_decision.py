"""What fails after the fold has decided is no refusal: the request happened, and 503 would say that it did not."""

from collections.abc import Callable

from kernel.ports import answers_channel
from tests.support.door import MemoryRig, rig_in_memory

LARGE = "x" * 9_000
"""Above what the view keeps inline, so it has to be fetched from the log."""


async def when_answered(rig: MemoryRig, fault: Callable[[], None]) -> None:
    """Let something happen right after the door heard of the next decision, before it goes on."""

    def heard(_: bytes) -> None:
        fault()

    await rig.wakes.listen(answers_channel(rig.name), heard)


async def test_a_create_whose_record_cannot_be_read_is_not_refused_as_undone() -> None:
    async with rig_in_memory(budget_seconds=1.0) as rig:
        await rig.register()

        def lose_view() -> None:
            rig.memory_view.is_unavailable = True

        await when_answered(rig, lose_view)

        response = await rig.call("POST", "/v0/executions", json={"agent_id": "agent"})

        assert response.status_code == 504, response.text
        assert response.json()["code"] == "outcome_unknown"


async def test_a_replay_whose_result_cannot_be_fetched_is_not_refused_as_undone() -> None:
    async with rig_in_memory(budget_seconds=1.0) as rig:
        await rig.register()
        run = await rig.started()
        step_id = await run.proceed()
        await run.complete_step(step_id, LARGE)
        await rig.expire(run)
        run.lease = await rig.claim(run.execution_id)
        await when_answered(rig, rig.memory_log.go_offline)

        response = await run.submit()

        assert response.status_code == 504, response.text
