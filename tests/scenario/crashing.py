"""What the crash cases share: effects outside of the kernel, `kill -9` and return, and requests that are repeated."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from kernel.domain.identity import shard_of
from kernel.log.jetstream import JetStreamLog
from schemas.entries import StepCompleted, decode_entry
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

SHARDS = 8
# A claim whose dispatcher was killed is due again 45 s later, after an outage a lease later, and may be lost anew.
REDELIVERY_SECONDS_MAX = 120.0
PROCESSES = ("projector", "dispatcher", "door", "door-2")


class Sink:
    """Where effects happen: a file that no process of the kernel knows."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def run(self, effect: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{effect}\n")

    def effects(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []


async def kill(stack: Stack, names: tuple[str, ...]) -> None:
    """`kill -9`, all at the same moment."""
    await asyncio.gather(*(asyncio.to_thread(stack.kill, name) for name in names))


async def restart(stack: Stack, names: tuple[str, ...]) -> None:
    """The servers first: no process gets ready without them."""
    for group in (set(names) - set(PROCESSES), set(names) & set(PROCESSES)):
        await asyncio.gather(*(asyncio.to_thread(stack.restart, name) for name in group))


async def until_completed_in_log(log: JetStreamLog, execution_id: str, start_seq: int) -> None:
    """Wait for a step's completion by this execution behind that place, whoever has folded it or not."""
    shard = shard_of(execution_id, SHARDS)

    async def has_it() -> bool:
        last_seq = (await log.state(shard)).last_seq
        messages = [await log.get(shard, seq) for seq in range(start_seq + 1, last_seq + 1)]
        return any(
            each is not None
            and each.execution_id == execution_id
            and isinstance(decode_entry(each.payload), StepCompleted)
            for each in messages
        )

    await wait_until_async(has_it, "the complete to be in the log")


async def patiently(send: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """The same request with its key, signed anew, until it is answered for good."""

    async def sent() -> httpx.Response | None:
        response = await send()
        return None if response.status_code in {503, 504} else response

    response = await wait_until_async(
        sent, "an answer", deadline_seconds=REDELIVERY_SECONDS_MAX, retry_on=httpx.TransportError
    )
    assert response is not None
    return response
