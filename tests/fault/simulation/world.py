"""The simulated system: doors, projectors and dispatchers, each in a process of its own, servers, HTTP between them."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec

from kernel.control.control import Control
from kernel.control.sealing import Sealer
from kernel.door.app import Door, build_app
from kernel.log.memory import MemoryLog, MemoryWakes
from kernel.ports import View
from kernel.settings import Settings
from kernel.view.memory import MemoryView
from schemas.control import AgentPut, encode_control
from schemas.ids import DEFAULT_TENANT
from tests.fault.history import LOST, Answered, Asked, History
from tests.fault.simulation.link import Link
from tests.fault.simulation.network import Network, RemoteLog, RemoteView, RemoteWakes
from tests.fault.simulation.virtual import Process, VirtualLoop, VirtualTime
from workers.dispatcher import Dispatcher
from workers.projector import Projector
from workers.webhook import Delivered, Request, Undelivered, WebhookSender

API_KEY = "k" * 24
AGENT_ID = "agent"
SECRET = b"the secret of the agent"
CLIENT_SECONDS = 8.0
"""How long agents and clients wait for an answer."""

_SEALER = Sealer("a master key for simulations")
_AGENT = encode_control(
    AgentPut(
        id="agent-put",
        at=1,
        by="simulation",
        tenant=DEFAULT_TENANT,
        agent_id=AGENT_ID,
        webhook_url="http://agent.example/webhook",
        secret=_SEALER.seal(SECRET, tenant=DEFAULT_TENANT, agent_id=AGENT_ID, field="secret"),
    )
)


class SmallSettings(Settings, frozen=True, kw_only=True):
    """Periods short enough for a run of some virtual seconds."""

    @property
    def unacknowledged_lease_seconds(self) -> float:
        return 4.0


SETTINGS = SmallSettings(
    shards=2,
    api_key=API_KEY,
    attempts_max=12,
    lease_seconds=4.0,
    delivery_seconds=2.0,
    base_delay_seconds=0.2,
    delay_seconds_max=2.0,
    budget_seconds=5.0,
    republish_seconds=0.5,
    due_hold_seconds=3.0,
    owner_ttl_seconds=2.0,
    unreferenced_seconds=8.0,
)

Reply = tuple[int, dict[bytes, bytes], bytes]
GONE: Reply = (LOST, {}, b"")


class Role:
    """A role of the kernel in its present process; after a crash it comes back in another."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind = kind
        self.number = number
        self.link = Link()
        self.process: Process
        self.door: Door | None = None
        self.is_up = False


