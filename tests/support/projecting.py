"""Projectors over memory adapters: a log to append to, a view to look into, and everything that can go wrong."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from kernel.log.memory import MemoryLog
from kernel.log.memory_wakes import MemoryWakes
from kernel.ports import LogMessage, Outgoing
from kernel.settings import Settings
from kernel.view.memory import MemoryView
from tests.support.wait import wait_until_async
from workers.projector import Projector

SETTINGS = Settings(shards=1, nats_url="", redis_url="", owner_ttl_seconds=0.4, lease_seconds=10)


class Projection:
    """One shard, any number of projectors. Every assertion about the view goes through `state`."""

    def __init__(self, *, shards: int = 1, now: int | None = None) -> None:
        """The broker's clock stands at `now` (unix microseconds), the time of making it where none is given."""
        self.now = time.time_ns() // 1000 if now is None else now
        self.settings = replace(SETTINGS, shards=shards)
        self.log = MemoryLog(shards=shards, clock=lambda: self.now)
        self.view = MemoryView()
        self.wakes = MemoryWakes()

    @asynccontextmanager
    async def projector(self, name: str = "projector") -> AsyncIterator[Projector]:
        """Run one more projector for the length of the block."""
        projector = Projector(settings=self.settings, log=self.log, view=self.view, wakes=self.wakes, name=name)
        running = asyncio.create_task(projector.run(), name=name)
        try:
            yield projector
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    async def append(self, *entries: Outgoing) -> None:
        for entry in entries:
            await self.log.append(entry, timeout_seconds=5)

    async def level(self, shard: int = 0) -> None:
        """Wait until the view reflects the whole log and readers are let in."""
        head = (await self.log.state(shard)).last_seq

        def is_level() -> bool:
            state = self.view.shard(shard)
            return state.watermark is not None and state.watermark.seq == head and not state.is_rebuilding

        await wait_until_async(is_level, "the view to be level with the log")

    async def damaged(self, seq: int, **changes: object) -> LogMessage:
        """Replace the message at a sequence by one that differs, as a bad disk would."""
        message = await self.log.get(0, seq)
        assert message is not None
        damaged = replace(message, **changes)
        self.log.replace(damaged)
        return message

    def contents(self, shard: int = 0) -> dict[str, object]:
        """Return what a rebuild has to bring back: fields, directory, due work, create keys, parked entries.

        Times of leases are not among it, nor is what only Redis knows.
        """
        state = self.view.shard(shard)
        due = {member: None if member.startswith("lease/") else at for member, at in state.due.items()}
        return {
            "hashes": {place: dict(fields) for place, fields in state.hashes.items()},
            "directory": dict(state.directory),
            "due": due,
            "leases": dict(state.leases),
            "create_keys": dict(state.create_keys),
            "parked": dict(state.parked),
            "watermark": state.watermark,
        }
