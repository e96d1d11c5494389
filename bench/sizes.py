"""What executions, steps and entries take up, and the memory of every process."""

from typing import Self, cast

import msgspec

from bench.machine import disk_bytes, resident_mib
from bench.processes import Processes
from bench.rebuilding import Rebuilding
from kernel.view.keys import shard_keys

ANSWERS_KEYS = "*:answers:*"
_MIB = 1024 * 1024


class Point(msgspec.Struct, frozen=True):
    """What was there at one time. Stored answers are counted apart: they go after two minutes."""

    entries: int
    executions: int
    view_bytes: int
    answers_bytes: int
    log_disk_bytes: int
    log_memory_mib: float


class Sizes:
    """Made by `open` before there is anything; told when there are executions, and when there are steps."""

    def __init__(self, processes: Processes, rebuilding: Rebuilding) -> None:
        self._processes = processes
        self._rebuilding = rebuilding
        self._points: list[Point] = []

    @classmethod
    async def open(cls, processes: Processes, rebuilding: Rebuilding) -> Self:
        sizes = cls(processes, rebuilding)
        await sizes._take()
        return sizes

    async def executions_made(self) -> None:
        await self._take()

    async def steps_made(self) -> None:
        await self._take()

    async def lines(self) -> list[str]:
        empty, created, worked = self._points
        executions = created.executions - empty.executions
        of_executions = created.entries - empty.entries
        steps = worked.entries - created.entries
        execution_bytes = (created.view_bytes - empty.view_bytes) / executions
        step_bytes = (worked.view_bytes - created.view_bytes) / steps
        answers_bytes = (worked.answers_bytes - created.answers_bytes) / steps
        disk = (worked.log_disk_bytes - empty.log_disk_bytes) / (steps + of_executions)
        memory = (worked.log_memory_mib - created.log_memory_mib) * _MIB / steps
        resident = ", ".join(f"{name} {resident_mib(pid):.0f}" for name, pid in self._processes.pids.items())
        return [
            f"Redis: {execution_bytes:,.0f} bytes an execution without steps, {step_bytes:,.0f} a submission; "
            f"{answers_bytes:,.0f} a stored answer, for two minutes",
            f"NATS: {disk:,.0f} bytes of disk and {memory:,.0f} of memory an entry",
            f"Resident MiB at the end ({await self._rebuilding.entries():,} entries): {resident}",
        ]

    async def _take(self) -> None:
        await self._rebuilding.level()
        client = self._rebuilding.client
        memory = cast("bytes", await client.call("INFO", "memory")).decode()
        used = next(line.partition(":")[2] for line in memory.splitlines() if line.startswith("used_memory:"))
        answers_keys = cast("list[bytes]", await client.call("KEYS", ANSWERS_KEYS))
        answers = await client.pipeline([("MEMORY", "USAGE", key, "SAMPLES", 0) for key in answers_keys])
        hashes = await client.pipeline([("EVAL", _COUNT, 0, shard_keys(shard).executions) for shard in range(8)])
        answers_bytes = sum(cast("list[int]", answers))
        self._points.append(
            Point(
                entries=await self._rebuilding.entries(),
                executions=sum(cast("list[int]", hashes)),
                view_bytes=int(used) - answers_bytes,
                answers_bytes=answers_bytes,
                log_disk_bytes=sum(map(disk_bytes, (self._processes.folder / "nats").rglob("STEPWELL_[0-9]"))),
                log_memory_mib=resident_mib(self._processes.pids["nats"]),
            )
        )


_COUNT = "return #redis.call('KEYS', ARGV[1] .. '*')"