class World:
    """Everything there is. `hook` is the agent's side of a webhook, set before anything starts."""

    def __init__(self, loop: VirtualLoop, clock: VirtualTime, rng: random.Random) -> None:
        self.loop = loop
        self.clock = clock
        self.rng = rng
        self.network = Network(loop, rng)
        self.log = MemoryLog(shards=SETTINGS.shards, clock=lambda: clock.true_ns() // 1000)
        self.view = MemoryView(clock=lambda: clock.true_ns() // 1_000_000)
        self.wakes = MemoryWakes()
        self.history: History = []
        self.roles: list[Role] = []
        self.hook: Callable[[bytes], Coroutine[Any, Any, Delivered | Undelivered]]
        self._calls: dict[Process, list[asyncio.Future[Reply]]] = {}
        self._under_way: set[asyncio.Future[Reply]] = set()
        self._asked = 0

    async def start(self) -> None:
        await self.log.append_control(entry_id="agent-put", payload=_AGENT, timeout_seconds=5)
        for kind in ("projector", "dispatcher", "door"):
            for number in range(self.rng.choice((1, 1, 2))):
                role = Role(kind, number)
                self.roles.append(role)
                self.bring_up(role)

    # ------------------------------------------------------------ processes

    def of_kind(self, kind: str) -> list[Role]:
        return [role for role in self.roles if role.kind == kind]

    def bring_up(self, role: Role) -> None:
        """Start the role in a new process, with nothing that the last one knew."""
        if role.is_up:
            return
        role.process = self.loop.process(f"{role.kind}-{role.number}")
        self._begin(role)
        role.is_up = True

    def bring_down(self, role: Role) -> None:
        """`kill -9`."""
        if not role.is_up:
            return
        role.is_up = False
        role.door = None
        self.loop.kill(role.process)
        for waiter in self._calls.pop(role.process, []):
            self._under_way.discard(waiter)
            self.network.later(self.network.delay(), _answer, waiter, GONE)

    def _begin(self, role: Role) -> None:
        network, process = self.network, role.process
        name = f"{role.kind}{self.rng.getrandbits(40):010x}"
        log = RemoteLog(network, self.log, role.link)
        view = cast(View, RemoteView(network, self.view, role.link))
        wakes = RemoteWakes(network, self.wakes, process, role.link)
        if role.kind == "projector":
            projector = Projector(settings=SETTINGS, log=log, view=view, wakes=wakes, name=name)
            self.loop.start(process, projector.run())
            return
        control = Control(log, _SEALER, poll_seconds=0.5, lag_seconds_max=1.5, clock=self.loop.time)
        self.loop.start(process, control.run())
        if role.kind == "door":
            role.door = build_app(settings=SETTINGS, log=log, view=view, wakes=wakes, control=control, name=name)
            self.loop.start(process, role.door.run())
            return
        sender = cast(WebhookSender, _Sender(self))
        dispatcher = Dispatcher(
            settings=SETTINGS, log=log, view=view, wakes=wakes, control=control, name=name, sender=sender
        )
        self.loop.start(process, dispatcher.run())

    # ------------------------------------------------------------ HTTP

    async def call(
        self,
        asked: Asked,
        *,
        method: str,
        path: str,
        headers: dict[bytes, bytes],
        body: bytes,
        door: int | None = None,
    ) -> Answered:
        """Send a request to some door, or to the one whose turn is the number `door`; note what was asked and told."""
        self.history.append(asked)
        status, answered_headers, raw = await self._exchange(method, path, headers, body, door)
        answered = Answered(
            number=asked.number,
            at=self.loop.time(),
            status=status,
            body=msgspec.json.decode(raw) if raw else None,
            is_replayed=b"idempotent-replayed" in answered_headers,
        )
        self.history.append(answered)
        return answered

    @property
    def is_quiet(self) -> bool:
        """Whether no request is on its way to a door or with one, its sender waiting for it or not."""
        return not self._under_way

    def next_number(self) -> int:
        self._asked += 1
        return self._asked

    async def _exchange(
        self, method: str, path: str, headers: dict[bytes, bytes], body: bytes, door: int | None
    ) -> Reply:
        network = self.network
        waiter: asyncio.Future[Reply] = self.loop.create_future()
        doors = self.of_kind("door")
        role = self.rng.choice(doors) if door is None else doors[door % len(doors)]
        if network.strikes(network.lost_calls):
            # Half of the time nothing arrives; else it is done and the answer is lost.
            network.later(0.1, _answer, waiter, GONE)
            if self.rng.random() < 0.5:
                return await waiter
        plain, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "path": plain,
            "raw_path": plain.encode(),
            "query_string": query.encode(),
            "headers": [*headers.items(), (b"content-length", b"%d" % len(body))],
        }
        self._under_way.add(waiter)
        network.later(network.delay(), self._arrive, role, scope, body, waiter)
        timer = self.loop.call_later(CLIENT_SECONDS, _answer, waiter, GONE)
        try:
            return await waiter
        finally:
            timer.cancel()

    def _arrive(self, role: Role, scope: dict[str, Any], body: bytes, waiter: asyncio.Future[Reply]) -> None:
        if role.door is None:
            self._under_way.discard(waiter)
            _answer(waiter, GONE)
            return
        self._calls.setdefault(role.process, []).append(waiter)
        self.loop.start(role.process, self._serve(role.process, role.door, scope, body, waiter))

    async def _serve(
        self, process: Process, door: Door, scope: dict[str, Any], body: bytes, waiter: asyncio.Future[Reply]
    ) -> None:
        start: dict[str, Any] = {}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            reply = (start["status"], dict(start["headers"]), message["body"])
            self.network.later(self.network.delay(), _answer, waiter, reply)

        await door(scope, receive, send)
        if process in self._calls:
            self._calls[process].remove(waiter)
            self._under_way.discard(waiter)


class _Sender:
    """The webhook sender of a dispatcher: what `WebhookSender.post` promises, without a socket."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def post(self, request: Request) -> Delivered | Undelivered:
        return await self._world.hook(request.body)


def _answer(waiter: asyncio.Future[Reply], reply: Reply) -> None:
    if not waiter.done():
        waiter.set_result(reply)


class Journal(logging.Handler):
    """Hears what the kernel logs as its own fault: an exception that reached the top of a loop is a finding."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self._failures: list[str] = []
        self._alarms: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            line += f": {record.exc_info[1]!r}"
            self._failures.append(line)
        elif record.levelno >= logging.CRITICAL:
            self._alarms.append(line)
        self.lines.append(line)

    def findings(self, *, is_excused: bool) -> list[str]:
        """Return what must not have been logged. `is_excused`: an owner may take a later view for a damaged one."""
        is_excused = is_excused or any("another projector's now" in line for line in self.lines)
        return self._failures + [line for line in self._alarms if not (is_excused and "the view is damaged" in line)]
