"""A kernel without its door: projector, dispatchers and control over given adapters, driven by entries."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from msgspec import Raw
from msgspec.structs import replace

from kernel.control.control import Control
from kernel.control.sealing import Sealer
from kernel.domain.addresses import LOOPBACK_NETWORKS
from kernel.domain.errors import ViewUnavailable
from kernel.domain.identity import shard_of
from kernel.log.jetstream import JetStreamLog
from kernel.log.wakes import NatsWakes
from kernel.ports import Acknowledged, ControlLog, DueItem, Log, Outgoing, View, Wakes
from kernel.settings import Settings
from kernel.view.redis import RedisView
from schemas.control import AgentDeleted, AgentPut
from schemas.entries import (
    AnyEntry,
    ExecutionCancelled,
    ExecutionCreated,
    HeartbeatReceived,
    Lease,
    Limits,
    encode_entry,
)
from schemas.events import DispatchPayload, EventRecord, ExecutionPayload, decode_event
from schemas.ids import new_uuid7
from schemas.records import HEADER_FIELD, Header, decode_header, event_field
from tests.support.scripted_agent import ScriptedAgent, pass_time
from tests.support.wait import wait_until_async
from workers.dispatcher import Dispatcher
from workers.projector import Projector

TENANT = "default"
SECRET = b"the secret of the agent"
APPEND_SECONDS = 10.0
SHARDS = 2
LIMITS = Limits(
    attempts_max=5,
    lease_ms=1000,
    unacknowledged_lease_ms=1000,
    base_delay_ms=100,
    delay_max_ms=1000,
    unreachable_ms=300_000,
)


LONG_LEASE = replace(LIMITS, lease_ms=60_000, unacknowledged_lease_ms=60_000)


class BothLogs(Log, ControlLog, Protocol):
    """The log and the control stream, as every adapter has them together."""


class Kernel:
    """What a test does to the kernel and reads from it."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        *,
        settings: Settings,
        log: BothLogs,
        view: View,
        wakes: Wakes,
        control: Control,
    ) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.projecting: asyncio.Task[None] | None = None
        self.following: asyncio.Task[None] | None = None
        self._group = group
        self.settings = settings
        self.log = log
        self.view = view
        self.wakes = wakes
        self.control = control

    async def due_delivery(self, execution_id: str) -> DueItem:
        """Return the delivery that is due, as a dispatcher gets it."""
        await self.tells(execution_id, "dispatch.queued 0")
        header = await self.header(execution_id)
        return DueItem(
            kind="delivery", tenant=TENANT, agent_id=header.agent_id, execution_id=execution_id, header=header
        )

    def shard(self, execution_id: str) -> int:
        return shard_of(execution_id, self.settings.shards)

    def start_control(self) -> None:
        """Start following the control stream, until the kernel ends or `stop_control`."""
        self.following = self.start(self.control.run())

    async def stop_control(self) -> None:
        """Stop following, and wait until the control state counts as old."""
        await stopped(self.following)
        await wait_until_async(lambda: not self.control.is_level, "the control state to be old")

    def start_projector(self) -> None:
        """Start a projector, which ends with the kernel or by `stop_projector`."""
        name = f"projector{len(self.tasks)}"
        projector = Projector(settings=self.settings, log=self.log, view=self.view, wakes=self.wakes, name=name)
        self.projecting = self.start(projector.run())

    async def stop_projector(self) -> None:
        """From now on nothing is folded."""
        await stopped(self.projecting)

    def start_dispatcher(self) -> asyncio.Task[None]:
        """Start a dispatcher, which ends with the kernel or when its task is cancelled."""
        return self.start(self.dispatcher(f"dispatcher{len(self.tasks)}").run())

    def start(self, loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._group.create_task(loop)
        self.tasks.append(task)
        return task

    def dispatcher(self, name: str) -> Dispatcher:
        return Dispatcher(
            settings=self.settings, log=self.log, view=self.view, wakes=self.wakes, control=self.control, name=name
        )

    async def put_agent(self, agent_id: str, url: str, *, max_concurrency: int = 64) -> None:
        secret = self.control.sealer.seal(SECRET, tenant=TENANT, agent_id=agent_id, field="secret")
        entry = AgentPut(
            id=new_uuid7(),
            at=now(),
            by="test",
            tenant=TENANT,
            agent_id=agent_id,
            webhook_url=url,
            secret=secret,
            max_concurrency=max_concurrency,
        )
        await self.control.submit(entry, timeout_seconds=APPEND_SECONDS)

    async def delete_agent(self, agent_id: str) -> None:
        entry = AgentDeleted(id=new_uuid7(), at=now(), by="test", tenant=TENANT, agent_id=agent_id)
        await self.control.submit(entry, timeout_seconds=APPEND_SECONDS)

    async def append(self, entry: AnyEntry) -> Acknowledged:
        message = Outgoing(
            shard=self.shard(entry.execution_id),
            tenant=entry.tenant,
            execution_id=entry.execution_id,
            entry_id=entry.id,
            payload=encode_entry(entry),
            reply_to="",
        )
        return await self.log.append(message, timeout_seconds=APPEND_SECONDS)

    async def create(self, agent_id: str = "agent", *, limits: Limits = LIMITS, life_seconds: float = 3600) -> str:
        execution_id = new_uuid7()
        entry = ExecutionCreated(
            **stamp(execution_id),
            agent_id=agent_id,
            created_by="test",
            input=Raw(b"null"),
            dispatch_id=new_uuid7(),
            limits=limits,
            deadline_at=None,
            life_ends_at=now() + int(life_seconds * 1_000_000),
        )
        await self.append(entry)
        return execution_id

    async def cancel(self, execution_id: str) -> None:
        await self.append(ExecutionCancelled(**stamp(execution_id), cancelled_by="test"))

    async def heartbeat(self, execution_id: str, lease: Lease) -> None:
        await self.append(HeartbeatReceived(**stamp(execution_id), lease=lease))

    async def header(self, execution_id: str) -> Header:
        (raw,) = await self._fields(execution_id, [HEADER_FIELD])
        assert raw is not None
        return decode_header(raw)

    async def events(self, execution_id: str) -> list[EventRecord]:
        (raw,) = await self._fields(execution_id, [HEADER_FIELD])
        if raw is None:
            return []
        numbers = range(1, decode_header(raw).event_count + 1)
        found = await self._fields(execution_id, [event_field(number) for number in numbers])
        return [decode_event(each) for each in found if each is not None]

    async def story(self, execution_id: str) -> list[str]:
        """Return the events in short: the type, with a dispatch's attempt and reason, an execution's reason."""
        return [_short(event) for event in await self.events(execution_id)]

    async def tells(self, execution_id: str, line: str, *, deadline_seconds: float = 10.0) -> list[str]:
        """Wait until the story holds the line, and return the story."""

        async def look() -> list[str]:
            story = await self.story(execution_id)
            return story if line in story else []

        try:
            return await wait_until_async(look, f"{line!r} in the story", deadline_seconds=deadline_seconds)
        except AssertionError as error:
            error.add_note(json.dumps(await self.story(execution_id), indent=1))
            raise

    async def _fields(self, execution_id: str, fields: list[bytes]) -> tuple[bytes | None, ...]:
        seen = await self.view.fields(self.shard(execution_id), TENANT, execution_id, fields)
        return seen.value


Kernels = Callable[..., AbstractAsyncContextManager[Kernel]]
"""Makes running kernels; the first argument is the agent to register as "agent"."""


@asynccontextmanager
async def running_kernel(
    *, log: BothLogs, view: View, wakes: Wakes, dispatchers: int = 1, **changes: Any
) -> AsyncIterator[Kernel]:
    """Run control, one projector, what a door does for the leases, and so many dispatchers.

    `changes` are settings that differ from `settings_with`.
    """
    settings = settings_with(**changes)
    control = Control(log, Sealer("a master key for the tests"), poll_seconds=0.05)
    async with asyncio.TaskGroup() as group:
        kernel = Kernel(group, settings=settings, log=log, view=view, wakes=wakes, control=control)
        kernel.start_control()
        kernel.start(_beat(view, settings.shards))
        kernel.start_projector()
        await control.level(timeout_seconds=APPEND_SECONDS)
        for _ in range(dispatchers):
            kernel.start_dispatcher()
        try:
            yield kernel
        finally:
            for task in kernel.tasks:
                task.cancel()


@asynccontextmanager
async def connected_kernel(
    nats_url: str,
    redis_url: str,
    agent: ScriptedAgent | None = None,
    *,
    through: Callable[[Wakes], Wakes] = lambda wakes: wakes,
    **changes: Any,
) -> AsyncIterator[Kernel]:
    """Run a kernel on real servers, with the agent as "agent"; its wake-ups go `through` what is given."""
    async with AsyncExitStack() as stack:
        log = await JetStreamLog.connect(nats_url, shards=SHARDS, name="test")
        stack.push_async_callback(log.close)
        await log.ensure_streams()
        view = await RedisView.connect(redis_url)
        stack.push_async_callback(view.close)
        wakes = through(NatsWakes(log.connection))
        kernel = await stack.enter_async_context(running_kernel(log=log, view=view, wakes=wakes, **changes))
        if agent is not None:
            await kernel.put_agent("agent", agent.url)
        yield kernel


async def stopped(task: asyncio.Task[None] | None) -> None:
    assert task is not None
    task.cancel()
    await asyncio.wait({task})


def settings_with(**changes: Any) -> Settings:
    """Settings of a small stack whose leases are floored at half a second."""
    values: dict[str, Any] = {
        "mode": "dev",
        "shards": SHARDS,
        "lease_seconds": 0.5,
        "webhook_allow_networks": LOOPBACK_NETWORKS,
        "control_lag_seconds_max": 0.3,
    }
    return Settings(**(values | changes))


def stamp(execution_id: str) -> dict[str, Any]:
    return {
        "id": new_uuid7(),
        "tenant": TENANT,
        "execution_id": execution_id,
        "at": now(),
        "expires": now() + 24_000_000,
    }


def now() -> int:
    return time.time_ns() // 1000


async def _beat(view: View, shards: int) -> None:
    while True:
        # A view that is gone for a while hears the next beat.
        with contextlib.suppress(ViewUnavailable):
            await view.beat(range(shards))
        await pass_time(0.5)


def _short(event: EventRecord) -> str:
    match event.payload:
        case DispatchPayload(attempt=attempt, reason=reason):
            return f"{event.type} {attempt} {reason or ''}".rstrip()
        case ExecutionPayload(reason=reason):
            return f"{event.type} {reason or ''}".rstrip()
        case _:
            return event.type
