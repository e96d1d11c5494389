"""What the contract suite of the view does to an adapter from outside: let time pass, break things, look inside."""

from abc import ABC, abstractmethod
from typing import Any

from redis.asyncio import Redis

from kernel.ports import Ownership, View, Watermark
from kernel.view.memory import MemoryView
from schemas.records import Header
from tests.support.records import LEASE_MS, STREAM_CREATED_AT, change, make_batch

SHARD = 3
TTL_MS = 60_000
HOLD_MS = 5_000
SILENCE_MS = 5_000

# What a rebuild does not bring back, and the watermark, which is compared by itself.
_NOT_REBUILT = (b"owner", b"epoch", b"floor", b"doors", b"polled", b"watermark")

_MEMORY_STARTS_AT_MS = 1_800_000_000_000


class MemoryClock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now_ms = _MEMORY_STARTS_AT_MS

    def __call__(self) -> int:
        return self.now_ms


class ViewHarness(ABC):
    """One adapter under test."""

    view: View

    @abstractmethod
    async def now_ms(self) -> int:
        """The time of the view's own clock."""

    @abstractmethod
    async def pass_time(self, ms: int) -> None:
        """Let everything in the view become older, as if the time had passed."""

    @abstractmethod
    async def break_next_apply(self, shard: int = SHARD) -> None:
        """Let the next batch of the shard fail in the middle. It has to hold a new execution."""

    @abstractmethod
    async def repair(self, shard: int = SHARD) -> None:
        """Take away what `break_next_apply` left behind."""

    @abstractmethod
    async def lose_everything(self) -> None: ...

    @abstractmethod
    async def remember(self) -> None:
        """Keep a copy of all there is, for `go_back`."""

    @abstractmethod
    async def go_back(self) -> None: ...

    @abstractmethod
    async def parked(self, shard: int = SHARD) -> dict[int, str]: ...

    async def own(self, shard: int = SHARD, *, ttl_ms: int = TTL_MS) -> Ownership:
        """Take a free shard, make it an empty one that readers may read, and let doors and dispatchers live."""
        ownership = await self.take(shard, ttl_ms=ttl_ms)
        await self.view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0)
        await self.view.apply(ownership, make_batch(0, 0))
        await self.show_life(shard)
        return ownership

    async def take(
        self, shard: int = SHARD, *, owner: str = "one", ttl_ms: int = TTL_MS, lease_ms: int = 0
    ) -> Ownership:
        ownership = await self.view.acquire(shard, owner=owner, ttl_ms=ttl_ms, lease_ms=lease_ms)
        assert ownership is not None
        return ownership

    async def move(self, ownership: Ownership, before: Header, after: Header) -> None:
        """Apply the second batch of a shard: one execution goes on."""
        await self.view.apply(ownership, make_batch(1, 2, change(after, before=before)))

    async def watermark(self, ownership: Ownership) -> Watermark | None:
        return (await self.view.keep(ownership, ttl_ms=TTL_MS)).watermark

    async def show_life(self, shard: int = SHARD) -> None:
        """Do what doors and dispatchers do all the time, without taking anything."""
        await self.view.beat([shard])
        await self.view.take_due(shard, items_max=0, hold_ms=0, lease_ms=0)

    async def live_for(self, ms: int) -> None:
        """Let time pass during which doors and dispatchers are alive."""
        while ms > 0:
            step_ms = min(ms, SILENCE_MS - 1_000)
            await self.pass_time(step_ms)
            await self.show_life()
            ms -= step_ms

    async def take_due(self, *, items_max: int = 100, lease_ms: int = LEASE_MS) -> list[tuple[str, str, str]]:
        """Take due work and return kind, tenant and execution id of each item."""
        work = await self.view.take_due(SHARD, items_max=items_max, hold_ms=HOLD_MS, lease_ms=lease_ms)
        return [(item.kind, item.tenant, item.execution_id) for item in work.items]


