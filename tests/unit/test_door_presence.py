"""A door's sign of life: it says that it lives only while it could answer a heartbeat."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from kernel.control.control import Control
from kernel.control.sealing import Sealer
from kernel.domain.errors import LogUnavailable
from kernel.door.freshness import Freshness
from kernel.door.gate import Gate
from kernel.door.presence import Presence
from kernel.log.memory import MemoryLog
from kernel.ports import LogState
from kernel.settings import Settings
from kernel.view.memory import MemoryView
from tests.support.wait import wait_until_async

SETTINGS = Settings(shards=2, nats_url="", redis_url="")


class LookedAt(MemoryView):
    """A view that counts how often it was looked after, which every pulse does after its beat."""

    looks = 0

    async def check(self) -> None:
        self.looks += 1
        await super().check()


class PartlyAway(MemoryLog):
    """A log some of whose shards cannot be asked."""

    def __init__(self) -> None:
        super().__init__(shards=SETTINGS.shards)
        self.away: set[int] = set()

    async def state(self, shard: int) -> LogState:
        if shard in self.away:
            raise LogUnavailable("the log did not answer")
        return await super().state(shard)


class Rig:
    """A presence whose control stream nobody follows yet."""

    def __init__(self) -> None:
        self.view = LookedAt()
        self.log = PartlyAway()
        self.control = Control(self.log, Sealer("a master key of the tests"))
        self.freshness = Freshness(SETTINGS.shards)
        gate = Gate(log=self.log, skew_seconds_max=1.0)
        self.presence = Presence(
            settings=SETTINGS,
            log=self.log,
            view=self.view,
            control=self.control,
            freshness=self.freshness,
            gate=gate,
        )

    def has_beaten(self, shard: int) -> bool:
        return self.view.shard(shard).beat_at is not None


@asynccontextmanager
async def running(life: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Let one of the endless parts run for the length of the block."""
    task = asyncio.create_task(life)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_door_that_may_not_decide_does_not_say_that_it_lives() -> None:
    rig = Rig()
    async with running(rig.presence.run()):
        await wait_until_async(lambda: rig.freshness.is_known, "the floors to be known")
        looks = rig.view.looks
        await wait_until_async(lambda: rig.view.looks > looks, "one more pulse")
        assert not any(rig.has_beaten(shard) for shard in range(SETTINGS.shards))

        async with running(rig.control.run()):
            await wait_until_async(lambda: all(map(rig.has_beaten, range(SETTINGS.shards))), "the door to live")


async def test_a_door_does_not_say_that_it_lives_for_a_shard_it_may_not_read() -> None:
    rig = Rig()
    rig.log.away.add(1)
    async with running(rig.control.run()), running(rig.presence.run()):
        await wait_until_async(lambda: rig.has_beaten(0), "the door to live for shard 0")
        assert not rig.has_beaten(1)

        rig.log.away.clear()

        await wait_until_async(lambda: rig.has_beaten(1), "the door to live for shard 1")
