"""A deterministic event loop: several simulated processes on one thread, in virtual time, in an order a seed chooses.

Each process keeps the order of its own callbacks, as a real event loop does; which process takes its next step is
drawn. Time moves only when no process has anything to do, and then to the next timer.
"""

import asyncio
import heapq
import random
import sys
from asyncio.events import Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import cache
from types import ModuleType
from typing import Any, Literal

_PACKAGES = ("kernel.", "workers.", "schemas.")
_WALL_NS = 1_760_000_000 * 1_000_000_000
_STARTED_AT = 1000.0


class Process:
    """One simulated process: what it has to do next, whether it may, and how far its clock is off."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.state: Literal["running", "frozen", "dead"] = "running"
        self.ready: deque[Handle] = deque()
        self.clock_error_ns = 0
        self.steps_left = -1
        """Steps until `at_the_end` is called; negative: it is not."""
        self.at_the_end: Callable[[], None] | None = None
        self.context: Context = copy_context()
        self.context.run(_PROCESS.set, self)


_PROCESS: ContextVar[Process] = ContextVar("process")


class Stuck(Exception):
    """Nobody has anything to do, now or at any later time."""


class NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that the order within a set of tasks is the same in every run."""

    _number = 0

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """Run by `run_until_complete` as any other loop. `digest` stands for every step taken so far."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.digest = 0
        self.steps = 0
        self.tasks: list[NumberedTask] = []
        """All of them, so that none of an abandoned process is collected, and cleaned up, at some arbitrary moment."""
        self._random = rng.random
        self._now = _STARTED_AT
        self._timers: list[tuple[float, int, TimerHandle, Process]] = []
        self._timer_count = 0
        self._processes: list[Process] = []
        self._runnable: list[Process] = []
        self.outside = self.process("outside")
        """Network, servers and whoever plays the faults."""
        self.current = self.outside
        self.set_task_factory(self._numbered)

    # ------------------------------------------------------------ processes

    def process(self, name: str) -> Process:
        made = Process(name, len(self._processes))
        self._processes.append(made)
        return made

    def start(self, process: Process, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return process.context.copy().run(self.create_task, work)

    def freeze(self, process: Process) -> None:
        """Stop it between two steps; what reaches it meanwhile waits."""
        self._stop(process, "frozen")

    def thaw(self, process: Process) -> None:
        if process.state == "frozen":
            self._let_run(process)

    def kill(self, process: Process) -> None:
        """Stop it for good: none of its code runs any more, no cleanup either."""
        self._stop(process, "dead")

    def failures(self) -> list[BaseException]:
        """Return the exceptions of tasks that nobody has looked at."""
        unseen = [task.exception() for task in self.tasks if task.done() and task._log_traceback]
        return [error for error in unseen if error is not None]

    def let_everything_end(self) -> None:
        """After a run: even the dead may run, so that all tasks can be cancelled in order."""
        for process in self._processes:
            self._let_run(process)

    def _let_run(self, process: Process) -> None:
        if process.state != "running":
            process.state = "running"
            if process.ready:
                self._runnable.append(process)

    def _stop(self, process: Process, state: Literal["frozen", "dead"]) -> None:
        if process.state == "running" and process.ready:
            self._runnable.remove(process)
        if process.state != "dead":
            process.state = state

    # ------------------------------------------------------------ what asyncio calls

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Handle:
        handle = Handle(callback, args, self, context)
        self._put(self._process_of(context), handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> TimerHandle:
        handle = TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle, self._process_of(context)))
        return handle

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """Nothing to do: a cancelled timer is skipped when its time comes."""

    def _process_events(self, event_list: Any) -> None:
        raise NotImplementedError

    def _run_once(self) -> None:
        runnable = self._runnable
        while not runnable:
            self._advance()
        place = int(self._random() * len(runnable))
        process = runnable[place]
        handle = process.ready.popleft()
        if not process.ready:
            runnable[place] = runnable[-1]
            runnable.pop()
        if handle.cancelled():
            return
        self.steps += 1
        self.digest = hash((self.digest, process.number, self._now))
        self.current = process
        handle._run()
        self.current = self.outside
        if process.steps_left >= 0:
            process.steps_left -= 1
            if process.steps_left < 0 and process.at_the_end is not None:
                process.at_the_end()

    def _advance(self) -> None:
        """Go to the next moment at which somebody has something to do."""
        timers = self._timers
        if not timers:
            raise Stuck
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            _, _, handle, process = heapq.heappop(timers)
            if not handle.cancelled():
                self._put(process, handle)

    def _put(self, process: Process, handle: Handle) -> None:
        if not process.ready and process.state == "running":
            self._runnable.append(process)
        process.ready.append(handle)

    def _process_of(self, context: Context | None) -> Process:
        return self.current if context is None else context.get(_PROCESS, self.outside)

    def _numbered(self, _loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None) -> Any:
        task = NumberedTask(work, loop=self, context=context)
        # The loop keeps every task of the run, and none of them is news when it ends with it.
        task._number = len(self.tasks)
        self.tasks.append(task)
        return task


class VirtualTime:
    """What the kernel's modules find under the name `time` while a simulation runs."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.perf_counter = self.monotonic = loop.time

    def true_ns(self) -> int:
        """The right time in unix nanoseconds; servers have it."""
        return _WALL_NS + round(self._loop.time() * 1_000_000_000)

    def time_ns(self) -> int:
        return self.true_ns() + self._loop.current.clock_error_ns

    def time(self) -> float:
        return self.time_ns() / 1_000_000_000


class VirtualSecrets:
    """What the kernel's modules find under the name `secrets`."""

    def __init__(self, rng: random.Random) -> None:
        self.token_bytes = rng.randbytes
        self.randbelow = rng.randrange
        self._rng = rng

    def token_hex(self, size: int) -> str:
        return self._rng.randbytes(size).hex()


@cache
def _importers(name: str) -> tuple[ModuleType, ...]:
    """Return our modules that have the module of that name under its own name."""
    real = sys.modules[name]
    ours = [module for path, module in list(sys.modules.items()) if path.startswith(_PACKAGES)]
    return tuple(module for module in ours if getattr(module, name, None) is real)


@contextmanager
def substituted(clock: VirtualTime, source: VirtualSecrets) -> Iterator[None]:
    """The one place where time and randomness of the kernel are exchanged: every module of ours that imported them."""
    substitutes: dict[str, object] = {"time": clock, "secrets": source}
    for name, substitute in substitutes.items():
        for module in _importers(name):
            setattr(module, name, substitute)
    try:
        yield
    finally:
        for name in substitutes:
            for module in _importers(name):
                setattr(module, name, sys.modules[name])
