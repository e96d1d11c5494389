"""The kernel under test, seen from outside: its address, a key, and what a test reads and makes with them."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import httpx
from msgspec import UNSET

from tests.conformance.harness.agent import Agent
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.calls import NEXT_CURSOR, Call, JsonOrUnset, json_bytes, members
from tests.conformance.harness.endpoint import Script, accepting, serving
from tests.support.event_streams import Frames, opened
from tests.support.wait import wait_until_async

REQUEST_SECONDS_MAX = 35.0
_LIVE = {"running", "blocked"}
_EVENTS_PAGE = 1000


class Kernel:
    """One test's access to a kernel. Its agents and executions are its own; `connected` makes and closes it."""

    def __init__(self, url: str, api_key: str, http: httpx.AsyncClient, endpoints: AsyncExitStack) -> None:
        self.url = url
        self.api_key = api_key
        self._http = http
        self._endpoints = endpoints
        self.operator_key = ""
        """Where the kernel has one and the test was given it."""
        self._executions: list[str] = []
        self._others: list[Kernel] = []

    def holding(self, api_key: str) -> "Kernel":
        """The same access with another key. What is made with it ends with the rest."""
        self._others.append(Kernel(self.url, api_key, self._http, self._endpoints))
        return self._others[-1]

    # ------------------------------------------------------------ requests

    async def send(self, call: Call) -> httpx.Response:
        """Send a request as it stands."""
        address = f"{self.url}{call.target}"
        return await self._http.request(call.method, address, headers=dict(call.headers), content=call.body)

    def call(
        self, method: str, target: str, body: JsonOrUnset = UNSET, *, headers: Mapping[str, str] | None = None
    ) -> Call:
        """A request with the bearer key. `body` is a JSON value, or bytes as they are."""
        return Call(method, target, headers or {}, json_bytes(body)).with_bearer(self.api_key)

    async def request(self, method: str, target: str, body: JsonOrUnset = UNSET, **options: Any) -> httpx.Response:
        return await self.send(self.call(method, target, body, **options))

    async def get(self, target: str, **query: object) -> httpx.Response:
        """GET with the bearer key; `query` is appended to the target."""
        return await self.request("GET", f"{target}?{urlencode(query)}" if query else target)

    async def post(self, target: str, body: JsonOrUnset = UNSET, **options: Any) -> httpx.Response:
        return await self.request("POST", target, body, **options)

    def stream(self, target: str, *, headers: Mapping[str, str] | None = None) -> AbstractAsyncContextManager[Frames]:
        """Server-sent events, once the first comment has come."""
        call = self.call("GET", target, headers=headers)
        return opened(self._http, f"{self.url}{target}", dict(call.headers))

    async def also(self, other: AbstractAsyncContextManager["Kernel"]) -> "Kernel":
        """Another access, such as with another key; it ends with this one."""
        return await self._endpoints.enter_async_context(other)

    # ------------------------------------------------------------ what a test makes

    async def agent(
        self, script: Script = accepting, *, scheme: str = "v1", agent_id: str = "", **registered: Any
    ) -> Agent:
        """Register an agent of this test's own. `registered` are further members, such as `require_v1`."""
        endpoint = await self._endpoints.enter_async_context(serving(script))
        agent_id = agent_id or f"agent-{secrets.token_hex(6)}"
        secret = f"secret-of-{agent_id}-{secrets.token_hex(6)}"
        body = {"id": agent_id, "webhook_url": endpoint.url, "secret": secret} | registered
        accepted(await self.post("/v0/agents", body), 201)
        return Agent(self, endpoint, agent_id=agent_id, secret=body["secret"], scheme=scheme)

    async def create(
        self,
        agent_id: JsonOrUnset,
        given: JsonOrUnset = UNSET,
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> httpx.Response:
        """POST /v0/executions. What was created is cancelled at the end of the test."""
        body = members(agent_id=agent_id, input=given, **more)
        response = await self.post("/v0/executions", body, headers=headers)
        if response.status_code == 201:
            self._executions.append(response.json()["id"])
        return response

    async def cancel(self, execution_id: str) -> httpx.Response:
        return await self.post(f"/v0/executions/{execution_id}/cancel")

    # ------------------------------------------------------------ what a test reads

    async def execution(self, execution_id: str) -> dict[str, Any]:
        return accepted(await self.get(f"/v0/executions/{execution_id}"))

    async def steps(self, execution_id: str) -> list[dict[str, Any]]:
        return accepted(await self.get(f"/v0/executions/{execution_id}/steps"))

    async def step(self, execution_id: str, step_id: str) -> dict[str, Any]:
        return accepted(await self.get(f"/v0/executions/{execution_id}/steps/{step_id}"))

    async def events(self, execution_id: str, *, after_seq: int = 0) -> list[dict[str, Any]]:
        """Every event so far that is later than this one."""
        found: list[dict[str, Any]] = []
        target = f"/v0/executions/{execution_id}/events"
        while True:
            response = await self.get(target, after_seq=after_seq, limit=_EVENTS_PAGE)
            found += accepted(response)
            if NEXT_CURSOR not in response.headers:
                return found
            after_seq = int(response.headers[NEXT_CURSOR])

    async def event_types(self, execution_id: str, *, after_seq: int = 0) -> list[str]:
        return [event["type"] for event in await self.events(execution_id, after_seq=after_seq)]

    async def wait_for_event(
        self, execution_id: str, event_type: str, *, count: int = 1, deadline_seconds: float = 10.0
    ) -> dict[str, Any]:
        """The n-th event of a type, once it is there. Ends early, and fails, when the execution ends without it."""
        found: list[dict[str, Any]] = []
        after_seq = 0
        target = f"/v0/executions/{execution_id}/events"
        async with asyncio.timeout(deadline_seconds):
            while True:
                page = accepted(await self.get(target, after_seq=after_seq, limit=_EVENTS_PAGE, wait=5))
                found += [event for event in page if event["type"] == event_type]
                if len(found) >= count:
                    return found[count - 1]
                if not page and (await self.execution(execution_id))["status"] not in _LIVE:
                    raise AssertionError(f"the execution ended without {count} x {event_type}")
                after_seq = page[-1]["event_seq"] if page else after_seq

    async def ended(self, execution_id: str, *, deadline_seconds: float = 10.0) -> dict[str, Any]:
        """The execution once it has ended."""

        async def look() -> dict[str, Any] | None:
            execution = await self.execution(execution_id)
            return None if execution["status"] in _LIVE else execution

        found = await wait_until_async(look, f"the end of {execution_id}", deadline_seconds=deadline_seconds)
        assert found is not None
        return found

    async def trace(self, execution_id: str) -> tuple[Any, ...]:
        """Everything that a refused request must leave as it was: the execution, its steps and its events."""
        return (
            await self.execution(execution_id),
            await self.steps(execution_id),
            await self.events(execution_id),
        )

    async def cancel_the_rest(self) -> None:
        """End what the test left running, so that nothing is delivered to an endpoint that has gone."""
        await asyncio.gather(*(self.cancel(each) for each in dict.fromkeys(self._executions)), return_exceptions=True)
        for other in self._others:
            await other.cancel_the_rest()


@asynccontextmanager
async def connected(url: str, api_key: str, *, operator_key: str = "") -> AsyncIterator[Kernel]:
    """Access to a kernel for one test; the end of it cancels what still runs and closes the endpoints."""
    limits = httpx.Limits(max_connections=256, max_keepalive_connections=64)
    async with AsyncExitStack() as closing:
        http = httpx.AsyncClient(timeout=REQUEST_SECONDS_MAX, limits=limits, trust_env=False, follow_redirects=False)
        await closing.enter_async_context(http)
        endpoints = await closing.enter_async_context(AsyncExitStack())
        kernel = Kernel(url, api_key, http, endpoints)
        kernel.operator_key = operator_key
        closing.push_async_callback(kernel.cancel_the_rest)
        yield kernel
