"""What the tests of ruined logs share: files of a stream, the return of the broker, and how the kernel refuses."""

import asyncio
from pathlib import Path

import httpx

from kernel.domain.identity import shard_of
from kernel.log.naming import stream_name
from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.kernel import Kernel
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

SHARDS = 8
BUDGET_SECONDS = 3.0
SETTINGS = {"STEPWELL_NO_POLICY": "allow", "STEPWELL_REQUEST_BUDGET": f"{BUDGET_SECONDS}s"}
"""What cannot be answered is refused soon."""


async def lease_in(agent: Agent, *, shard: int | None = None, not_in: int | None = None) -> Lease:
    """A lease of an execution in this shard, or in any other than that one."""
    while True:
        lease = await agent.acknowledged()
        found = shard_of(lease.execution_id, SHARDS)
        if found != not_in and shard in (None, found):
            return lease


def blocks(stack: Stack, shard: int) -> list[Path]:
    folder = stack.folder / "nats" / "jetstream" / "$G" / "streams" / stream_name(shard) / "msgs"
    return sorted(folder.glob("*.blk"))


async def restarted(stack: Stack, kernel: Kernel) -> None:
    await asyncio.to_thread(stack.restart, "nats")

    async def is_ready() -> bool:
        return (await kernel.get("/v0/ready")).status_code == 200

    await wait_until_async(is_ready, "the door to be ready", deadline_seconds=30)


async def says(stack: Stack, words: str) -> None:
    await wait_until_async(lambda: words in stack.logs()["server"], f"the log to say {words!r}", deadline_seconds=30)


def assert_refused(response: httpx.Response, *statuses: int) -> None:
    assert response.status_code in statuses, response.text
    assert int(response.headers["retry-after"]) >= 1
