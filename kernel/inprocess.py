"""The whole server in a thread of the process that asks, its log and its view in memory: for tests of agents.

Every part but the two adapters is the one that serves in production. Nothing outlives `stop`.
"""

import asyncio
import secrets
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import uvloop

from kernel.control.control import Control
from kernel.control.sealing import Sealer
from kernel.domain.addresses import LOOPBACK_NETWORKS
from kernel.domain.errors import InvariantBroken
from kernel.domain.identity import shard_of
from kernel.listener import Listener
from kernel.log.memory import MemoryLog, MemoryWakes
from kernel.ports import Outgoing
from kernel.process import Parts, Role
from kernel.roles import DispatcherRole, DoorRole, ProjectorRole
from kernel.settings import Settings
from kernel.view.memory import MemoryView
from schemas.entries import Lease, LeaseExpired, encode_entry
from schemas.ids import DEFAULT_TENANT, new_uuid7
from schemas.records import HEADER_FIELD, Header, decode_header

LEASE_SECONDS = 10.0
ATTEMPTS_MAX = 100_000
DELAY_SECONDS = 0.05
START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 10.0
DRAIN_SECONDS = 0.05
APPEND_SECONDS_MAX = 5.0
POLL_SECONDS = 0.001

T = TypeVar("T")

DEFAULTS = Settings(
    mode="dev",
    shards=1,
    listen_host="127.0.0.1",
    listen_port=0,
    master_key=secrets.token_hex(16),
    lease_seconds=LEASE_SECONDS,
    attempts_max=ATTEMPTS_MAX,
    base_delay_seconds=DELAY_SECONDS,
    delay_seconds_max=DELAY_SECONDS,
    drain_seconds=DRAIN_SECONDS,
    webhook_allow_networks=LOOPBACK_NETWORKS,
)
"""As `stepwell dev` asks for no keys and lets loopback be called; an attempt that ended is followed at once."""


class InProcessKernel:
    """A kernel on loopback, on a free port. May be used from any thread."""

    def __init__(self, settings: Settings = DEFAULTS) -> None:
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: Future[None] = Future()
        self._is_up = threading.Event()
        self._asked_to_stop: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="stepwell-kernel", daemon=True)
        self._log: MemoryLog
        self._view: MemoryView
        self.url = ""

    def start(self) -> Self:
        """Return when requests are answered. Raises what keeps it from starting."""
        self._thread.start()
        if not self._is_up.wait(START_SECONDS_MAX):
            raise InvariantBroken(f"the kernel in this process did not start within {START_SECONDS_MAX:g} s")
        if self._work.done():
            self._work.result()
        return self

    def stop(self) -> None:
        """End it, dropping its connections. Raises what ended a part of it before."""
        loop = self._loop
        if loop is not None and not self._work.done():
            loop.call_soon_threadsafe(self._asked_to_stop.set)
        self._thread.join(STOP_SECONDS_MAX)
        self._work.result(0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def end_lease(self, execution_id: str) -> None:
        """Take the execution from the attempt that has it, as if its lease had run out: another one follows at once.

        Does nothing where no attempt has it.
        """
        self._ask(self._end_lease(execution_id)).result(APPEND_SECONDS_MAX)

    # ------------------------------------------------------------ in its thread

    def _ask(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        if self._loop is None or self._work.done():
            work.close()
            raise InvariantBroken("the kernel in this process is not running")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                self._loop = runner.get_loop()
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - the top of the thread: `start` and `stop` raise it
            self._work.set_exception(error)
        else:
            self._work.set_result(None)
        finally:
            self._is_up.set()

    async def _serve(self) -> None:
        self._asked_to_stop = asyncio.Event()
        settings = self._settings
        self._log = MemoryLog(shards=settings.shards)
        self._view = MemoryView()
        control = Control(self._log, Sealer(settings.master_key), poll_seconds=settings.control_poll_seconds)
        parts = Parts(settings=settings, log=self._log, view=self._view, wakes=MemoryWakes(), control=control)
        with Listener(host=settings.listen_host, port=settings.listen_port) as listener:
            self.url = listener.url
            async with asyncio.TaskGroup() as group:
                works = [group.create_task(control.run(), name="control")]
                await control.ensure_shards(settings.shards)
                door = DoorRole(parts, listener)
                roles: list[Role] = [ProjectorRole(parts), DispatcherRole(parts), door]
                works += [group.create_task(role.run(), name=role.title) for role in roles]
                while not door.is_ready:  # noqa: ASYNC110 - a door that becomes ready tells nobody; this is asked a few times
                    await asyncio.sleep(POLL_SECONDS)
                self._is_up.set()
                await self._asked_to_stop.wait()
                await door.drain()
                for work in reversed(works):
                    work.cancel()

    async def _end_lease(self, execution_id: str) -> None:
        header = await self._header(execution_id)
        lease, renewed_seq = (None, 0) if header is None else (header.lease, -1)
        # One that waits for a person, or has ended, keeps its last lease, and nothing follows on it.
        while header is not None and header.status == "running" and lease is not None and header.lease == lease:
            if header.renewed_seq != renewed_seq:
                # A renewal that came in between has made the last entry void.
                renewed_seq = header.renewed_seq
                await self._append_expiry(execution_id, lease, renewed_seq)
            await asyncio.sleep(POLL_SECONDS)
            header = await self._header(execution_id)

    async def _append_expiry(self, execution_id: str, lease: Lease, renewed_seq: int) -> None:
        entry = LeaseExpired(
            id=new_uuid7(),
            tenant=DEFAULT_TENANT,
            execution_id=execution_id,
            at=time.time_ns() // 1000,
            lease=lease,
            renewed_seq=renewed_seq,
        )
        outgoing = Outgoing(
            shard=shard_of(execution_id, self._settings.shards),
            tenant=entry.tenant,
            execution_id=execution_id,
            entry_id=entry.id,
            payload=encode_entry(entry),
            reply_to="",
        )
        await self._log.append(outgoing, timeout_seconds=APPEND_SECONDS_MAX)

    async def _header(self, execution_id: str) -> Header | None:
        shard = shard_of(execution_id, self._settings.shards)
        seen = await self._view.fields(shard, DEFAULT_TENANT, execution_id, (HEADER_FIELD,))
        raw = seen.value[0]
        return None if raw is None else decode_header(raw)
