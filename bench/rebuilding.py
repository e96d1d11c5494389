"""The projector by itself: how fast it folds a log anew, and what a second one adds."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

from bench.processes import LOOK_SECONDS, Processes
from bench.ratios import ROUNDS, Bar, Row, say
from bench.submissions import Submissions
from kernel.log.jetstream import JetStreamLog
from kernel.view.client import Client
from kernel.view.commands import parse_watermark
from kernel.view.keys import shard_keys
from kernel.view.limits import ViewLimits

SHARDS = 8
LEVEL_SECONDS_MAX = 120.0


class Rebuilding:
    """What is seen of log and view from outside. Made by `open`."""

    def __init__(self, processes: Processes, log: JetStreamLog, client: Client) -> None:
        self.log = log
        self.client = client
        self._processes = processes

    @classmethod
    @asynccontextmanager
    async def open(cls, processes: Processes) -> AsyncIterator["Rebuilding"]:
        log = await JetStreamLog.connect(processes.servers.nats.url, shards=SHARDS, name="bench")
        client = Client(processes.servers.valkey.url, ViewLimits())
        try:
            yield cls(processes, log, client)
        finally:
            await client.close()
            await log.close()

    async def row(self, written: Sequence[float]) -> Row:
        """Compare rebuilds of all that is in the log with the rate at which submissions put it there."""
        rates: list[float] = []
        for number in range(1, ROUNDS + 1):
            rates.append(await self._rebuild_rate())
            say(f"round {number}: rebuild: {rates[-1]:,.0f} entries/s")
        return Row("rebuild / when written", rates, written, "entries/s", Bar(3, 10))

    async def entries(self) -> int:
        """Return how many entries the log holds."""
        return sum(await self._heads())

    async def level(self) -> None:
        """Return when the view reflects the whole log and readers are let in."""
        heads = await self._heads()
        async with asyncio.timeout(LEVEL_SECONDS_MAX):
            while any(seen < head for seen, head in zip(await self._seen(), heads, strict=True)):  # noqa: ASYNC110 - see below
                # What another process does announces nothing.
                await asyncio.sleep(LOOK_SECONDS)

    async def _rebuild_rate(self) -> float:
        """Empty the view and return the entries per second from the first batch to the last."""
        heads = await self._heads()
        await self.level()
        await self.client.call("FLUSHALL")
        begun_at, begun_with = 0.0, 0
        async with asyncio.timeout(LEVEL_SECONDS_MAX):
            while True:
                done = sum(await self._seen(is_while_rebuilding=True))
                now = time.perf_counter()
                if begun_with == 0 and done > 0:
                    begun_at, begun_with = now, done
                if done >= sum(heads):
                    break
                await asyncio.sleep(LOOK_SECONDS / 5)
        await self.level()
        return (sum(heads) - begun_with) / (now - begun_at)

    async def _heads(self) -> list[int]:
        return [(await self.log.state(shard)).last_seq for shard in range(SHARDS)]

    async def _seen(self, *, is_while_rebuilding: bool = False) -> list[int]:
        """Return the watermark of every shard; 0 for one that is lost, and for one that nobody may read yet."""
        keys = [shard_keys(shard) for shard in range(SHARDS)]
        replies = await self.client.pipeline([("MGET", each.watermark, each.rebuilding, each.dirty) for each in keys])
        seen: list[int] = []
        for watermark, rebuilding, dirty in cast("list[list[bytes | None]]", replies):
            found = parse_watermark(watermark)
            is_open = is_while_rebuilding or (rebuilding is None and dirty is None)
            seen.append(found.seq if found is not None and is_open else 0)
        return seen

    # ------------------------------------------------------------ two projectors

    async def two_projectors_row(self, submissions: Submissions) -> Row:
        """Compare submissions with the shards shared by two projectors with those of one."""
        two: list[float] = []
        one: list[float] = []
        for number in (1, 2):
            await self._processes.start("projector-2", "projector")
            await self._until_owners(2)
            two.append(await submissions.rate())
            await self._processes.stop("projector-2")
            await self._until_owners(1)
            one.append(await submissions.rate())
            say(f"round {number}: two projectors: {two[-1]:,.0f} /s, one: {one[-1]:,.0f} /s")
        return Row("two projectors / one", two, one, "submissions/s")

    async def _until_owners(self, count: int) -> None:
        """Wait until the shards are shared evenly by so many projectors."""
        share = SHARDS // count
        async with asyncio.timeout(LEVEL_SECONDS_MAX):
            while True:
                replies = await self.client.pipeline([("GET", shard_keys(shard).owner) for shard in range(SHARDS)])
                owners = [_owner(cast("bytes | None", reply)) for reply in replies]
                if b"" not in owners and {owners.count(owner) for owner in owners} == {share}:
                    return
                await asyncio.sleep(LOOK_SECONDS)


def _owner(token: bytes | None) -> bytes:
    """Return the name at the beginning of a fence, empty where nobody holds it."""
    name = (token or b"").partition(b"/")[0]
    return name if name.startswith(b"projector") else b""
