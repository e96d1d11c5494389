"""The door as an ASGI application: one switch in front of every handler, which decides the order of the checks.

Route, size, credential; then the handler checks the rest of the request, its ownership, and asks the log or the view.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from kernel.control.control import Control
from kernel.domain.errors import KernelError, OutcomeUnknown, Unavailable
from kernel.door.admission import Shares
from kernel.door.agent_calls import AgentCalls
from kernel.door.agents import AgentAdmin
from kernel.door.appending import Appending
from kernel.door.approvals import Approvals
from kernel.door.auth import Auth
from kernel.door.changes import Changes
from kernel.door.deltas import Deltas
from kernel.door.events import Events
from kernel.door.exchange import Handler, Request, Response, Streamed, tenant_of
from kernel.door.executions import Executions
from kernel.door.fetching import Shelf
from kernel.door.freshness import Freshness
from kernel.door.gate import Gate
from kernel.door.keys import KeyAdmin
from kernel.door.metrics import UNKNOWN, Metrics
from kernel.door.operations import Operations
from kernel.door.pipeline import Pipeline
from kernel.door.policies import PolicyAdmin
from kernel.door.policing import Policing
from kernel.door.presence import Presence
from kernel.door.quotas import Quotas
from kernel.door.reading import Bodies, ClientGone, Receive, header_map
from kernel.door.records import Records
from kernel.door.refusals import INTERNAL, refusal_response
from kernel.door.routes import ROUTES, Route, Router
from kernel.door.spilling import Spilling
from kernel.door.steps import Steps
from kernel.door.streams import Streams
from kernel.door.tenants import TenantAdmin
from kernel.ports import DoorView, Log, Wakes, answers_channel
from kernel.settings import Settings

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LATE_LOOK_SECONDS = 0.5
"""Between two looks for bodies that do not arrive."""

_log = logging.getLogger(__name__)

_NO_VERSION = "0.9"
_NOT_HTTP = Response(status=400, content_type=b"text/plain", headers=((b"connection", b"close"),))
"""To a request line without a version, whose sender could not read more."""


class Door:
    """Call it as an ASGI application while `run` is running beside it."""

    def __init__(
        self, *, settings: Settings, log: Log, view: DoorView, wakes: Wakes, control: Control, name: str
    ) -> None:
        self._wakes = wakes
        self._name = name
        self._bodies = Bodies(settings.body_bytes_max, held_bytes_max=settings.bodies_held_bytes_max)
        self._budget_seconds = settings.budget_seconds
        self._drain_seconds = settings.drain_seconds
        self._open_max = settings.requests_open_max
        self._shares = Shares(settings.requests_open_share_max)
        self._router = Router()
        self._metrics = Metrics()
        freshness = Freshness(settings.shards, losses=lambda: view.losses)
        self._auth = Auth(settings=settings, view=view, control=control, freshness=freshness)
        gate = Gate(log=log, skew_seconds_max=settings.clock_skew_seconds_max)
        self._presence = Presence(
            settings=settings, log=log, view=view, control=control, freshness=freshness, gate=gate
        )
        self._pipeline = Pipeline(settings=settings, log=log, view=view, freshness=freshness, gate=gate)
        quotas = Quotas(settings=settings, control=control, view=view)
        appending = Appending(
            settings=settings,
            auth=self._auth,
            quotas=quotas,
            pipeline=self._pipeline,
            spilling=Spilling(log),
            name=name,
        )
        records = Records(shards=settings.shards, view=view, auth=self._auth, freshness=freshness)
        shelf = Shelf(log)
        self._changes = Changes(settings.shards)
        self._handlers = _handlers_of(
            AgentCalls(
                settings=settings,
                auth=self._auth,
                appending=appending,
                policing=Policing(settings=settings, control=control, view=view),
                quotas=quotas,
                shelf=shelf,
                view=view,
            ),
            Executions(
                settings=settings,
                control=control,
                appending=appending,
                quotas=quotas,
                records=records,
                shelf=shelf,
                view=view,
                freshness=freshness,
            ),
            Steps(quotas=quotas, records=records, shelf=shelf),
            Events(settings=settings, quotas=quotas, records=records, shelf=shelf, changes=self._changes),
            Deltas(settings=settings, quotas=quotas, records=records, changes=self._changes, wakes=wakes),
            AgentAdmin(settings=settings, control=control, quotas=quotas, view=view, freshness=freshness),
            PolicyAdmin(control=control, quotas=quotas),
            KeyAdmin(control=control, quotas=quotas),
            TenantAdmin(control=control),
            Approvals(settings=settings, appending=appending, quotas=quotas, view=view, freshness=freshness),
            Operations(is_ready=self.is_ready, trouble=self._trouble, metrics=self._metrics),
        )
        self._open: set[asyncio.Task[None]] = set()
        self._streams = Streams()
        self._is_draining = False
        self._is_over = False
        self._is_listening = False
        self._add_gauges(log, quotas, shards=settings.shards)

    def _add_gauges(self, log: Log, quotas: Quotas, *, shards: int) -> None:
        gauge = self._metrics.gauge
        gauge("stepwell_requests_open", "Requests being answered.", lambda: len(self._open))
        gauge("stepwell_streams_open", "Open streams of events and deltas.", lambda: self._streams.count)
        gauge(
            "stepwell_log_silent_shards",
            "Shards whose stream takes entries and acknowledges none.",
            lambda: sum(log.is_silent(shard) for shard in range(shards)),
        )
        gauge("stepwell_requests_in_flight", "Requests waiting for the log.", lambda: self.in_flight)
        gauge("stepwell_quota_waiting", "Requests over a quota, waiting for room.", lambda: quotas.waiting)

    # ------------------------------------------------------------ life

    def is_ready(self) -> bool:
        """Whether new requests can be answered now."""
        return self._is_listening and not self._is_draining and self._presence.is_ready()

    def _trouble(self) -> str:
        """What keeps a door from being ready that is not being closed: a door that drains needs no operator."""
        return "" if self._is_draining else self._presence.trouble()

    @property
    def in_flight(self) -> int:
        """How many requests wait for the log."""
        return self._pipeline.waiting

    async def run(self) -> None:
        """Hear answers and keep the pulse until cancelled."""
        subscriptions = [await self._wakes.listen(answers_channel(self._name), self._pipeline.hear)]
        try:
            subscriptions += await self._changes.listen(self._wakes)
            self._is_listening = True
            async with asyncio.TaskGroup() as group:
                group.create_task(self._presence.run(), name="pulse of the door")
                group.create_task(self._cut_off_late_bodies(), name="late bodies")
        finally:
            self._is_listening = False
            for subscription in subscriptions:
                await subscription.close()

    async def _cut_off_late_bodies(self) -> None:
        while True:
            await asyncio.sleep(LATE_LOOK_SECONDS)
            self._bodies.cut_off_late()

    async def drain(self) -> None:
        """Refuse new requests from now on; return when the open ones are answered, at the latest after the limit.

        Streams have no end to wait for, and are ended at once.

        Cancelled, it cuts the waiting short: what is open then is answered at once, not dropped.
        """
        self._is_draining = True
        self._streams.close()
        try:
            await self._answered(self._drain_seconds)
        finally:
            if self._open:
                await self._end_open()

    async def _end_open(self) -> None:
        self._is_over = True
        self._pipeline.abandon()
        # A turn of the loop for what was abandoned to be answered; whatever else is open is cut off.
        await asyncio.sleep(0)
        for task in tuple(self._open):
            task.cancel()
        await self._answered(1.0)

    async def _answered(self, seconds: float) -> None:
        tasks = tuple(self._open)
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    # ------------------------------------------------------------ requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError("only HTTP is served")
        if scope["http_version"] == _NO_VERSION:
            await _send(send, _NOT_HTTP)
            return
        started_at = time.perf_counter()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs is run by a task
        self._open.add(task)
        operation = UNKNOWN
        try:
            path: bytes = scope["raw_path"]
            try:
                route, names = self._router.find(path, scope["method"])
                operation = route.operation
                response = await self._answer(task, route, names, scope, receive)
                if isinstance(response, Streamed):
                    with self._streams.place(response.tenant):
                        self._open.discard(task)
                        await self._streams.serve(response.chunks, scope, receive, send)
                    self._metrics.count(operation, 200, time.perf_counter() - started_at)
                    return
            except KernelError as error:
                response = _refused(error)
            except ClientGone:
                return
            except asyncio.CancelledError:
                if not self._is_over:
                    raise
                response = _cut_off(scope["method"])
            except Exception:  # noqa: BLE001 - the top of a request: a fault of ours is answered as one
                _log.exception("a request failed")
                response = INTERNAL
            await _send(send, response)
            self._metrics.count(operation, response.status, time.perf_counter() - started_at)
        finally:
            self._open.discard(task)
            self._bodies.leave(task)

    async def _answer(
        self, task: asyncio.Task[None], route: Route, names: tuple[bytes, ...], scope: Scope, receive: Receive
    ) -> Response | Streamed:
        """Make the checks that every route has in common, in their order, and hand over to its handler."""
        if route.access != "open":
            self._check_room()
        arrived_at = time.time_ns() // 1000
        deadline = asyncio.get_running_loop().time() + self._budget_seconds
        headers = header_map(scope["headers"])
        body = await self._bodies.read(task, headers, receive, deadline=deadline)
        query: bytes = scope["query_string"]
        path: bytes = scope["raw_path"]
        caller = await self._auth.caller(
            route,
            target=path + b"?" + query if query else path,
            headers=headers,
            names=names,
            body=body,
            deadline=deadline,
        )
        request = Request(
            route=route,
            names=names,
            query=query,
            headers=headers,
            body=body,
            caller=caller,
            arrived_at=arrived_at,
            deadline=deadline,
        )
        if route.access == "open":
            return await self._handlers[route.operation](request)
        tenant = tenant_of(caller)
        if not self._shares.try_enter(tenant):
            raise Unavailable("too many requests of this tenant are open")
        try:
            return await self._handlers[route.operation](request)
        finally:
            self._shares.leave(tenant)

    def _check_room(self) -> None:
        if self._is_draining:
            raise Unavailable("the door is closing")
        if len(self._open) > self._open_max:
            raise Unavailable("too many requests are open")


def build_app(*, settings: Settings, log: Log, view: DoorView, wakes: Wakes, control: Control, name: str) -> Door:
    """Return the door of this process. `name` is the process's own, on which answers come."""
    return Door(settings=settings, log=log, view=view, wakes=wakes, control=control, name=name)


def _handlers_of(*groups: object) -> dict[str, Handler]:
    """Return the handler of every built route: the method of that name."""
    found: dict[str, Handler] = {}
    for route in ROUTES:
        for group in groups:
            handler = getattr(group, route.operation, None)
            if route.is_built and handler is not None:
                found[route.operation] = handler
    return found


def _refused(error: KernelError) -> Response:
    response = refusal_response(error)
    if response.status == INTERNAL.status:
        _log.error("a request failed: %s", error, exc_info=error)
    return response


def _cut_off(method: str) -> Response:
    """Return the answer to a request that the end of the drain has interrupted."""
    if method == "GET":
        return refusal_response(Unavailable("the door is closing"))
    return refusal_response(OutcomeUnknown("the door closed before the outcome was known"))


async def _send(send: Send, response: Response) -> None:
    if response.status == 204:
        headers = response.headers
    else:
        headers = (
            (b"content-type", response.content_type),
            (b"content-length", b"%d" % len(response.body)),
            *response.headers,
        )
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
