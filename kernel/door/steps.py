"""Steps for clients and for the agent itself: one, or all by first submission."""

from kernel.domain.errors import Invalid, InvariantBroken
from kernel.door import bodies, paging
from kernel.door.exchange import Request, Response
from kernel.door.fetching import Shelf
from kernel.door.quotas import Quotas
from kernel.door.reading import query_map
from kernel.door.records import STEPS_READ_MAX, Records
from kernel.door.rendering import array_response, step_bodies, step_json
from schemas.events import STEP_STATUSES, TERMINAL_STEP
from schemas.records import StepRecord

LIMIT_MAX = 1000
TERMINAL = "terminal"


class Steps:
    """Handlers of the routes 3.8 and 3.9."""

    def __init__(self, *, quotas: Quotas, records: Records, shelf: Shelf) -> None:
        self._quotas = quotas
        self._records = records
        self._shelf = shelf

    async def get_step(self, request: Request) -> Response:
        execution_id = bodies.execution_id_of(request)
        step_id = bodies.step_id_of(request)
        await self._quotas.admit(request)
        step = await self._records.step(request, execution_id, step_id)
        rendered = await self._rendered(request, execution_id, [step])
        return Response(status=200, body=rendered[0])

    async def list_steps(self, request: Request) -> Response:
        """Answer a page. Its cursor is the number of its last step, counted by first submission."""
        execution_id = bodies.execution_id_of(request)
        query = query_map(request.query)
        wanted = _statuses(query)
        after = paging.whole_number(query["cursor"], path="cursor") if "cursor" in query else 0
        is_whole = "limit" not in query and "cursor" not in query
        limit = None if is_whole else paging.limit_of(query, default=LIMIT_MAX, maximum=LIMIT_MAX)
        page = _Page(limit)
        await self._quotas.admit(request)
        header, _ = await self._records.read(request, execution_id)
        while after < header.step_count and not page.is_over:
            chunk = await self._records.steps(
                request, execution_id, after=after, count=min(STEPS_READ_MAX, header.step_count - after)
            )
            if not chunk:
                raise InvariantBroken("an execution has fewer steps than its header says")
            after = chunk[-1].ordinal
            matching = [step for step in chunk if step.status in wanted]
            taken = page.take(matching)
            page.rendered += await self._rendered(request, execution_id, taken)
        return array_response(page.rendered, next_cursor=page.cursor if page.is_over else "")

    async def _rendered(self, request: Request, execution_id: str, steps: list[StepRecord]) -> list[bytes]:
        texts = await self._shelf.texts(
            self._records.shard(execution_id),
            execution_id,
            (body for step in steps for body in step_bodies(step)),
            deadline=request.deadline,
        )
        return [step_json(execution_id, step, texts) for step in steps]


class _Page:
    """A page that fills up with steps until its limit, or its weight, is reached and one more is known to exist."""

    def __init__(self, limit: int | None) -> None:
        self.rendered: list[bytes] = []
        self.cursor = ""
        self.is_over = False
        self._limit = limit
        self._count = 0
        self._room = paging.PAGE_BYTES_MAX

    def take(self, steps: list[StepRecord]) -> list[StepRecord]:
        """Return those of the steps that still belong to the page."""
        within = steps if self._limit is None else steps[: self._limit - self._count]
        weights = [_weight(step) for step in within]
        count = paging.fitting(weights, self._room, is_first=self._count == 0)
        self.is_over = count < len(steps)
        self._room -= sum(weights[:count])
        self._count += count
        if count:
            self.cursor = str(within[count - 1].ordinal)
        return within[:count]


def _weight(step: StepRecord) -> int:
    return paging.weight_of(step_bodies(step), texts=(step.target,))


def _statuses(query: dict[str, str]) -> frozenset[str]:
    status = query.get("status", "")
    if not status:
        return frozenset(STEP_STATUSES)
    if status == TERMINAL:
        return TERMINAL_STEP
    if status not in STEP_STATUSES:
        raise Invalid("no such status", path="status")
    return frozenset((status,))
