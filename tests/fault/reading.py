"""Everything that is on record at the end of a run, read back over the wire as the checker wants it."""

import asyncio
from collections.abc import Sequence

from tests.conformance.harness.kernel import Kernel
from tests.fault.caller import text_of
from tests.fault.history import EventRead, ExecutionRead, StepRead

READERS = 16


async def read_back(kernel: Kernel, agent_ids: Sequence[str]) -> list[ExecutionRead]:
    """Every execution of these agents that the kernel knows, whoever was told of it."""
    room = asyncio.Semaphore(READERS)

    async def read(execution_id: str) -> ExecutionRead:
        async with room:
            return await _read(kernel, execution_id)

    execution_ids = [found for agent_id in agent_ids for found in await _listed(kernel, agent_id)]
    return await asyncio.gather(*(read(each) for each in execution_ids))


async def _listed(kernel: Kernel, agent_id: str) -> list[str]:
    found: list[str] = []
    query: dict[str, object] = {"agent_id": agent_id, "limit": 200}
    while True:
        page = (await kernel.get("/v0/executions", **query)).json()
        found += [execution["id"] for execution in page["executions"]]
        if "next_cursor" not in page:
            return found
        query["cursor"] = page["next_cursor"]


async def _read(kernel: Kernel, execution_id: str) -> ExecutionRead:
    execution, steps, events = await kernel.trace(execution_id)
    return ExecutionRead(
        execution_id=execution_id,
        status=execution["status"],
        events=tuple(EventRead(each["event_seq"], each["type"], each["payload"]) for each in events),
        steps=tuple(
            StepRead(
                step_id=step["step_id"],
                kind=step["kind"],
                target=step["target"],
                args_hash=step["args_hash"],
                occurrence=step["occurrence"],
                status=step["status"],
                outcome=_outcome(step["status"], step["result"], step["error"]),
            )
            for step in steps
        ),
        text=text_of([execution, steps, events]),
    )


def _outcome(status: str, result: object, error: object) -> str:
    match status:
        case "succeeded":
            return text_of(result)
        case "failed":
            return text_of(error)
        case _:
            return ""
