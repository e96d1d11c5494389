"""Approvals for those who decide: list, read, grant, deny."""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Literal

from msgspec.structs import replace

from kernel.domain.errors import Invalid, NotFound
from kernel.domain.identity import shard_of
from kernel.door import bodies, paging
from kernel.door.appending import Appending
from kernel.door.concurrent import together
from kernel.door.exchange import NO_CONTENT, NO_CONTENT_REPLAYED, Principal, Request, Response
from kernel.door.executions import principal_of
from kernel.door.freshness import Freshness
from kernel.door.large_bodies import read_document
from kernel.door.quotas import Quotas
from kernel.door.reading import query_map
from kernel.door.rendering import approval_json, array_response
from kernel.ports import ApprovalQuery, DoorView, ListedApproval
from kernel.settings import Settings
from schemas.answers import Done
from schemas.entries import ApprovalDecided
from schemas.events import APPROVAL_STATUSES, ApprovalStatus
from schemas.ids import AGENT_ID, new_uuid7, parse_uuid

LIMIT_DEFAULT = 100
LIMIT_MAX = 1000
READ_MAX = 100
"""Approvals asked for in one read of a shard."""
ASSERT_SCOPE = "approvals:assert"
_ALL = "all"
_PENDING = "pending"
_PATH = "/v0/approvals"


class Approvals:
    """Handlers of the routes 3.23 to 3.25."""

    def __init__(
        self, *, settings: Settings, appending: Appending, quotas: Quotas, view: DoorView, freshness: Freshness
    ) -> None:
        self._appending = appending
        self._quotas = quotas
        self._view = view
        self._freshness = freshness
        self._shards = settings.shards

    # ------------------------------------------------------------ read

    async def get_approval(self, request: Request) -> Response:
        approval_id = bodies.approval_id_of(request)
        await self._quotas.admit(request)
        approval = await self._found(request, approval_id)
        return Response(status=200, body=approval_json(approval))

    async def list_approvals(self, request: Request) -> Response:
        """Answer a page, oldest first. Its cursor is the id of its last approval."""
        query = query_map(request.query)
        is_whole = "limit" not in query and "cursor" not in query
        limit = None if is_whole else paging.limit_of(query, default=LIMIT_DEFAULT, maximum=LIMIT_MAX)
        asked = _query_of(query, limit)
        await self._quotas.admit(request)
        if asked.agent_id and not AGENT_ID.fullmatch(asked.agent_id):
            # No agent has such an id; the view is not asked about text that it builds no key from.
            return array_response((), next_cursor="")
        found = self._merge(request, asked)
        rendered: list[bytes] = []
        room = paging.PAGE_BYTES_MAX
        last_id = ""
        while (approval := await found.next()) is not None:
            text = approval_json(approval)
            room -= len(text) + 1
            if len(rendered) == limit or (rendered and room < 0):
                return array_response(rendered, next_cursor=last_id)
            rendered.append(text)
            last_id = approval.record.approval_id
        return array_response(rendered, next_cursor="")

    def _merge(self, request: Request, asked: ApprovalQuery) -> "_Merge":
        shards = (shard_of(asked.execution_id, self._shards),) if asked.execution_id else range(self._shards)
        return _Merge([_Head(shard, asked) for shard in shards], partial(self._read, request))

    async def _read(self, request: Request, shard: int, query: ApprovalQuery) -> tuple[ListedApproval, ...]:
        """Return what one shard has of the caller's, as soon as that is fresh."""
        ask = partial(self._view.approvals, shard, principal_of(request).tenant, query)
        return await self._freshness.read(shard, ask, deadline=request.deadline)

    async def _found(self, request: Request, approval_id: str) -> ListedApproval:
        """Return the caller's approval; a foreign one is as unknown as one that never was."""
        query = ApprovalQuery(approval_id=approval_id, limit=1)
        found = await self._read(request, shard_of(approval_id, self._shards), query)
        if not found:
            raise NotFound("approval")
        return found[0]

    # ------------------------------------------------------------ decide

    async def grant_approval(self, request: Request) -> Response:
        return await self._decide(request, "granted", verb="grant")

    async def deny_approval(self, request: Request) -> Response:
        return await self._decide(request, "denied", verb="deny")

    async def _decide(self, request: Request, decision: Literal["granted", "denied"], *, verb: str) -> Response:
        approval_id = bodies.approval_id_of(request)
        document = await read_document(request, is_optional=True)
        principal = principal_of(request)
        decided_by, asserted_by = decider_of(principal, bodies.optional_text(document.fields, "decided_by"))
        entry = ApprovalDecided(
            # The execution is read below, once everything about the request itself was judged.
            **self._appending.stamp(request, approval_id),
            approval_id=approval_id,
            decision=decision,
            principal=principal.name,
            decided_by=decided_by,
            asserted_by=asserted_by,
            rationale=bodies.optional_text(document.fields, "rationale"),
            dispatch_id=new_uuid7(),
            key=bodies.request_key(request, document, f"{_PATH}/{approval_id}/{verb}"),
        )
        self._appending.encoded(entry)
        await self._quotas.admit(request)
        execution_id = (await self._found(request, approval_id)).execution_id
        entry = replace(entry, execution_id=execution_id)
        shard = shard_of(execution_id, self._shards)
        try:
            answer = await self._appending.append(request, entry, shard=shard, expected=Done)
        except NotFound as error:
            # The execution is gone since, and its approval with it.
            raise NotFound("approval") from error
        return NO_CONTENT_REPLAYED if answer.is_replayed else NO_CONTENT


