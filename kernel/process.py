"""The frame of every process: connect, check, follow control, run the roles, and stop them in order on a signal.

A process that may not run as it is set up ends before it served anything.
"""

import asyncio
import logging
import resource
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Protocol, TypeVar

import msgspec

from kernel.control.control import Control
from kernel.control.sealing import Sealer
from kernel.domain.errors import InvariantBroken, Misconfigured, Unavailable
from kernel.log.jetstream import JetStreamLog
from kernel.log.streams import ensure_streams
from kernel.log.wakes import NatsWakes
from kernel.ports import Log, View, Wakes
from kernel.settings import Settings
from kernel.view.door_side import Evicting
from kernel.view.redis import RedisView

START_SECONDS_MAX = 30.0
"""How long a start waits for NATS and Redis, which may be starting too."""
RETRY_SECONDS = 0.25
STOP_RESERVE_SECONDS = 5.0
"""Beyond the drain: for the last answers to be written and shards to be handed over."""
OPEN_FILES_WANTED = 65_536

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Parts(msgspec.Struct, frozen=True):
    """What the roles of one process share."""

    settings: Settings
    log: Log
    view: View
    wakes: Wakes
    control: Control


class Role(Protocol):
    """One job of a process: a door, a projector, a dispatcher."""

    @property
    def title(self) -> str: ...

    async def run(self) -> None:
        """Serve until stopped, or until cancelled, which has to leave nothing that only time repairs."""
        ...

    async def stop(self) -> None:
        """Take nothing new, finish what is open, let `run` return. Does nothing where being cancelled is enough."""
        ...


class Stops:
    """SIGTERM and SIGINT. The first asks for a stop in order; the second is for those who do not want to wait."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.hear)

    def hear(self) -> None:
        if self.asked.is_set():
            self.insisted.set()
        self.asked.set()

    async def unless_asked(self, work: Awaitable[T]) -> T | None:
        """Return what `work` brings, or None when a stop was asked for first; then it is cancelled."""
        return await _first(work, self.asked)


async def serve(
    settings: Settings,
    makers: Sequence[Callable[[Parts], Role]],
    *,
    stops: Stops,
    prepare: Callable[[Parts], Awaitable[None]],
    ready: Callable[[], None],
) -> None:
    """Run the roles until a signal. `prepare` comes before them, `ready` is called when they run.

    Raises Misconfigured, or Unavailable where NATS or Redis do not answer, before anything was served; whatever ends a
    role unasked ends the process. Errors may come wrapped in an ExceptionGroup.
    """
    _allow_open_files()
    async with AsyncExitStack() as connections:
        connected = await stops.unless_asked(_connect(settings, connections))
        if connected is None:
            return
        parts, log = connected
        async with asyncio.TaskGroup() as group:
            following = group.create_task(parts.control.run(), name="control")
            if await stops.unless_asked(_prepare(parts, log, prepare)):
                roles = [make(parts) for make in makers]
                running = [group.create_task(endless(role, stops), name=role.title) for role in roles]
                ready()
                await stops.asked.wait()
                await _stop(roles, running, stops, wait_seconds=settings.drain_seconds + STOP_RESERVE_SECONDS)
            following.cancel()
    _log.info("stopped")


async def _connect(settings: Settings, connections: AsyncExitStack) -> tuple[Parts, JetStreamLog]:
    # The key is derived first: a master key that will not do needs no servers to be refused.
    sealer = Sealer(settings.master_key)
    log = await patiently(
        "NATS", lambda: JetStreamLog.connect(settings.nats_url, shards=settings.shards, name="stepwell")
    )
    connections.push_async_callback(log.close)
    # The control stream alone for now: a start with a wrong number of shards must not leave streams behind.
    await ensure_streams(log.connection, shards=0, timeout_seconds=START_SECONDS_MAX)
    view = await patiently("Redis", lambda: RedisView.connect(settings.redis_url))
    connections.push_async_callback(view.close)
    control = Control(
        log,
        sealer,
        poll_seconds=settings.control_poll_seconds,
        lag_seconds_max=settings.control_lag_seconds_max,
    )
    return Parts(settings=settings, log=log, view=view, wakes=NatsWakes(log.connection), control=control), log


async def patiently(what: str, connect: Callable[[], Awaitable[T]]) -> T:
    """Try until it answers. Raises Misconfigured at once where waiting cannot help, Unavailable when the time is up."""
    last = "no answer"
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            while True:
                try:
                    return await connect()
                except Evicting as error:
                    raise Misconfigured(str(error)) from error
                except Unavailable as error:
                    if last == "no answer":
                        _log.warning("waiting for %s: %s", what, error)
                    last = str(error)
                await asyncio.sleep(RETRY_SECONDS)
    except TimeoutError as error:
        raise Unavailable(f"{what} did not answer within {START_SECONDS_MAX:g} s ({last}): is it running?") from error


async def _prepare(parts: Parts, log: JetStreamLog, prepare: Callable[[Parts], Awaitable[None]]) -> bool:
    """Make sure that the record is the one this process may work on."""
    await parts.control.ensure_shards(parts.settings.shards, timeout_seconds=START_SECONDS_MAX)
    await log.ensure_streams(timeout_seconds=START_SECONDS_MAX)
    await prepare(parts)
    return True


async def endless(role: Role, stops: Stops) -> None:
    await role.run()
    if not stops.asked.is_set():
        raise InvariantBroken(f"the {role.title} ended by itself")


async def _stop(
    roles: Sequence[Role], running: Sequence[asyncio.Task[None]], stops: Stops, *, wait_seconds: float
) -> None:
    """Let the roles finish what is open, then cancel what still runs: projectors last, who answer the others."""
    _log.info("stopping: a second signal ends the waiting")
    try:
        async with asyncio.timeout(wait_seconds):
            await _first(_stop_each(roles), stops.insisted)
    except TimeoutError:
        _log.warning("not everything that was open has ended within %g s", wait_seconds)
    for task in running:
        task.cancel()
    await asyncio.wait(running)


async def _stop_each(roles: Sequence[Role]) -> None:
    async with asyncio.TaskGroup() as group:
        for role in roles:
            group.create_task(role.stop(), name=f"stop {role.title}")


async def _first(work: Awaitable[T], event: asyncio.Event) -> T | None:
    """Return what `work` brings, or None when the event comes first; then the work is cancelled."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        # Whatever it ends with, nobody is left to be told.
        working.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise
    finally:
        waiting.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))
    return None if working.cancelled() else working.result()


def _allow_open_files() -> None:
    """Each connection is an open file, and the usual soft limit of 1,024 is soon used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
