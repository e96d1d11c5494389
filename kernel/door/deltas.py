"""Live deltas of running steps: published by agents, passed on to whoever watches the execution, never stored.

They travel over NATS core, one channel an execution, which a door hears only while somebody watches there.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from kernel.domain.errors import Invalid, NotFound, Superseded
from kernel.door import bodies
from kernel.door.auth import DISPATCH_ID
from kernel.door.changes import Changes
from kernel.door.exchange import NO_CONTENT, Request, Response, Streamed, tenant_of
from kernel.door.large_bodies import read_document
from kernel.door.quotas import Quotas
from kernel.door.records import Records
from kernel.door.streams import KEEP_ALIVE, KEEP_ALIVE_SECONDS, LOOK_SECONDS, Chunks, end_frame, frame
from kernel.ports import Subscription, Wakes, deltas_channel
from kernel.settings import Settings
from schemas.http import Delta, encode_http
from schemas.records import Header, decode_step, dispatch_field, step_field

DATA_BYTES_MAX = 64 * 1024
SEQ_MAX = 2**63 - 1
QUEUED_MAX = 1024
"""Deltas that wait for a slow observer; further ones are dropped, which it sees as a gap in `seq`."""
QUEUED_BYTES_MAX = 1024 * 1024


class Deltas:
    """Handlers of the routes 3.6 and 3.13."""

    def __init__(self, *, settings: Settings, quotas: Quotas, records: Records, changes: Changes, wakes: Wakes) -> None:
        self._quotas = quotas
        self._records = records
        self._changes = changes
        self._wakes = wakes
        self._budget_seconds = settings.budget_seconds
        self._audiences: dict[str, _Audience] = {}

    # ------------------------------------------------------------ agents

    async def publish_delta(self, request: Request) -> Response:
        execution_id = bodies.execution_id_of(request)
        step_id = bodies.step_id_of(request)
        lease = bodies.lease_of(request) if DISPATCH_ID in request.headers else None
        fields = (await read_document(request)).fields
        seq = fields.get("seq")
        if seq is None:
            raise Invalid("an integer is required", path="seq")
        delta = Delta(step_id=step_id, seq=bodies.integer(seq, low=0, high=SEQ_MAX), data=bodies.text(fields, "data"))
        if len(delta.data.encode()) > DATA_BYTES_MAX:
            raise Invalid(f"longer than {DATA_BYTES_MAX} bytes", path="data")
        await self._quotas.admit(request)
        asked = [step_field(step_id)] + ([] if lease is None else [dispatch_field(lease.dispatch_id)])
        header, (step, *dispatch) = await self._records.read(request, execution_id, asked)
        if step is None:
            raise NotFound("step")
        if lease is not None and not header.is_terminal:
            if dispatch[0] is None:
                raise Invalid("the execution never had this dispatch id", path="Rebuno-Dispatch-Id")
            if header.lease != lease:
                raise Superseded("a newer delivery attempt holds the lease")
        if decode_step(step).status == "executing":
            self._wakes.tell(deltas_channel(execution_id), frame(encode_http(delta)))
        return NO_CONTENT

    # ------------------------------------------------------------ observers

    async def stream_deltas(self, request: Request) -> Streamed:
        execution_id = bodies.execution_id_of(request)
        await self._quotas.admit(request)
        await self._records.read(request, execution_id)
        return Streamed(self._chunks(request, execution_id), tenant_of(request.caller))

    async def _chunks(self, request: Request, execution_id: str) -> Chunks:
        loop = asyncio.get_running_loop()
        observer = _Observer()
        shard = self._records.shard(execution_id)
        async with self._watching(execution_id, observer):
            with self._changes.on_change(shard, execution_id, observer.note_change):
                # Said once it is true: from here on nothing is missed.
                yield KEEP_ALIVE
                spoke_at = looked_at = loop.time()
                observer.note_change()
                while True:
                    if observer.take_change() or loop.time() >= looked_at + LOOK_SECONDS:
                        looked_at = loop.time()
                        header = await self._look(request, execution_id)
                        if header.is_terminal:
                            yield observer.take() + end_frame(header)
                            return
                    chunk = observer.take()
                    if not chunk and loop.time() >= spoke_at + KEEP_ALIVE_SECONDS:
                        chunk = KEEP_ALIVE
                    if chunk:
                        spoke_at = loop.time()
                        yield chunk
                    await observer.wait(LOOK_SECONDS)

    async def _look(self, request: Request, execution_id: str) -> Header:
        deadline = asyncio.get_running_loop().time() + self._budget_seconds
        renewed = msgspec.structs.replace(request, deadline=deadline)
        header, _ = await self._records.read(renewed, execution_id)
        # A key that was revoked meanwhile reads nothing more.
        self._records.check_again(request)
        return header

    @asynccontextmanager
    async def _watching(self, execution_id: str, observer: "_Observer") -> AsyncGenerator[None]:
        audience = self._audiences.get(execution_id)
        if audience is None:
            audience = self._audiences[execution_id] = _Audience()
        audience.observers.add(observer)
        try:
            await audience.listen(self._wakes, execution_id)
            yield
        finally:
            audience.observers.discard(observer)
            if not audience.observers:
                if self._audiences.get(execution_id) is audience:
                    del self._audiences[execution_id]
                await audience.close()


class _Audience:
    """Those who watch one execution through this door, and the one subscription that serves them."""

    def __init__(self) -> None:
        self.observers: set[_Observer] = set()
        self._subscription: Subscription | None = None
        self._subscribing = asyncio.Lock()

    async def listen(self, wakes: Wakes, execution_id: str) -> None:
        """Return when deltas are heard."""
        async with self._subscribing:
            if self._subscription is None:
                self._subscription = await wakes.listen(deltas_channel(execution_id), self._hear)

    async def close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()

    def _hear(self, payload: bytes) -> None:
        for observer in self.observers:
            observer.offer(payload)


class _Observer:
    """What waits for one reader, within bounds, and what wakes its stream."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._queued: deque[bytes] = deque()
        self._queued_bytes = 0
        self._has_changed = False

    def offer(self, chunk: bytes) -> None:
        """Queue a delta, or drop it where the reader is too slow."""
        if len(self._queued) >= QUEUED_MAX or self._queued_bytes + len(chunk) > QUEUED_BYTES_MAX:
            return
        self._queued.append(chunk)
        self._queued_bytes += len(chunk)
        self._woken.set()

    def take(self) -> bytes:
        """Return everything that waits, in order."""
        taken = b"".join(self._queued)
        self._queued.clear()
        self._queued_bytes = 0
        return taken

    def note_change(self) -> None:
        """The execution may have changed."""
        self._has_changed = True
        self._woken.set()

    def take_change(self) -> bool:
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    async def wait(self, seconds: float) -> None:
        """Return when something was offered or has changed since the last wait, or the time is up."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()
