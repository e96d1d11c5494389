"""The routing table: every route of the contract, its access and scope, and whether it is built yet.

Matching is exact: no redirect, no trailing slash, no decoding of the literal parts of a path.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from kernel.domain.errors import MethodNotAllowed, NotFound

Access = Literal["open", "bearer", "agent", "either"]


class Route(msgspec.Struct, frozen=True):
    """One method on one path. `scopes`: any of them opens it to a bearer key."""

    section: str
    operation: str
    method: str
    path: str
    access: Access
    scopes: tuple[str, ...] = ()
    is_leased: bool = False
    is_keyed: bool = False
    is_delegable: bool = False
    """Whether the header `Rebuno-Delegation` is read here."""
    is_built: bool = True
    """A route that is still to come answers as an unknown one."""


_EXECUTION = "/v0/executions/{execution_id}"
_STEP = f"{_EXECUTION}/steps/{{step_id}}"
_READ = ("executions:read",)
_WRITE = ("executions:write",)
_AGENTS = ("agents:admin",)
_POLICIES = ("policies:admin",)
_APPROVALS = ("executions:read", "approvals:decide")
_DECIDE = ("approvals:decide",)
_KEYS = ("tenant:admin", "operator")
_OPERATOR = ("operator",)

ROUTES: tuple[Route, ...] = (
    Route("3.1", "create_execution", "POST", "/v0/executions", "bearer", _WRITE, is_keyed=True),
    Route("3.2", "list_executions", "GET", "/v0/executions", "bearer", _READ),
    Route("3.3", "get_execution", "GET", _EXECUTION, "either", _READ),
    Route("3.4", "list_events", "GET", f"{_EXECUTION}/events", "bearer", _READ),
    Route("3.5", "stream_events", "GET", f"{_EXECUTION}/events/stream", "bearer", _READ),
    Route("3.6", "stream_deltas", "GET", f"{_EXECUTION}/stream", "bearer", _READ),
    Route("3.7", "cancel_execution", "POST", f"{_EXECUTION}/cancel", "bearer", _WRITE),
    Route("3.8", "list_steps", "GET", f"{_EXECUTION}/steps", "either", _READ),
    Route("3.9", "get_step", "GET", _STEP, "either", _READ),
    Route(
        "3.10",
        "submit_step",
        "POST",
        f"{_EXECUTION}/steps",
        "agent",
        is_leased=True,
        is_keyed=True,
        is_delegable=True,
    ),
    Route(
        "3.11", "complete_step", "POST", f"{_STEP}/complete", "agent", is_leased=True, is_keyed=True, is_delegable=True
    ),
    Route("3.12", "fail_step", "POST", f"{_STEP}/fail", "agent", is_leased=True, is_keyed=True, is_delegable=True),
    Route("3.13", "publish_delta", "POST", f"{_STEP}/stream", "agent", is_delegable=True),
    Route("3.14", "heartbeat", "POST", f"{_EXECUTION}/heartbeat", "agent", is_leased=True, is_delegable=True),
    Route("3.15", "complete_execution", "POST", f"{_EXECUTION}/complete", "agent", is_leased=True, is_keyed=True),
    Route("3.16", "fail_execution", "POST", f"{_EXECUTION}/fail", "agent", is_leased=True, is_keyed=True),
    Route("3.17", "register_agent", "POST", "/v0/agents", "bearer", _AGENTS),
    Route("3.18", "list_agents", "GET", "/v0/agents", "bearer", _AGENTS),
    Route("3.18", "get_agent", "GET", "/v0/agents/{agent_id}", "bearer", _AGENTS),
    Route("3.19", "delete_agent", "DELETE", "/v0/agents/{agent_id}", "bearer", _AGENTS),
    Route("3.20", "describe_agent", "PUT", "/v0/agents/{agent_id}/metadata", "agent"),
    Route("3.21", "load_policy", "POST", "/v0/policies/{agent_id}", "bearer", _POLICIES),
    Route("3.22", "read_policy", "GET", "/v0/policies/{agent_id}", "bearer", _POLICIES),
    Route("3.23", "list_approvals", "GET", "/v0/approvals", "bearer", _APPROVALS),
    Route("3.23", "get_approval", "GET", "/v0/approvals/{approval_id}", "bearer", _APPROVALS),
    Route("3.24", "grant_approval", "POST", "/v0/approvals/{approval_id}/grant", "bearer", _DECIDE, is_keyed=True),
    Route("3.25", "deny_approval", "POST", "/v0/approvals/{approval_id}/deny", "bearer", _DECIDE, is_keyed=True),
    Route("3.26", "create_key", "POST", "/v0/keys", "bearer", _KEYS),
    Route("3.26", "list_keys", "GET", "/v0/keys", "bearer", _KEYS),
    Route("3.26", "revoke_key", "DELETE", "/v0/keys/{key_id}", "bearer", _KEYS),
    Route("3.27", "put_tenant", "POST", "/v0/tenants", "bearer", _OPERATOR),
    Route("3.27", "list_tenants", "GET", "/v0/tenants", "bearer", _OPERATOR),
    Route("3.28", "list_audit_entries", "GET", "/v0/audit/entries", "bearer", ("audit:read",), is_built=False),
    Route("3.29", "health", "GET", "/v0/health", "open"),
    Route("3.29", "ready", "GET", "/v0/ready", "open"),
    Route("3.29", "openapi", "GET", "/v0/openapi.json", "open"),
    Route("3.29", "docs", "GET", "/docs", "open"),
    Route("3.29", "metrics", "GET", "/metrics", "bearer", _OPERATOR),
    Route("3.30", "erase_execution", "DELETE", _EXECUTION, "bearer", ("executions:erase",), is_built=False),
)

_SEGMENTS_MAX = 16


class _Node:
    __slots__ = ("literals", "parameter", "routes")

    def __init__(self) -> None:
        self.literals: dict[bytes, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, Route] = {}


class Router:
    """Finds the route of a request in time that depends on the length of its path alone."""

    def __init__(self, routes: Iterable[Route] = ROUTES) -> None:
        self._root = _Node()
        for route in routes:
            if route.is_built:
                self._add(route)

    def find(self, path: bytes, method: str) -> tuple[Route, tuple[bytes, ...]]:
        """Return the route and the variable segments of the path, undecoded.

        Raises NotFound for an unknown path and MethodNotAllowed for a known one with another method.
        """
        node = self._root
        names: tuple[bytes, ...] = ()
        for segment in path.split(b"/", _SEGMENTS_MAX)[1:]:
            found = node.literals.get(segment)
            if found is None:
                found = node.parameter
                if found is None or not segment:
                    raise NotFound("route")
                names += (segment,)
            node = found
        route = node.routes.get(method)
        if route is not None:
            return route, names
        if not node.routes:
            raise NotFound("route")
        raise MethodNotAllowed(tuple(sorted(node.routes)))

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literals.setdefault(segment.encode(), _Node())
        node.routes[route.method] = route
