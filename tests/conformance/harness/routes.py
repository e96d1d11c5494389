"""The routes of the contract that the spine has, with a request that each accepts.

A `Scene` is one live execution with a lease and an executing step: what the paths and bodies of a route refer to.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET

from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.calls import Call, json_bytes
from tests.conformance.harness.kernel import Kernel

UNKNOWN_ID = "0199aaaa-0000-7000-8000-0000000000ff"
UNKNOWN_STEP = "f" * 64
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")

Access = Literal["open", "bearer", "agent", "either"]


class Route(msgspec.Struct, frozen=True):
    """One method on one path. `body` is a body that it accepts, {} where all fields are optional."""

    name: str
    method: str
    path: str
    access: Access
    body: Any = UNSET
    is_leased: bool = False
    is_keyed: bool = False
    needs_body: bool = False
    is_operators: bool = False
    """Whether the scope `operator` alone opens it."""

    @property
    def has_execution(self) -> bool:
        return "{execution_id}" in self.path

    @property
    def has_step(self) -> bool:
        return "{step_id}" in self.path

    @property
    def takes_body(self) -> bool:
        return self.body is not UNSET

    @property
    def is_agents(self) -> bool:
        """Whether an agent signature is one of its credentials."""
        return self.access in {"agent", "either"}


_EXECUTION = "/v0/executions/{execution_id}"
_STEP = _EXECUTION + "/steps/{step_id}"
_SUBMIT = {"kind": "tool_call", "target": "scene", "args": {"n": 1}}

ROUTES = (
    Route(
        "create", "POST", "/v0/executions", "bearer", body={"agent_id": "{agent_id}"}, is_keyed=True, needs_body=True
    ),
    Route("list_executions", "GET", "/v0/executions", "bearer"),
    Route("get_execution", "GET", _EXECUTION, "either"),
    Route("list_events", "GET", _EXECUTION + "/events", "bearer"),
    Route("cancel", "POST", _EXECUTION + "/cancel", "bearer", body={}),
    Route("list_steps", "GET", _EXECUTION + "/steps", "either"),
    Route("get_step", "GET", _STEP, "either"),
    Route(
        "submit", "POST", _EXECUTION + "/steps", "agent", body=_SUBMIT, is_leased=True, is_keyed=True, needs_body=True
    ),
    Route("complete_step", "POST", _STEP + "/complete", "agent", body={}, is_leased=True, is_keyed=True),
    Route(
        "fail_step",
        "POST",
        _STEP + "/fail",
        "agent",
        body={"error": "e"},
        is_leased=True,
        is_keyed=True,
        needs_body=True,
    ),
    Route("heartbeat", "POST", _EXECUTION + "/heartbeat", "agent", is_leased=True),
    Route("complete_execution", "POST", _EXECUTION + "/complete", "agent", body={}, is_leased=True, is_keyed=True),
    Route(
        "fail_execution",
        "POST",
        _EXECUTION + "/fail",
        "agent",
        body={"error": "e"},
        is_leased=True,
        is_keyed=True,
        needs_body=True,
    ),
    Route(
        "register_agent",
        "POST",
        "/v0/agents",
        "bearer",
        body={"id": "{agent_id}", "webhook_url": "{webhook_url}"},
        needs_body=True,
    ),
    Route("list_agents", "GET", "/v0/agents", "bearer"),
    Route("get_agent", "GET", "/v0/agents/{agent_id}", "bearer"),
    Route("delete_agent", "DELETE", "/v0/agents/{agent_id}", "bearer"),
    Route("describe_agent", "PUT", "/v0/agents/{agent_id}/metadata", "agent", body={"description": "d"}),
    Route(
        "load_policy",
        "POST",
        "/v0/policies/{agent_id}",
        "bearer",
        body={"bundle": "default_action: allow"},
        needs_body=True,
    ),
    Route("read_policy", "GET", "/v0/policies/{agent_id}", "bearer"),
    Route(
        "create_key", "POST", "/v0/keys", "bearer", body={"name": "scene", "scopes": ["audit:read"]}, needs_body=True
    ),
    Route("list_keys", "GET", "/v0/keys", "bearer"),
    Route("revoke_key", "DELETE", "/v0/keys/{key_id}", "bearer"),
    Route("put_tenant", "POST", "/v0/tenants", "bearer", body={"id": "scene"}, needs_body=True, is_operators=True),
    Route("list_tenants", "GET", "/v0/tenants", "bearer", is_operators=True),
    Route("health", "GET", "/v0/health", "open"),
    Route("ready", "GET", "/v0/ready", "open"),
    Route("openapi", "GET", "/v0/openapi.json", "open"),
    Route("docs", "GET", "/docs", "open"),
    Route("metrics", "GET", "/metrics", "bearer", is_operators=True),
)
BY_NAME = {route.name: route for route in ROUTES}
WITH_EXECUTION = tuple(route for route in ROUTES if route.has_execution)
WITH_BODY = tuple(route for route in ROUTES if route.takes_body)
AGENT_ROUTES = tuple(route for route in ROUTES if route.access == "agent")


class Scene:
    """A live execution, its current lease and a step of it that is executing."""

    def __init__(self, kernel: Kernel, agent: Agent, lease: Lease, step_id: str) -> None:
        self.kernel = kernel
        self.agent = agent
        self.lease = lease
        self.execution_id = lease.execution_id
        self.step_id = step_id

    @classmethod
    async def of(cls, kernel: Kernel, agent: Agent | None = None) -> "Scene":
        agent = agent or await kernel.agent()
        lease = await agent.start()
        return cls(kernel, agent, lease, await lease.proceed("scene-step"))

    def target(self, route: Route, **names: str) -> str:
        """The path of a route for this scene; `names` replace its parameters."""
        return route.path.format(**self._names() | names)

    def body(self, route: Route) -> Any:
        if not route.takes_body:
            return UNSET
        names = self._names()
        return {name: _filled(value, names) for name, value in route.body.items()}

    def unsigned(self, route: Route, *, body: Any = None, **names: str) -> Call:
        """The request without credentials, which stay to be added: with its lease, and the route's own body if None."""
        headers = {}
        if route.is_leased:
            headers = {"Rebuno-Dispatch-Id": str(self.lease.dispatch_id)}
            headers |= {"Rebuno-Dispatch-Attempt": str(self.lease.attempt)}
        return Call(
            route.method,
            self.target(route, **names),
            headers,
            json_bytes(self.body(route) if body is None else body),
        )

    def call(self, route: Route, *, agent: Agent | None = None, **options: Any) -> Call:
        """The request with the credential that the route wants: of this scene's agent, or of another."""
        return self.authorized(route, self.unsigned(route, **options), agent=agent)

    def authorized(self, route: Route, call: Call, *, agent: Agent | None = None) -> Call:
        """Add the credential that a route wants to a request: a signature wherever one is taken."""
        if route.is_agents:
            signer = agent or self.agent
            return call.signed(signer.id, signer.secret)
        if route.is_operators and self.kernel.operator_key:
            return call.with_bearer(self.kernel.operator_key)
        return call if route.access == "open" else call.with_bearer(self.kernel.api_key)

    def _names(self) -> dict[str, str]:
        return {
            "execution_id": self.execution_id,
            "step_id": self.step_id,
            "agent_id": self.agent.id,
            "webhook_url": self.agent.endpoint.url,
            "key_id": UNKNOWN_ID,
        }


def _filled(value: Any, names: dict[str, str]) -> Any:
    return value.format(**names) if isinstance(value, str) else value
