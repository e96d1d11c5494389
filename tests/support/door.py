"""A door with a projector behind it and a scripted agent in front: everything but the dispatcher.

The adapters are handed in, so the same tests run on memory and on real servers.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from kernel.control.control import Control
from kernel.control.sealing import Sealer
from kernel.domain.identity import shard_of
from kernel.domain.signatures import sign_body, sign_request
from kernel.door.app import Door, build_app
from kernel.log.jetstream import JetStreamLog
from kernel.log.limits import LogLimits
from kernel.log.memory import MemoryLog, MemoryWakes
from kernel.log.wakes import NatsWakes
from kernel.ports import ControlLog, Log, Outgoing, View, Wakes
from kernel.settings import Settings
from kernel.view.memory import MemoryView
from kernel.view.redis import RedisView
from schemas.entries import AnyEntry, DispatchClaimed, Lease, LeaseExpired, encode_entry
from schemas.ids import new_uuid7
from schemas.records import HEADER_FIELD, Header, decode_header
from tests.support.wait import wait_until_async
from workers.projector import Projector

API_KEY = "k" * 24
OPERATOR_KEY = "o" * 24
SECRET = "test-secret-of-an-agent"
KEYS = {"api_key": API_KEY, "operator_key": OPERATOR_KEY}
WEBHOOK_URL = "http://8.8.8.8/webhook"

_SEALER = Sealer("m" * 32)
"""Deriving a key takes a moment, so the tests share one."""


class BriefStreams:
    """A door whose streams are left by their reader once something has come: this client waits for whole answers."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        has_begun, has_all, is_whole = asyncio.Event(), False, False

        async def sent(message: Any) -> None:
            nonlocal is_whole
            if message["type"] == "http.response.body":
                has_begun.set()
                is_whole = not message.get("more_body", False)
            await send(message)

        async def received() -> Any:
            nonlocal has_all
            if has_all:
                await has_begun.wait()
                return {"type": "http.disconnect"}
            message = await receive()
            has_all = not message.get("more_body", False)
            return message

        await self._door(scope, received, sent)
        if not is_whole:
            await send({"type": "http.response.body", "body": b""})


