"""Executions for clients: create, list, get, cancel."""

from functools import partial

from msgspec import UNSET, Raw

from kernel.control.control import Control
from kernel.domain.errors import Invalid, InvariantBroken, NotFound
from kernel.domain.identity import shard_of, shard_of_create_key
from kernel.domain.json_values import Document
from kernel.door import bodies, paging
from kernel.door.appending import Appending, decided
from kernel.door.concurrent import together
from kernel.door.drawing import new_id_in
from kernel.door.exchange import NO_CONTENT, Principal, Request, Response
from kernel.door.fetching import Shelf
from kernel.door.freshness import Freshness
from kernel.door.large_bodies import read_document, read_into
from kernel.door.quotas import Quotas
from kernel.door.reading import query_map
from kernel.door.records import Records
from kernel.door.rendering import execution_bodies, execution_json, replayed_headers
from kernel.ports import DoorView, ExecutionQuery
from kernel.settings import Settings
from schemas.answers import Created, Done
from schemas.entries import ExecutionCancelled, ExecutionCreated, Limits
from schemas.events import EXECUTION_STATUSES
from schemas.http import ExecutionPage, encode_http
from schemas.ids import AGENT_ID, new_uuid7, parse_uuid
from schemas.records import Header

LIMIT_DEFAULT = 50
LIMIT_MAX = 200
_PATH = "/v0/executions"
_MICROS = 1_000_000


class Executions:
    """Handlers of the routes 3.1 to 3.3 and 3.7."""

    def __init__(
        self,
        *,
        settings: Settings,
        control: Control,
        appending: Appending,
        quotas: Quotas,
        records: Records,
        shelf: Shelf,
        view: DoorView,
        freshness: Freshness,
    ) -> None:
        self._control = control
        self._appending = appending
        self._quotas = quotas
        self._records = records
        self._shelf = shelf
        self._view = view
        self._freshness = freshness
        self._shards = settings.shards
        self._limits = limits_of(settings)
        self._life_micros = round(settings.life_seconds * _MICROS)
        self._deadline_micros = (
            None if settings.deadline_seconds is None else round(settings.deadline_seconds * _MICROS)
        )

    # ------------------------------------------------------------ create

    async def create_execution(self, request: Request) -> Response:
        principal = principal_of(request)
        entry = await read_into(request, partial(self._created, request, principal))
        await self._quotas.admit_create(request)
        if self._control.agent(principal.tenant, entry.agent_id) is None:
            raise NotFound("agent")
        shard = shard_of(entry.execution_id, self._shards)
        answer = await self._appending.append(request, entry, shard=shard, expected=Created)
        with decided():
            header, _ = await self._records.read(request, answer.execution_id)
            body = await self._json(header, request)
        return Response(status=201, body=body, headers=replayed_headers(answer.is_replayed))

    def _created(self, request: Request, principal: Principal, document: Document) -> ExecutionCreated:
        fields = document.fields
        agent_id = bodies.text(fields, "agent_id")
        bodies.refuse_postponed(fields)
        key, echoed = bodies.create_key(request, document)
        execution_id = self._new_id(principal.tenant, key)
        stamp = self._appending.stamp(request, execution_id)
        life_ends_at = stamp["at"] + self._life_micros
        return ExecutionCreated(
            **stamp,
            agent_id=agent_id,
            created_by=principal.name,
            input=bodies.raw_or_null(fields, "input"),
            dispatch_id=new_uuid7(),
            limits=self._limits,
            deadline_at=(
                None if self._deadline_micros is None else min(stamp["at"] + self._deadline_micros, life_ends_at)
            ),
            life_ends_at=life_ends_at,
            idempotency_key=echoed,
            key=None if key is None else bodies.create_request_key(key, document, _PATH),
        )

    def _new_id(self, tenant: str, key: str | None) -> str:
        """Return a fresh id; a keyed create's lies in the shard that sees every use of its key."""
        if key is None:
            return new_uuid7()
        return new_id_in(shard_of_create_key(tenant, key, self._shards), self._shards)

    async def _json(self, header: Header, request: Request) -> bytes:
        execution_id = header.execution_id
        texts = await self._shelf.texts(
            self._records.shard(execution_id), execution_id, execution_bodies(header), deadline=request.deadline
        )
        return execution_json(header, texts)

    # ------------------------------------------------------------ get, cancel

    async def get_execution(self, request: Request) -> Response:
        execution_id = bodies.execution_id_of(request)
        await self._quotas.admit(request)
        header, _ = await self._records.read(request, execution_id)
        return Response(status=200, body=await self._json(header, request))

    async def cancel_execution(self, request: Request) -> Response:
        execution_id = bodies.execution_id_of(request)
        await read_document(request, is_optional=True)
        entry = ExecutionCancelled(
            **self._appending.stamp(request, execution_id),
            cancelled_by=principal_of(request).name,
        )
        await self._appending.to_owned(request, entry, Done)
        return NO_CONTENT

    # ------------------------------------------------------------ list

    async def list_executions(self, request: Request) -> Response:
        tenant = principal_of(request).tenant
        query = _query_of(request)
        await self._quotas.admit(request)
        if query.agent_id and not AGENT_ID.fullmatch(query.agent_id):
            # No agent has such an id; the view is not asked about text that it builds no key from.
            return Response(status=200, body=encode_http(ExecutionPage(executions=())))
        found = await together(
            self._freshness.read(shard, partial(self._view.executions, shard, tenant, query), deadline=request.deadline)
            for shard in range(self._shards)
        )
        merged = sorted((header for page in found for header in page), key=_id_of, reverse=True)[: query.limit]
        if any(header.tenant != tenant for header in merged):
            raise InvariantBroken("the view answered with another tenant's record")
        return await self._page(request, merged, limit=query.limit - 1)

    async def _page(self, request: Request, headers: list[Header], *, limit: int) -> Response:
        """Render a page of up to `limit`; `headers` may hold one more, which says that there is a next page."""
        weights = [
            paging.weight_of(execution_bodies(header), texts=(header.failure_reason,)) for header in headers[:limit]
        ]
        count = paging.fitting(weights, paging.PAGE_BYTES_MAX, is_first=True)
        rendered = await together(self._json(header, request) for header in headers[:count])
        has_more = count < len(headers)
        page = ExecutionPage(
            executions=tuple(Raw(each) for each in rendered),
            next_cursor=headers[count - 1].execution_id if has_more else UNSET,
        )
        return Response(status=200, body=encode_http(page))


