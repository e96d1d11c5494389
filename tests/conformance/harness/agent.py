"""An agent as the kernel sees it: registered, signing its requests, with an endpoint that receives its webhooks."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx
from msgspec import UNSET

from tests.conformance.harness.answers import accepted
from tests.conformance.harness.calls import (
    ATTEMPT,
    DISPATCH_ID,
    KEY,
    Call,
    JsonOrUnset,
    json_bytes,
    members,
)
from tests.conformance.harness.endpoint import Delivery, Endpoint
from tests.conformance.harness.stacks import LEASE_SECONDS
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from tests.conformance.harness.kernel import Kernel


class Agent:
    """One registered agent. Requests come in two steps: `call` signs, `Kernel.send` sends; `request` does both."""

    def __init__(self, kernel: "Kernel", endpoint: Endpoint, *, agent_id: str, secret: str, scheme: str) -> None:
        self.kernel = kernel
        self.endpoint = endpoint
        self.id = agent_id
        self.secret = secret
        self.scheme = scheme

    def call(
        self,
        method: str,
        target: str,
        body: JsonOrUnset = UNSET,
        *,
        headers: Mapping[str, str | None] | None = None,
        scheme: str | None = None,
    ) -> Call:
        """A signed request. `body` is a JSON value, or bytes as they are; a header that is None is left out."""
        sent = {name: value for name, value in (headers or {}).items() if value is not None}
        call = Call(method, target, sent, json_bytes(body))
        return call.signed(self.id, self.secret, scheme=scheme or self.scheme)

    async def request(self, method: str, target: str, body: JsonOrUnset = UNSET, **options: Any) -> httpx.Response:
        return await self.kernel.send(self.call(method, target, body, **options))

    async def create(self, given: JsonOrUnset = UNSET, **more: Any) -> dict[str, Any]:
        """Create an execution of this agent; `more` are members of the body. Returns the Execution."""
        return accepted(await self.kernel.create(self.id, given, **more), 201)

    async def delivery(self, execution_id: str, *, number: int = 1, deadline_seconds: float = 10.0) -> Delivery:
        """The n-th webhook for an execution, once it has arrived."""
        return await self.endpoint.delivery(execution_id, number=number, deadline_seconds=deadline_seconds)

    async def lease(self, execution_id: str, *, number: int = 1, deadline_seconds: float = 10.0) -> "Lease":
        """The lease that the n-th webhook for an execution gives."""
        return self.lease_of(await self.delivery(execution_id, number=number, deadline_seconds=deadline_seconds))

    def lease_of(self, delivery: Delivery) -> "Lease":
        return Lease(self, delivery.execution_id, delivery.dispatch_id, delivery.attempt)

    async def start(self, given: JsonOrUnset = UNSET, **more: Any) -> "Lease":
        """Create an execution and take its first lease."""
        execution = await self.create(given, **more)
        return await self.lease(execution["id"])

    async def acknowledged(self, given: JsonOrUnset = UNSET, **more: Any) -> "Lease":
        """`start`, and wait until the kernel has the webhook's answer: from here on no event comes by itself."""
        lease = await self.start(given, **more)
        await self.kernel.wait_for_event(lease.execution_id, "dispatch.acked")
        return lease


