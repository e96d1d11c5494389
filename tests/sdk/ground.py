"""A kernel in this process, and its agents in processes that come and go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import msgspec

from kernel.inprocess import DEFAULTS, InProcessKernel
from stepwell import Client
from tests.fault.history import Line
from tests.sdk.chronicle import read_history
from tests.sdk.effects import Happened, Sink
from tests.sdk.lives import Lives

PATIENT_LEASE_SECONDS = 30.0
"""No such lease runs out by itself, however slow the machine is: after a kill the test ends those of the dead."""


class Ground:
    """Made by `ground`. `folder` is where the processes write down what happens."""

    def __init__(self, kernel: InProcessKernel, client: Client, lives: Lives, folder: Path) -> None:
        self.kernel = kernel
        self.client = client
        self.lives = lives
        self.folder = folder

    async def register(self, agent_id: str, *, secret: str, path: str = "/webhook", policy: str = "") -> None:
        """Let the processes be an agent."""
        url = f"http://127.0.0.1:{self.lives.port}{path}"
        bodies = {"/v0/agents": {"id": agent_id, "webhook_url": url, "secret": secret}}
        if policy:
            bodies[f"/v0/policies/{agent_id}"] = {"bundle": policy}
        async with httpx.AsyncClient(base_url=self.kernel.url, trust_env=False) as http:
            for address, body in bodies.items():
                (await http.post(address, json=body)).raise_for_status()

    async def bury(self, *execution_ids: str) -> None:
        """End the leases that a process which has ended held of these executions."""
        await asyncio.gather(*(asyncio.to_thread(self.kernel.end_lease, each) for each in execution_ids))

    def effects(self) -> list[Happened]:
        return Sink(self.folder / "effects.jsonl").effects()

    @property
    def history_path(self) -> Path:
        return self.folder / "history.jsonl"

    def history(self) -> list[Line]:
        return read_history(self.history_path)


@asynccontextmanager
async def ground(program: str, folder: Path, *, lease_seconds: float = PATIENT_LEASE_SECONDS) -> AsyncIterator[Ground]:
    """`program` is the module that the agents' processes run."""
    kernel = InProcessKernel(msgspec.structs.replace(DEFAULTS, lease_seconds=lease_seconds))
    async with AsyncExitStack() as ending:
        lives = await Lives.start(program, folder / "agent.log")
        ending.push_async_callback(lives.close)
        await asyncio.to_thread(kernel.start)
        ending.push_async_callback(asyncio.to_thread, kernel.stop)
        client = await ending.enter_async_context(Client(kernel.url, ""))
        yield Ground(kernel, client, lives, folder)