class MemoryHarness(ViewHarness):
    def __init__(self) -> None:
        self._clock = MemoryClock()
        self._memory = MemoryView(clock=self._clock)
        self._snapshot: object = None
        self.view = self._memory

    async def now_ms(self) -> int:
        return self._clock.now_ms

    async def pass_time(self, ms: int) -> None:
        self._clock.now_ms += ms

    async def break_next_apply(self, shard: int = SHARD) -> None:
        self._memory.fail_next_apply(shard)

    async def repair(self, shard: int = SHARD) -> None:
        pass

    async def lose_everything(self) -> None:
        self._memory.lose_everything()

    async def remember(self) -> None:
        self._snapshot = self._memory.snapshot()

    async def go_back(self) -> None:
        self._memory.go_back(self._snapshot)

    async def parked(self, shard: int = SHARD) -> dict[int, str]:
        return self._memory.shard(shard).parked


class RedisHarness(ViewHarness):
    """`redis` is a connection of the test's own to the server that the view uses."""

    def __init__(self, view: View, redis: Redis) -> None:
        self.view = view
        # The driver types every reply as text or bytes or both; here all are bytes.
        self._redis: Any = redis
        self._copies: list[tuple[bytes, int, bytes]] = []

    async def now_ms(self) -> int:
        seconds, microseconds = await self._redis.time()
        return seconds * 1000 + microseconds // 1000

    async def pass_time(self, ms: int) -> None:
        # The scripts compare times that they wrote with the server's clock, so older times are a later clock.
        for key in await self._redis.keys("*"):
            name = key.rpartition(b":")[2]
            if name in (b"due", b"slices", b"projectors") or b":slots:" in key:
                for member, score in await self._redis.zrange(key, 0, -1, withscores=True):
                    await self._redis.zadd(key, {member: score - ms})
            elif name in (b"floor", b"polled"):
                await self._redis.decrby(key, ms)
            elif name == b"doors":
                beat_at, silent_until = (int(part) for part in (await self._redis.get(key)).split(b"/"))
                await self._redis.set(key, f"{max(0, beat_at - ms)}/{max(0, silent_until - ms)}")
            elif b":rate:" in key:
                value = await self._redis.get(key)
                if value is None:
                    # The bucket of a window this short was full again, and forgotten, since the keys were listed.
                    continue
                parts, at = value.split(b"/")
                await self._redis.set(key, b"%b/%d" % (parts, int(at) - ms), keepttl=True)
            left_ms = await self._redis.pttl(key)
            if left_ms >= 0:
                await self._redis.pexpire(key, left_ms - ms)

    async def break_next_apply(self, shard: int = SHARD) -> None:
        # The last thing that a new execution writes is the removal of its mark, which a text in that place refuses.
        await self._redis.set(f"{{s{shard}}}:marks", "not a set")

    async def repair(self, shard: int = SHARD) -> None:
        await self._redis.delete(f"{{s{shard}}}:marks")

    async def lose_everything(self) -> None:
        await self._redis.flushall()

    async def remember(self) -> None:
        self._copies = [
            (key, await self._redis.pttl(key), await self._redis.dump(key)) for key in await self._redis.keys("*")
        ]

    async def go_back(self) -> None:
        await self._redis.flushall()
        for key, ttl_ms, dump in self._copies:
            await self._redis.restore(key, max(0, ttl_ms), dump)

    async def parked(self, shard: int = SHARD) -> dict[int, str]:
        found = await self._redis.hgetall(f"{{s{shard}}}:parked")
        return {int(seq): reason.decode() for seq, reason in found.items()}

    async def contents(self) -> dict[bytes, object]:
        """All that a rebuild has to bring back, key by key. Times of leases, which run from now, are left out."""
        found: dict[bytes, object] = {}
        for key in await self._redis.keys("*"):
            name = key.rpartition(b":")[2]
            kind = await self._redis.type(key)
            if name in _NOT_REBUILT:
                continue
            if kind == b"zset":
                members = await self._redis.zrange(key, 0, -1, withscores=True)
                found[key] = {member: None if member.startswith(b"lease/") else at for member, at in members}
            elif kind == b"hash":
                found[key] = await self._redis.hgetall(key)
            elif kind == b"set":
                found[key] = await self._redis.smembers(key)
            else:
                found[key] = await self._redis.get(key)
        return found
