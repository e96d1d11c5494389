"""Who asks, and whether the execution in the path is theirs.

A credential is checked before anything else in the request; ownership only after it, where an unknown execution and
a foreign one are one answer. Secrets and headers are compared as bytes, in constant time.
"""

import asyncio
import hmac
import time
from collections import OrderedDict

from kernel.control.agents import Agent
from kernel.control.control import Control
from kernel.control.keys import key_hash
from kernel.domain.delegation import Delegation, verified
from kernel.domain.errors import Forbidden, NotFound, Unauthorized
from kernel.domain.identity import shard_of
from kernel.domain.signatures import timestamp_ok, verify
from kernel.door.exchange import Caller, Nobody, Principal, Request, Signer
from kernel.door.freshness import Freshness
from kernel.door.routes import Route
from kernel.ports import DoorView, Located
from kernel.settings import Settings
from schemas.ids import DEFAULT_TENANT, parse_uuid
from schemas.scopes import DELEGATE, OPERATOR, SCOPES

AGENTS_TRIED_MAX = 8
"""Agents of one name whose secrets are tried on one request, so that nobody can make a door hash a body at will."""
LOCATED_MAX = 65_536
"""Executions whose owner a door remembers; an owner never changes."""

AGENT_ID = b"rebuno-agent-id"
SIGNATURE = b"rebuno-signature"
TIMESTAMP = b"rebuno-timestamp"
TENANT = b"rebuno-tenant"
DISPATCH_ID = b"rebuno-dispatch-id"
ATTEMPT = b"rebuno-dispatch-attempt"
DELEGATION = b"rebuno-delegation"

ALL_SCOPES: frozenset[str] = frozenset(SCOPES)
_BEARER = b"bearer "
_V1 = b"v1="
_NOBODY = Nobody()