class Lease:
    """One attempt of an execution, and the requests that are made under it."""

    def __init__(self, agent: Agent, execution_id: str, dispatch_id: str | None, attempt: int | str | None) -> None:
        self.agent = agent
        self.kernel = agent.kernel
        self.execution_id = execution_id
        self.dispatch_id = dispatch_id
        self.attempt = attempt
        self.path = f"/v0/executions/{execution_id}"

    def but(self, **changes: Any) -> "Lease":
        """The same lease, differing in `agent`, `execution_id`, `dispatch_id` or `attempt`; None leaves it out."""
        parts = {"agent": self.agent, "execution_id": self.execution_id}
        parts |= {"dispatch_id": self.dispatch_id, "attempt": self.attempt}
        return Lease(**parts | changes)

    def call(
        self,
        suffix: str,
        body: JsonOrUnset = UNSET,
        *,
        key: str | None = None,
        scheme: str | None = None,
        method: str = "POST",
    ) -> Call:
        """A signed request under this lease to a path below the execution's, such as `/heartbeat`."""
        headers = {
            DISPATCH_ID: self.dispatch_id,
            ATTEMPT: None if self.attempt is None else str(self.attempt),
            KEY: key,
        }
        return self.agent.call(method, f"{self.path}{suffix}", body, headers=headers, scheme=scheme)

    async def request(self, suffix: str, body: JsonOrUnset = UNSET, **options: Any) -> httpx.Response:
        return await self.kernel.send(self.call(suffix, body, **options))

    async def submit(
        self,
        target: JsonOrUnset = "tool",
        args: JsonOrUnset = UNSET,
        *,
        kind: JsonOrUnset = "tool_call",
        key: str | None = None,
        **more: Any,
    ) -> httpx.Response:
        """Submit a step; `more` are members of the body, such as `idempotency` and `settle`."""
        return await self.request("/steps", members(kind=kind, target=target, args=args, **more), key=key)

    async def decide(self, target: JsonOrUnset = "tool", args: JsonOrUnset = UNSET, **options: Any) -> dict[str, Any]:
        """Submit a step that is answered 200, and return the StepDecision."""
        return accepted(await self.submit(target, args, **options))

    async def proceed(self, target: JsonOrUnset = "tool", args: JsonOrUnset = UNSET, **options: Any) -> str:
        """Submit a step that must proceed, and return its id."""
        decision = await self.decide(target, args, **options)
        assert decision["decision"] == "proceed", decision
        return decision["step_id"]

    async def complete(
        self, step_id: str, result: JsonOrUnset = UNSET, *, key: str | None = None, **more: Any
    ) -> httpx.Response:
        return await self.request(f"/steps/{step_id}/complete", members(result=result, **more), key=key)

    async def fail(
        self, step_id: str, error: JsonOrUnset = UNSET, *, key: str | None = None, **more: Any
    ) -> httpx.Response:
        return await self.request(f"/steps/{step_id}/fail", members(error=error, **more), key=key)

    async def done(self, target: JsonOrUnset = "tool", args: JsonOrUnset = UNSET, *, result: JsonOrUnset = None) -> str:
        """Submit a step, record its result, and return its id."""
        step_id = await self.proceed(target, args)
        assert accepted(await self.complete(step_id, result)) == {"decision": "recorded"}
        return step_id

    async def expired(self) -> "Lease":
        """Let this lease end, and take the next attempt of the dispatch; the kernel has the answer to its webhook."""
        number = int(self.attempt or 0) + 1
        lease = await self.agent.lease(self.execution_id, number=number, deadline_seconds=LEASE_SECONDS + 8)
        assert (lease.dispatch_id, lease.attempt) == (self.dispatch_id, number)

        async def is_acknowledged() -> bool:
            events = [each for each in await self.kernel.events(self.execution_id) if each["type"] == "dispatch.acked"]
            return events[-1:] != [] and events[-1]["payload"]["attempt"] == number

        await wait_until_async(is_acknowledged, f"the acknowledgement of attempt {number}")
        return lease

    async def heartbeat(self, body: JsonOrUnset = UNSET) -> httpx.Response:
        return await self.request("/heartbeat", body)

    async def complete_execution(
        self, output: JsonOrUnset = UNSET, *, key: str | None = None, **more: Any
    ) -> httpx.Response:
        return await self.request("/complete", members(output=output, **more), key=key)

    async def fail_execution(
        self, error: JsonOrUnset = UNSET, *, key: str | None = None, **more: Any
    ) -> httpx.Response:
        return await self.request("/fail", members(error=error, **more), key=key)