class Rig:
    """One door over its parts, and a client that speaks to it without a socket."""

    def __init__(self, settings: Settings, *, log: Log, control_log: ControlLog, view: View, wakes: Wakes) -> None:
        self.settings = settings
        self.log = log
        self.view = view
        self.wakes = wakes
        self.control = Control(control_log, _SEALER, poll_seconds=0.02)
        self.name = secrets.token_hex(8)
        self.door: Door = build_app(
            settings=settings, log=log, view=view, wakes=wakes, control=self.control, name=self.name
        )
        self.projector = Projector(settings=settings, log=log, view=view, wakes=wakes, name=secrets.token_hex(8))
        app = BriefStreams(self.door)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)  # type: ignore[arg-type] - its scope is a plain dict
        self.client = httpx.AsyncClient(transport=transport, base_url="http://door", timeout=40)

    # ------------------------------------------------------------ as a client

    async def call(self, method: str, path: str, *, key: str = API_KEY, **options: Any) -> httpx.Response:
        """Send with a bearer key."""
        headers = {"authorization": f"Bearer {key}"} | options.pop("headers", {})
        return await self.client.request(method, path, headers=headers, **options)

    async def register(self, agent_id: str = "agent", *, secret: str = SECRET, **members: Any) -> None:
        body = {"id": agent_id, "webhook_url": WEBHOOK_URL, "secret": secret, **members}
        response = await self.call("POST", "/v0/agents", json=body)
        assert response.status_code in (200, 201), response.text

    async def create(self, agent_id: str = "agent", **members: Any) -> str:
        """Create an execution and return its id."""
        response = await self.call("POST", "/v0/executions", json={"agent_id": agent_id, **members})
        assert response.status_code == 201, response.text
        return response.json()["id"]

    async def events(self, execution_id: str) -> list[Any]:
        response = await self.call("GET", f"/v0/executions/{execution_id}/events?limit=1000")
        assert response.status_code == 200, response.text
        return response.json()

    async def event_types(self, execution_id: str) -> list[str]:
        return [event["type"] for event in await self.events(execution_id)]

    # ------------------------------------------------------------ as a dispatcher

    async def header(self, execution_id: str) -> Header:
        """Return the execution as the view has it."""
        shard = shard_of(execution_id, self.settings.shards)
        seen = await self.view.fields(shard, "default", execution_id, (HEADER_FIELD,))
        assert seen.value[0] is not None
        return decode_header(seen.value[0])

    async def claim(self, execution_id: str) -> Lease:
        """Claim the execution's dispatch, as a dispatcher does before it calls the agent."""
        dispatch = (await self.header(execution_id)).dispatch
        lease = Lease(dispatch_id=dispatch.dispatch_id, attempt=dispatch.next_attempt)
        await self._append(execution_id, DispatchClaimed, lease=lease, claimed_by="test")

        async def is_claimed() -> bool:
            return (await self.header(execution_id)).lease == lease

        await wait_until_async(is_claimed, "the claim to be folded")
        return lease

    async def expire(self, run: "Run") -> None:
        """Let the lease of a run end, as a dispatcher does when nothing renewed it."""
        renewed_seq = (await self.header(run.execution_id)).renewed_seq
        await self._append(run.execution_id, LeaseExpired, lease=run.lease, renewed_seq=renewed_seq)

        async def is_due() -> bool:
            return (await self.header(run.execution_id)).dispatch.state == "due"

        await wait_until_async(is_due, "the dispatch to be due again")

    async def _append(self, execution_id: str, kind: Any, **members: Any) -> None:
        entry = kind(id=new_uuid7(), tenant="default", execution_id=execution_id, at=time.time_ns() // 1000, **members)
        await self.append(entry)

    async def append(self, entry: AnyEntry) -> None:
        """Append an entry as it is, past the door."""
        outgoing = Outgoing(
            shard=shard_of(entry.execution_id, self.settings.shards),
            tenant=entry.tenant,
            execution_id=entry.execution_id,
            entry_id=entry.id,
            payload=encode_entry(entry),
            reply_to="",
        )
        await self.log.append(outgoing, timeout_seconds=10)

    async def started(self, agent_id: str = "agent", **members: Any) -> "Run":
        """Create an execution, claim its first attempt, and return the agent's side of it."""
        execution_id = await self.create(agent_id, **members)
        return Run(self, execution_id, await self.claim(execution_id), agent_id=agent_id)


class Run:
    """A scripted agent at work on one execution under one lease."""

    def __init__(
        self, rig: Rig, execution_id: str, lease: Lease, *, agent_id: str = "agent", secret: str = SECRET
    ) -> None:
        self.rig = rig
        self.execution_id = execution_id
        self.lease = lease
        self.agent_id = agent_id
        self.secret = secret
        self.path = f"/v0/executions/{execution_id}"

    def headers(
        self,
        method: str,
        target: str,
        body: bytes,
        *,
        lease: Lease | None = None,
        scheme: str = "v1",
        timestamp: str | None = None,
    ) -> dict[str, str]:
        """Return lease and signature headers for a request."""
        held = lease or self.lease
        sent_at = str(int(time.time())) if timestamp is None else timestamp
        secret = self.secret.encode()
        headers = {
            "rebuno-agent-id": self.agent_id,
            "rebuno-dispatch-id": held.dispatch_id,
            "rebuno-dispatch-attempt": str(held.attempt),
        }
        if scheme == "sha256":
            return headers | {"rebuno-signature": sign_body(secret, body)}
        signature = sign_request(
            secret,
            method=method,
            target=target,
            timestamp=sent_at,
            dispatch_id=held.dispatch_id,
            attempt=str(held.attempt),
            body=body,
        )
        return headers | {"rebuno-signature": signature, "rebuno-timestamp": sent_at}

    async def send(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        lease: Lease | None = None,
        scheme: str = "v1",
    ) -> httpx.Response:
        """Send a signed request; a body that is not bytes is sent as JSON."""
        raw = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        signed = self.headers(method, target, raw, lease=lease, scheme=scheme)
        return await self.rig.client.request(method, target, content=raw, headers=signed | (headers or {}))

    async def submit(self, target: str = "t", args: Any = None, **options: Any) -> httpx.Response:
        sent_with = {name: options.pop(name) for name in ("headers", "lease", "scheme") if name in options}
        body = {"kind": "tool_call", "target": target, "args": args, **options}
        return await self.send("POST", f"{self.path}/steps", body, **sent_with)

    async def proceed(self, target: str = "t", args: Any = None, **options: Any) -> str:
        """Submit a step that must proceed and return its id."""
        response = await self.submit(target, args, **options)
        assert response.status_code == 200, response.text
        assert response.json()["decision"] == "proceed", response.text
        return response.json()["step_id"]

    async def complete_step(self, step_id: str, result: Any = None, **options: Any) -> httpx.Response:
        return await self.send("POST", f"{self.path}/steps/{step_id}/complete", {"result": result}, **options)

    async def fail_step(self, step_id: str, error: Any, **options: Any) -> httpx.Response:
        return await self.send("POST", f"{self.path}/steps/{step_id}/fail", {"error": error}, **options)

    async def heartbeat(self, **options: Any) -> httpx.Response:
        return await self.send("POST", f"{self.path}/heartbeat", **options)

    async def complete(self, output: Any = None, *, settle: Any = (), **options: Any) -> httpx.Response:
        return await self.send("POST", f"{self.path}/complete", {"output": output, "settle": settle}, **options)

    async def fail(self, error: Any, **options: Any) -> httpx.Response:
        return await self.send("POST", f"{self.path}/fail", {"error": error}, **options)


def rig_settings(**members: Any) -> Settings:
    """Return server settings that suit a test; the dispatcher's are of no matter here."""
    return Settings(
        **{
            "mode": "server",
            "no_policy": "allow",
            "shards": 2,
            **KEYS,
            "budget_seconds": 10.0,
            **members,
        }
    )


@asynccontextmanager
async def running(rig: Rig, *, projects: bool = True) -> AsyncIterator[Rig]:
    """Run the door, the control follower and, if wanted, the projector; give the rig when the door is ready."""
    works = [rig.control.run(), rig.door.run(), *([rig.projector.run()] if projects else [])]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await wait_until_async(rig.door.is_ready, "the door to be ready")
        yield rig
    finally:
        await rig.client.aclose()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()


class MemoryRig(Rig):
    """A rig on memory adapters, whose knobs do what servers may do."""

    def __init__(self, settings: Settings, *, limits: LogLimits | None = None, view: MemoryView | None = None) -> None:
        self.memory_log = MemoryLog(shards=settings.shards, limits=limits)
        self.memory_view = view or MemoryView()
        self.memory_wakes = MemoryWakes()
        super().__init__(
            settings, log=self.memory_log, control_log=self.memory_log, view=self.memory_view, wakes=self.memory_wakes
        )


@asynccontextmanager
async def rig_in_memory(
    *, projects: bool = True, limits: LogLimits | None = None, **settings: Any
) -> AsyncIterator[MemoryRig]:
    """Run a rig on memory adapters."""
    rig = MemoryRig(rig_settings(**settings), limits=limits)
    async with running(rig, projects=projects):
        yield rig


@asynccontextmanager
async def rig_on_servers(nats_url: str, redis_url: str, **settings: Any) -> AsyncIterator[Rig]:
    """Run a rig on real servers, which have to be empty."""
    chosen = rig_settings(**settings)
    log = await JetStreamLog.connect(nats_url, shards=chosen.shards, name="test")
    try:
        await log.ensure_streams()
        view = await RedisView.connect(redis_url)
        try:
            wakes = NatsWakes(log.connection)
            async with running(Rig(chosen, log=log, control_log=log, view=view, wakes=wakes)) as rig:
                yield rig
        finally:
            await view.close()
    finally:
        await log.close()