class Auth:
    """Checks credentials of this process's requests and remembers whose executions are."""

    def __init__(self, *, settings: Settings, view: DoorView, control: Control, freshness: Freshness) -> None:
        self._view = view
        self._control = control
        self._freshness = freshness
        self._shards = settings.shards
        self._window_seconds = settings.signature_window_seconds
        self._prefixes = tuple(prefix.encode() for prefix in settings.public_prefixes)
        self._everybody = (
            Principal(tenant=DEFAULT_TENANT, name="dev", scopes=ALL_SCOPES) if settings.mode == "dev" else None
        )
        self._set_up = [
            (key_hash(key.encode()), Principal(tenant=DEFAULT_TENANT, name=name, scopes=scopes))
            for key, name, scopes in (
                (settings.api_key, "api", ALL_SCOPES - {OPERATOR}),
                (settings.operator_key, "operator", frozenset({OPERATOR})),
            )
            if key
        ]
        """The keys that the process is set up with. All others are in the control stream."""
        self._located: OrderedDict[str, Located] = OrderedDict()

    # ------------------------------------------------------------ credentials

    async def caller(
        self,
        route: Route,
        *,
        target: bytes,
        headers: dict[bytes, bytes],
        names: tuple[bytes, ...],
        body: bytes,
        deadline: float,
    ) -> Caller:
        """Return who asks. Raises Unauthorized; Forbidden without the scope; Unavailable while control lags."""
        if route.access == "open":
            return _NOBODY
        if not self._control.is_level:
            await self._control.level(timeout_seconds=max(0.0, deadline - asyncio.get_running_loop().time()))
        is_signed = route.access == "agent" or (
            route.access == "either" and (AGENT_ID in headers or SIGNATURE in headers)
        )
        if not is_signed:
            return self._principal(route, headers)
        if DELEGATION in headers and route.is_delegable:
            # It never falls back to a signature.
            return self._delegate(headers, names)
        agents = self._named(headers)
        if len(agents) > AGENTS_TRIED_MAX:
            agents = await self._first_tried(agents, route, names, deadline)
        return self._signer(agents, route.method, target, headers, body)

    def _principal(self, route: Route, headers: dict[bytes, bytes]) -> Principal:
        principal = self._everybody or self._holder(headers.get(b"authorization", b""))
        if principal.scopes.isdisjoint(route.scopes):
            raise Forbidden
        return principal

    def _holder(self, header: bytes) -> Principal:
        """Return whose key it is. The hash is compared, so that time tells nothing about the key itself."""
        if header[: len(_BEARER)].lower() != _BEARER:
            raise Unauthorized
        sent = key_hash(header[len(_BEARER) :].lstrip(b" "))
        found = [principal for known, principal in self._set_up if hmac.compare_digest(known, sent)]
        if found:
            return found[0]
        key = self._control.keys.holder(sent, now=_now())
        if key is None:
            raise Unauthorized
        return Principal(tenant=key.tenant, name=key.name, scopes=key.scopes, key_id=key.key_id)

    def _delegate(self, headers: dict[bytes, bytes], names: tuple[bytes, ...]) -> Signer:
        """Return the agent for which the holder of a key acts, by a token that the agent minted for this attempt."""
        principal = self._everybody or self._holder(headers.get(b"authorization", b""))
        if DELEGATE not in principal.scopes:
            raise Forbidden
        for agent in self._named(headers):
            if agent.tenant != principal.tenant:
                continue
            found = verified(agent.secrets, headers[DELEGATION], now_seconds=int(time.time()))
            if found is not None and found.agent_id == agent.agent_id and _is_of(found, headers, names):
                return Signer(agent_id=agent.agent_id, tenants=(agent.tenant,))
        raise Unauthorized

    def check_again(self, caller: Caller) -> None:
        """Raise Unauthorized where the caller's key has ended since: for requests that stay open for long."""
        if not isinstance(caller, Principal) or not caller.key_id:
            return
        if not self._control.keys.is_valid(caller.key_id, now=_now()):
            raise Unauthorized

    def _named(self, headers: dict[bytes, bytes]) -> tuple[Agent, ...]:
        """Return the agents of the name that is claimed, in order of registration, of the tenant if one is named."""
        agents = self._control.agents_named(headers.get(AGENT_ID, b"").decode("latin-1"))
        if TENANT in headers:
            only = headers[TENANT].decode("latin-1")
            return tuple(agent for agent in agents if agent.tenant == only)
        return agents

    def _signer(
        self, agents: tuple[Agent, ...], method: str, target: bytes, headers: dict[bytes, bytes], body: bytes
    ) -> Signer:
        """Return the agent that signed the request, with every tenant in which the signature is good."""
        signature = headers.get(SIGNATURE, b"")
        is_v1 = signature.startswith(_V1)
        timestamp = headers.get(TIMESTAMP, b"")
        if is_v1 and not timestamp_ok(timestamp.decode("latin-1"), int(time.time()), self._window_seconds):
            raise Unauthorized
        targets = self._targets(target) if is_v1 else (target,)
        dispatch_id, attempt = headers.get(DISPATCH_ID, b""), headers.get(ATTEMPT, b"")
        tenants: list[str] = []
        for agent in agents:
            for each in targets:
                if verify(
                    agent.secrets,
                    signature,
                    method=method,
                    target=each,
                    timestamp=timestamp,
                    dispatch_id=dispatch_id,
                    attempt=attempt,
                    body=body,
                    require_v1=agent.require_v1,
                ):
                    tenants.append(agent.tenant)
                    break
        if not tenants:
            raise Unauthorized
        return Signer(agent_id=agents[0].agent_id, tenants=tuple(tenants))

    def _targets(self, target: bytes) -> tuple[bytes, ...]:
        """Return what an agent may have signed as the target, the received one first."""
        targets = (target, *(prefix + target for prefix in self._prefixes))
        if b"?" not in target:
            # The server cuts off the mark of an empty query, and the agent signed what it sent.
            targets += tuple(each + b"?" for each in targets)
        return targets

    async def _first_tried(
        self, agents: tuple[Agent, ...], route: Route, names: tuple[bytes, ...], deadline: float
    ) -> tuple[Agent, ...]:
        """Return the agents to try where there are too many: the owner of the path's execution first."""
        owner: Located | None = None
        if names and "{execution_id}" in route.path:
            execution_id = parse_uuid(names[0].decode("latin-1"))
            if execution_id is not None:
                owner = await self._locate(execution_id, shard_of(execution_id, self._shards), deadline)
        if owner is None:
            return agents[:AGENTS_TRIED_MAX]
        owning = tuple(agent for agent in agents if agent.tenant == owner.tenant)
        others = tuple(agent for agent in agents if agent.tenant != owner.tenant)
        return owning + others[:AGENTS_TRIED_MAX]

    # ------------------------------------------------------------ ownership

    async def owner(self, request: Request, execution_id: str, shard: int) -> Located:
        """Return whose the execution is, where it is the caller's; else raise NotFound. Read once for its owner."""
        located = self._located.get(execution_id)
        if located is not None and _owns(request.caller, located):
            self._located.move_to_end(execution_id)
            return located
        # A foreign id is looked up as an unknown one is, whosever it is known to be: what a door remembers of others
        # must show neither in the time of a refusal nor in its words while the view is away.
        located = await self._locate(execution_id, shard, request.deadline)
        if located is None or not _owns(request.caller, located):
            raise NotFound("execution")
        return located

    def forget(self, execution_id: str) -> None:
        """Let the next request read anew whose the execution is."""
        self._located.pop(execution_id, None)

    async def _locate(self, execution_id: str, shard: int, deadline: float) -> Located | None:
        """Ask the directory. Only what is found is remembered: an unknown id may be created at any time."""
        located = await self._freshness.read(shard, lambda: self._view.locate(shard, execution_id), deadline=deadline)
        if located is not None:
            self._located[execution_id] = located
            if len(self._located) > LOCATED_MAX:
                self._located.popitem(last=False)
        return located


def _owns(caller: Caller, located: Located) -> bool:
    match caller:
        case Principal():
            return caller.tenant == located.tenant
        case Signer():
            return caller.agent_id == located.agent_id and located.tenant in caller.tenants
        case Nobody():
            return False


def _is_of(found: Delegation, headers: dict[bytes, bytes], names: tuple[bytes, ...]) -> bool:
    """Whether a token is of the execution in the path and of the lease in the headers: it is dead with its attempt."""
    execution_id, dispatch_id = names[0].decode("latin-1"), headers.get(DISPATCH_ID, b"").decode("latin-1")
    return (
        parse_uuid(execution_id) == found.execution_id
        and parse_uuid(dispatch_id) == found.lease.dispatch_id
        and headers.get(ATTEMPT, b"").lstrip(b"0") == b"%d" % found.lease.attempt
    )


def _now() -> int:
    return time.time_ns() // 1000