class _Head:
    """What is read of one shard and not taken yet."""

    def __init__(self, shard: int, query: ApprovalQuery) -> None:
        self.shard = shard
        self.query = query
        self.waiting: deque[ListedApproval] = deque()
        self.is_over = False

    def take_in(self, read: Iterable[ListedApproval]) -> None:
        self.waiting.extend(read)
        self.is_over = len(self.waiting) < self.query.limit
        if self.waiting:
            self.query = replace(self.query, after_id=self.waiting[-1].record.approval_id)


class _Merge:
    """The approvals of several shards by id, read as far as they are asked for."""

    def __init__(
        self, heads: list[_Head], read: Callable[[int, ApprovalQuery], Awaitable[tuple[ListedApproval, ...]]]
    ) -> None:
        self._heads = heads
        self._read = read

    async def next(self) -> ListedApproval | None:
        """Return the next one, None after the last."""
        empty = [head for head in self._heads if not head.waiting and not head.is_over]
        if empty:
            await together(self._read_on(head) for head in empty)
        self._heads = [head for head in self._heads if head.waiting]
        if not self._heads:
            return None
        return min(self._heads, key=_first_id).waiting.popleft()

    async def _read_on(self, head: _Head) -> None:
        head.take_in(await self._read(head.shard, head.query))


def _first_id(head: _Head) -> str:
    return head.waiting[0].record.approval_id


def decider_of(principal: Principal, named: str) -> tuple[str, str]:
    """Return who decides, and who says so where that is another: naming one takes a scope, which all have in dev."""
    if named and ASSERT_SCOPE in principal.scopes:
        return named, principal.name
    return principal.name, ""


def _query_of(query: dict[str, str], limit: int | None) -> ApprovalQuery:
    """Return the first question to a shard. One approval more than the page has tells that more exist."""
    execution_id = parse_uuid(query["execution_id"]) if "execution_id" in query else ""
    if execution_id is None:
        raise Invalid("not a dashed UUID", path="execution_id")
    after_id = parse_uuid(query["cursor"]) if "cursor" in query else ""
    if after_id is None:
        raise Invalid("not a cursor", path="cursor")
    return ApprovalQuery(
        status=_status_of(query.get("status", _PENDING)),
        agent_id=query.get("agent_id", ""),
        execution_id=execution_id,
        after_id=after_id,
        limit=READ_MAX if limit is None else min(limit + 1, READ_MAX),
    )


def _status_of(text: str) -> ApprovalStatus | Literal[""]:
    if text == _ALL:
        return ""
    for status in APPROVAL_STATUSES:
        if status == text:
            return status
    raise Invalid("no such status", path="status")
