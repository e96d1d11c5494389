"""The public history of an execution, page by page, with a wait for what comes next."""

import asyncio

import msgspec

from kernel.domain.errors import InvariantBroken
from kernel.door import bodies, paging
from kernel.door.changes import Changes
from kernel.door.exchange import Request, Response
from kernel.door.fetching import Shelf
from kernel.door.quotas import Quotas
from kernel.door.reading import query_map
from kernel.door.records import Records
from kernel.door.rendering import array_response, event_bodies, event_json
from kernel.settings import Settings
from schemas.events import EventRecord, ExecutionPayload, decode_event
from schemas.records import Header, event_field

LIMIT_DEFAULT = 100
LIMIT_MAX = 1000
WAIT_SECONDS_MAX = 25.0
WAIT_POLL_SECONDS = 0.5
"""How long a waiting reader relies on being woken before it looks by itself."""
LAST_LOOK_SECONDS = 2.0
"""What a reader whose wait is over may still take to read the view."""


class Events:
    """Handler of the route 3.4."""

    def __init__(self, *, settings: Settings, quotas: Quotas, records: Records, shelf: Shelf, changes: Changes) -> None:
        self._quotas = quotas
        self._records = records
        self._shelf = shelf
        self._changes = changes
        self._budget_seconds = settings.budget_seconds

    async def list_events(self, request: Request) -> Response:
        execution_id = bodies.execution_id_of(request)
        query = query_map(request.query)
        after = paging.whole_number(query["after_seq"], path="after_seq") if "after_seq" in query else 0
        limit = paging.limit_of(query, default=LIMIT_DEFAULT, maximum=LIMIT_MAX)
        wait_seconds = paging.seconds_of(query, "wait", maximum=WAIT_SECONDS_MAX)
        await self._quotas.admit(request)
        header, events = await self._read(request, execution_id, after, limit)
        if wait_seconds and not events and not header.is_terminal:
            ends_at = request.deadline - self._budget_seconds + wait_seconds
            header, events = await self._awaited(request, execution_id, after, limit, ends_at)
        return await self._page(request, header, events, after)

    async def _read(
        self, request: Request, execution_id: str, after: int, limit: int, *, deadline: float | None = None
    ) -> tuple[Header, list[EventRecord]]:
        fields = [event_field(seq) for seq in range(after + 1, after + 1 + limit)]
        header, values = await self._records.read(request, execution_id, fields, deadline=deadline)
        count = max(0, min(limit, header.event_count - after))
        return header, [_decoded(raw) for raw in values[:count]]

    async def _awaited(
        self, request: Request, execution_id: str, after: int, limit: int, ends_at: float
    ) -> tuple[Header, list[EventRecord]]:
        """Look again whenever something may have happened, until there is an event, or never will be, or time is up."""
        loop = asyncio.get_running_loop()
        deadline = max(request.deadline, ends_at + LAST_LOOK_SECONDS)
        with self._changes.watch(self._records.shard(execution_id), execution_id) as woken:
            while True:
                # Cleared before the look: whatever happens after it wakes the next round.
                woken.clear()
                header, events = await self._read(request, execution_id, after, limit, deadline=deadline)
                # A key that was revoked meanwhile reads nothing more.
                self._records.check_again(request)
                left = ends_at - loop.time()
                if events or header.is_terminal or left <= 0:
                    return header, events
                await _wait_for(woken, min(left, WAIT_POLL_SECONDS))

    async def _page(self, request: Request, header: Header, events: list[EventRecord], after: int) -> Response:
        weights = [_weight(event) for event in events]
        events = events[: paging.fitting(weights, paging.PAGE_BYTES_MAX, is_first=True)]
        execution_id = header.execution_id
        texts = await self._shelf.texts(
            self._records.shard(execution_id),
            execution_id,
            (body for event in events for body in event_bodies(event)),
            deadline=request.deadline,
        )
        rendered = [event_json(execution_id, seq, event, texts) for seq, event in enumerate(events, start=after + 1)]
        last = after + len(events)
        return array_response(rendered, next_cursor=str(last) if events and last < header.event_count else "")


async def _wait_for(woken: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await woken.wait()
    except TimeoutError:
        return


def _weight(event: EventRecord) -> int:
    payload = event.payload
    reason = payload.reason if isinstance(payload, ExecutionPayload) else None
    return paging.weight_of(event_bodies(event), texts=(reason or "",))


def _decoded(raw: bytes | None) -> EventRecord:
    if raw is None:
        raise InvariantBroken("an event that the header counts is missing")
    try:
        return decode_event(raw)
    except msgspec.DecodeError as error:
        raise InvariantBroken("an event in the view cannot be read") from error
