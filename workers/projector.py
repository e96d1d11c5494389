"""A projector: owns a fair share of the shards, one task each, and takes over those whose owner died."""

import asyncio
import logging
import math

from kernel.domain.errors import KernelError, OwnershipLost
from kernel.ports import Log, ProjectorView, Wakes
from kernel.settings import Settings
from workers.projecting.batch import ShardStopped, VersionUnknown
from workers.projecting.shard import ShardOwner

logger = logging.getLogger(__name__)

STOPPED_PAUSE_SECONDS = 5.0
"""How long a shard that cannot be folded is left alone before it is looked at again."""


class Projector:
    """Folds the log into the view. Any number of projectors may run; each shard has one owner at a time."""

    def __init__(self, *, settings: Settings, log: Log, view: ProjectorView, wakes: Wakes, name: str) -> None:
        self._settings = settings
        self._log = log
        self._view = view
        self._wakes = wakes
        self._name = name
        self._owned: dict[int, asyncio.Task[None]] = {}
        self._leaving: set[int] = set()

    @property
    def owned(self) -> tuple[int, ...]:
        """The shards this projector owns now."""
        return tuple(sorted(self._owned))

    async def run(self) -> None:
        """Share the shards with the other projectors until cancelled; then hand them over."""
        ttl_ms = int(self._settings.owner_ttl_seconds * 1000)
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    await self._balance(tasks, ttl_ms)
                except KernelError as error:
                    logger.warning("the shards could not be shared: %s", error)
                await asyncio.sleep(self._settings.owner_ttl_seconds / 8)

    async def _balance(self, tasks: asyncio.TaskGroup, ttl_ms: int) -> None:
        """Take free shards up to a fair share, and let go of what is more, one at a time."""
        shards = self._settings.shards
        living = max(await self._view.announce_projector(self._name, ttl_ms=ttl_ms), 1)
        share = math.ceil(shards / living)
        staying = self._owned.keys() - self._leaving
        if len(staying) > share:
            self._leaving.add(max(staying))
            self._owned[max(staying)].cancel()
        for shard in range(shards):
            if len(self._owned) >= share:
                break
            if shard not in self._owned:
                await self._try_to_own(tasks, shard, ttl_ms)

    async def _try_to_own(self, tasks: asyncio.TaskGroup, shard: int, ttl_ms: int) -> None:
        lease_ms = int(self._settings.lease_seconds * 1000)
        ownership = await self._view.acquire(shard, owner=self._name, ttl_ms=ttl_ms, lease_ms=lease_ms)
        if ownership is None:
            return
        owner = ShardOwner(ownership, settings=self._settings, log=self._log, view=self._view, wakes=self._wakes)
        self._owned[shard] = tasks.create_task(self._own(owner, shard), name=f"shard-{shard}")

    async def _own(self, owner: ShardOwner, shard: int) -> None:
        """Run one shard to its end, whatever that is, and give it back."""
        try:
            await owner.run()
        except OwnershipLost as error:
            logger.warning("shard %d is another projector's now: %s", shard, error)
        except (ShardStopped, VersionUnknown) as error:
            logger.critical("%s", error)
            await asyncio.sleep(STOPPED_PAUSE_SECONDS)
        except Exception:
            # The top of a loop: a bug or a driver must not take the other shards down with it.
            logger.exception("shard %d ends unexpectedly", shard)
            await asyncio.sleep(STOPPED_PAUSE_SECONDS)
        finally:
            try:
                await owner.release()
            finally:
                self._owned.pop(shard, None)
                self._leaving.discard(shard)
