"""The agents of a tenant: register, read, delete, and the metadata an agent gives of itself."""

from collections.abc import Mapping
from functools import partial
from typing import Literal
from urllib.parse import unquote

from msgspec import UNSET, Raw, UnsetType

from kernel.control.agents import Agent
from kernel.control.control import Control
from kernel.domain.addresses import LOOPBACK_NETWORKS
from kernel.domain.errors import Conflict, Invalid, InvariantBroken, NotFound
from kernel.domain.json_values import Value
from kernel.door import bodies, paging
from kernel.door.changing import now_micros, submitted
from kernel.door.concurrent import together
from kernel.door.exchange import NO_CONTENT, Request, Response, Signer
from kernel.door.executions import principal_of
from kernel.door.freshness import Freshness
from kernel.door.large_bodies import read_document
from kernel.door.quotas import Quotas
from kernel.door.reading import query_map
from kernel.door.rendering import agent_json, array_response
from kernel.door.webhook_urls import check_webhook_url
from kernel.ports import DoorView
from kernel.settings import Settings
from schemas.bodies import NULL
from schemas.control import AgentDeleted, AgentDescribed, AgentPut, SealedSecret
from schemas.ids import AGENT_ID, new_uuid7

LIMIT_DEFAULT = 100
LIMIT_MAX = 1000
SECRET_BYTES_MIN = 16
"""In server mode; in dev any secret will do."""
CONCURRENCY_MAX = 1_000_000


class AgentAdmin:
    """Handlers of the routes 3.17 to 3.20."""

    def __init__(
        self, *, settings: Settings, control: Control, quotas: Quotas, view: DoorView, freshness: Freshness
    ) -> None:
        self._control = control
        self._quotas = quotas
        self._view = view
        self._freshness = freshness
        self._shards = settings.shards
        is_dev = settings.mode == "dev"
        self._secret_bytes_min = 1 if is_dev else SECRET_BYTES_MIN
        self._allowed_networks = settings.webhook_allow_networks + (LOOPBACK_NETWORKS if is_dev else ())

    # ------------------------------------------------------------ register

    async def register_agent(self, request: Request) -> Response:
        principal = principal_of(request)
        fields = (await read_document(request)).fields
        agent_id = bodies.text(fields, "id")
        if not AGENT_ID.fullmatch(agent_id):
            raise Invalid("1 to 128 letters, digits and . _ : -", path="id")
        url = bodies.text(fields, "webhook_url")
        entry = AgentPut(
            id=new_uuid7(),
            at=now_micros(),
            by=principal.name,
            tenant=principal.tenant,
            agent_id=agent_id,
            webhook_url=url,
            secret=self._sealed(fields, "secret", principal.tenant, agent_id),
            next_secret=self._sealed(fields, "next_secret", principal.tenant, agent_id),
            require_v1=bodies.boolean(fields["require_v1"]) if "require_v1" in fields else UNSET,
            max_concurrency=(
                bodies.integer(fields["max_concurrency"], low=1, high=CONCURRENCY_MAX)
                if "max_concurrency" in fields
                else UNSET
            ),
        )
        await check_webhook_url(url, self._allowed_networks)
        await self._quotas.admit(request)
        accepted = await submitted(self._control, entry, request)
        agent = self._known(principal.tenant, agent_id)
        return Response(status=201 if accepted.is_new else 200, body=agent_json(agent))

    def _sealed(
        self, fields: Mapping[str, Value], name: Literal["secret", "next_secret"], tenant: str, agent_id: str
    ) -> SealedSecret | UnsetType:
        secret = bodies.optional_text(fields, name).encode()
        if not secret:
            return UNSET
        if len(secret) < self._secret_bytes_min:
            raise Invalid(f"shorter than {self._secret_bytes_min} bytes", path=name)
        return self._control.sealer.seal(secret, tenant=tenant, agent_id=agent_id, field=name)

    # ------------------------------------------------------------ read

    async def list_agents(self, request: Request) -> Response:
        """Answer a page, sorted by id. Its cursor is the id of its last agent."""
        query = query_map(request.query)
        limit = paging.limit_of(query, default=LIMIT_DEFAULT, maximum=LIMIT_MAX)
        cursor = query.get("cursor", "")
        if cursor and not AGENT_ID.fullmatch(cursor):
            raise Invalid("not a cursor", path="cursor")
        await self._quotas.admit(request)
        agents = [agent for agent in self._control.agents(principal_of(request).tenant) if agent.agent_id > cursor]
        rendered = [agent_json(agent) for agent in agents[:limit]]
        count = paging.fitting([len(each) + 1 for each in rendered], paging.PAGE_BYTES_MAX, is_first=True)
        next_cursor = agents[count - 1].agent_id if count < len(agents) else ""
        return array_response(rendered[:count], next_cursor=next_cursor)

    async def get_agent(self, request: Request) -> Response:
        await self._quotas.admit(request)
        agent = self._known(principal_of(request).tenant, agent_id_of(request))
        return Response(status=200, body=agent_json(agent))

    def _known(self, tenant: str, agent_id: str) -> Agent:
        agent = self._control.agent(tenant, agent_id)
        if agent is None:
            raise NotFound("agent")
        return agent

    # ------------------------------------------------------------ delete

    async def delete_agent(self, request: Request) -> Response:
        """Delete an agent without live executions. One created meanwhile fails when its dispatch finds no agent."""
        principal = principal_of(request)
        agent_id = agent_id_of(request)
        await self._quotas.admit(request)
        self._known(principal.tenant, agent_id)
        live = await together(
            self._freshness.read(
                shard,
                partial(self._view.live_executions, shard, principal.tenant, agent_id),
                deadline=request.deadline,
            )
            for shard in range(self._shards)
        )
        if sum(live):
            raise Conflict("the agent has live executions")
        entry = AgentDeleted(
            id=new_uuid7(), at=now_micros(), by=principal.name, tenant=principal.tenant, agent_id=agent_id
        )
        await submitted(self._control, entry, request)
        return NO_CONTENT

    # ------------------------------------------------------------ metadata

    async def describe_agent(self, request: Request) -> Response:
        """Replace the three members that an agent says of itself; absent ones become null."""
        signer = request.caller
        if not isinstance(signer, Signer):
            raise InvariantBroken("an agent route was entered without a signature")
        fields = (await read_document(request, is_optional=True)).fields
        entry = AgentDescribed(
            id=new_uuid7(),
            at=now_micros(),
            by=signer.agent_id,
            tenant=signer.tenants[0],
            agent_id=signer.agent_id,
            description=_description(fields),
            input_schema=_schema(fields, "input_schema"),
            output_schema=_schema(fields, "output_schema"),
        )
        await self._quotas.admit(request)
        if agent_id_of(request) != signer.agent_id:
            raise NotFound("agent")
        await submitted(self._control, entry, request)
        return NO_CONTENT


def agent_id_of(request: Request) -> str:
    """Return the agent id in the path, unescaped: `:` is often sent as `%3A`."""
    return unquote(request.names[0].decode("latin-1"), errors="replace")


def _description(fields: Mapping[str, Value]) -> str | None:
    value = fields.get("description")
    if value is None or value.plain is None:
        return None
    return bodies.text(fields, "description") or None


def _schema(fields: Mapping[str, Value], name: str) -> Raw:
    value = fields.get(name)
    if value is None or value.plain is None:
        return Raw(NULL)
    if not isinstance(value.plain, dict):
        raise Invalid("an object or null is required", path=name)
    return Raw(value.raw)