def _query_of(request: Request) -> ExecutionQuery:
    """Return the question to one shard. It asks for one item more than the page has, to know whether more exist."""
    query = query_map(request.query)
    status = query.get("status", "")
    if status and status not in EXECUTION_STATUSES:
        raise Invalid("no such status", path="status")
    cursor = query.get("cursor", "")
    before_id = parse_uuid(cursor) if cursor else ""
    if before_id is None:
        raise Invalid("not a cursor", path="cursor")
    created_before = paging.time_of(query, "created_before")
    return ExecutionQuery(
        agent_id=query.get("agent_id", ""),
        status=status,
        created_after=max(0, paging.time_of(query, "created_after")),
        # 0 stands for absence, and nothing is as old as 1970.
        created_before=max(1, created_before) if "created_before" in query else 0,
        before_id=before_id,
        limit=paging.limit_of(query, default=LIMIT_DEFAULT, maximum=LIMIT_MAX) + 1,
    )


def _id_of(header: Header) -> str:
    return header.execution_id


def principal_of(request: Request) -> Principal:
    if not isinstance(request.caller, Principal):
        raise InvariantBroken("a bearer route was entered without a principal")
    return request.caller


def limits_of(settings: Settings) -> Limits:
    """Return the settings that an execution keeps for life."""
    return Limits(
        attempts_max=settings.attempts_max,
        lease_ms=round(settings.lease_seconds * 1000),
        unacknowledged_lease_ms=round(settings.unacknowledged_lease_seconds * 1000),
        base_delay_ms=round(settings.base_delay_seconds * 1000),
        delay_max_ms=round(settings.delay_seconds_max * 1000),
        unreachable_ms=round(settings.unreachable_seconds * 1000),
    )
