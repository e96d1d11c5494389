"""What tests of control stand on: a log that can be damaged, a clock that stands still, entries."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from kernel.control.control import Control
from kernel.control.sealing import Sealer
from kernel.log.memory import MemoryLog
from kernel.ports import ControlMessage
from schemas.control import AgentDeleted, AgentPut
from schemas.ids import new_uuid7

SECONDS = 5.0
POLL_SECONDS = 0.01


class Clock:
    """A monotonic clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class DamagedLog(MemoryLog):
    """A log whose control stream has lost records, was created anew, or does not answer."""

    def __init__(self) -> None:
        super().__init__(shards=1)
        self.lost_seqs: set[int] = set()
        self.is_anew = False
        self.keeps_silent = False

    async def control_head(self) -> int:
        if self.keeps_silent:
            await asyncio.Event().wait()
        return 0 if self.is_anew else await super().control_head()

    async def read_control(self, *, after_seq: int) -> list[ControlMessage]:
        return [each for each in await super().read_control(after_seq=after_seq) if each.seq not in self.lost_seqs]


@asynccontextmanager
async def following(*controls: Control) -> AsyncGenerator[None]:
    """Each of them runs, and is level at the beginning."""
    tasks = [asyncio.create_task(control.run()) for control in controls]
    try:
        for control in controls:
            await control.level(timeout_seconds=SECONDS)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def put(sealer: Sealer, agent_id: str = "a", *, tenant: str = "default", text: str = "first") -> AgentPut:
    return AgentPut(
        id=new_uuid7(),
        at=1,
        by="api",
        tenant=tenant,
        agent_id=agent_id,
        webhook_url="https://b.example",
        secret=sealer.seal(text.encode(), tenant=tenant, agent_id=agent_id, field="secret"),
    )


def deleted(agent_id: str = "a", *, tenant: str = "default") -> AgentDeleted:
    return AgentDeleted(id=new_uuid7(), at=1, by="api", tenant=tenant, agent_id=agent_id)


async def append(log: MemoryLog, payload: bytes) -> None:
    await log.append_control(entry_id=new_uuid7(), payload=payload, timeout_seconds=SECONDS)
