"""The public history of an execution: page by page with a wait for what comes next, or as a stream."""

import asyncio

import msgspec

from kernel.domain.errors import InvariantBroken
from kernel.door import bodies, paging
from kernel.door.changes import Changes
from kernel.door.exchange import Request, Response, Streamed, tenant_of
from kernel.door.fetching import Shelf
from kernel.door.quotas import Quotas
from kernel.door.reading import query_map
from kernel.door.records import Records
from kernel.door.rendering import array_response, event_bodies, event_json
from kernel.door.streams import KEEP_ALIVE, KEEP_ALIVE_SECONDS, LOOK_SECONDS, Chunks, end_frame, frame
from kernel.settings import Settings
from schemas.events import EventRecord, ExecutionPayload, decode_event
from schemas.records import Header, event_field

LIMIT_DEFAULT = 100
LIMIT_MAX = 1000
WAIT_SECONDS_MAX = 25.0
WAIT_POLL_SECONDS = 0.5
"""How long a waiting reader relies on being woken before it looks by itself."""
LAST_EVENT_ID = b"last-event-id"
LAST_LOOK_SECONDS = 2.0
"""What a reader whose wait is over may still take to read the view."""


class Events:
    """Handlers of the routes 3.4 and 3.5."""

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

    async def stream_events(self, request: Request) -> Streamed:
        execution_id = bodies.execution_id_of(request)
        after = _start_of(request)
        await self._quotas.admit(request)
        await self._records.read(request, execution_id)
        return Streamed(self._chunks(request, execution_id, after), tenant_of(request.caller))

    async def _chunks(self, request: Request, execution_id: str, after: int) -> Chunks:
        """Give what the view has after `after`, page by page, and whatever is added, to the end of the execution."""
        yield KEEP_ALIVE
        loop = asyncio.get_running_loop()
        spoke_at = loop.time()
        with self._changes.watch(self._records.shard(execution_id), execution_id) as woken:
            while True:
                # Cleared before the look: whatever happens after it wakes the next round.
                woken.clear()
                look = msgspec.structs.replace(request, deadline=loop.time() + self._budget_seconds)
                header, events = await self._read(look, execution_id, after, LIMIT_MAX)
                # A key that was revoked meanwhile reads nothing more.
                self._records.check_again(request)
                rendered = await self._rendered(look, execution_id, events, after)
                frames = [frame(event, event_id=seq) for seq, event in enumerate(rendered, start=after + 1)]
                after += len(frames)
                if header.is_terminal and after >= header.event_count:
                    yield b"".join((*frames, end_frame(header)))
                    return
                if not frames and loop.time() >= spoke_at + KEEP_ALIVE_SECONDS:
                    frames = [KEEP_ALIVE]
                if frames:
                    spoke_at = loop.time()
                    yield b"".join(frames)
                if after >= header.event_count:
                    await _wait_for(woken, LOOK_SECONDS)

    async def _page(self, request: Request, header: Header, events: list[EventRecord], after: int) -> Response:
        rendered = await self._rendered(request, header.execution_id, events, after)
        last = after + len(rendered)
        return array_response(rendered, next_cursor=str(last) if rendered and last < header.event_count else "")

    async def _rendered(
        self, request: Request, execution_id: str, events: list[EventRecord], after: int
    ) -> list[bytes]:
        """Return as many of the events as fit into one answer, the first one in any case."""
        weights = [_weight(event) for event in events]
        events = events[: paging.fitting(weights, paging.PAGE_BYTES_MAX, is_first=True)]
        texts = await self._shelf.texts(
            self._records.shard(execution_id),
            execution_id,
            (body for event in events for body in event_bodies(event)),
            deadline=request.deadline,
        )
        return [event_json(execution_id, seq, event, texts) for seq, event in enumerate(events, start=after + 1)]


def _start_of(request: Request) -> int:
    """Return the number of the last event that the reader has: of the one it saw before where it says so."""
    seen = request.headers.get(LAST_EVENT_ID)
    if seen is not None:
        return paging.whole_number(seen.decode("latin-1"), path="Last-Event-ID")
    query = query_map(request.query)
    return paging.whole_number(query["after_seq"], path="after_seq") if "after_seq" in query else 0


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
