"""Quotas of tenants: a request over quota waits inside its budget, and is refused where no room comes.

They are judged after everything that is wrong with the request alone, and before whose the id in its path is.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from kernel.control.control import Control
from kernel.domain.buckets import quota_bucket
from kernel.domain.errors import TooMany
from kernel.door.allowance import Allowance, Draw
from kernel.door.concurrent import together
from kernel.door.exchange import Caller, Principal, Request, tenant_of
from kernel.ports import DoorView
from kernel.settings import Settings
from schemas.control import Quotas as Terms
from schemas.scopes import OPERATOR

WORK_SECONDS = 1.0
"""What is left of a request's budget for its work when it stops waiting for room."""
WINDOW_MS = 1000
PORTIONS_PER_SECOND = 100
RATE_MAX = 1_000_000_000
"""A larger rate is no bound on any machine; a bucket of it still counts exactly."""
DAILY_PORTIONS = 1000
PORTION_BYTES_MAX = 1024 * 1024
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.01, 0.25
COUNT_SECONDS = 0.25
"""How long a count of live executions, or of bytes in the log, is believed."""
RETRY_SECONDS_MAX = 60
DAY_SECONDS = 24 * 3600

Count = Callable[[int, str], Coroutine[Any, Any, int]]
"""Counts what a tenant has in one shard."""

_UNCOUNTED = frozenset({"heartbeat"})
_UNBOUNDED = Terms()
_OPERATOR_ALONE = frozenset({OPERATOR})


class Quotas:
    """The quotas of all tenants, as one door enforces them."""

    def __init__(self, *, settings: Settings, control: Control, view: DoorView) -> None:
        self._control = control
        self._view = view
        self._shards = settings.shards
        self._work_seconds = min(WORK_SECONDS, settings.budget_seconds / 2)
        self._allowances: dict[tuple[str, str], tuple[int, int, Allowance]] = {}
        """By tenant and quota: the limit and the day that they hold for, and the share itself."""
        self._counts: dict[tuple[str, str], _Counted] = {}

    @property
    def waiting(self) -> int:
        """How many requests wait for room."""
        return sum(allowance.waiting for _, _, allowance in self._allowances.values())

    async def admit(self, request: Request) -> None:
        """Count a request and its body. Raises TooMany where its tenant has no room for it inside its budget."""
        tenant = _counted_for(request.caller)
        terms = self._terms(tenant)
        if terms is _UNBOUNDED or request.route.operation in _UNCOUNTED:
            return
        await self._take_rate(request, tenant, "requests_per_second", terms.requests_per_second)
        if terms.bytes_per_day is not None and request.body:
            await self._take_bytes(request, tenant, terms.bytes_per_day)

    async def admit_step(self, request: Request) -> None:
        """Count a submission: what `admit` counts, and what it adds to the log.

        Outcomes and ends are let in over `log_bytes`, so that what runs can end.
        """
        await self.admit(request)
        tenant = _counted_for(request.caller)
        limit = self._terms(tenant).log_bytes
        if limit is not None:
            await self._take_room(request, tenant, "log_bytes", limit, len(request.body), self._view.count_log_bytes)

    async def admit_create(self, request: Request) -> None:
        """Count a create: what `admit_step` counts, its own rate, and one execution more."""
        await self.admit_step(request)
        tenant = _counted_for(request.caller)
        terms = self._terms(tenant)
        await self._take_rate(request, tenant, "creates_per_second", terms.creates_per_second)
        if terms.live_executions is not None:
            await self._take_room(request, tenant, "live_executions", terms.live_executions, 1, self._view.count_live)

    def _terms(self, tenant: str) -> Terms:
        record = self._control.tenant(tenant)
        return _UNBOUNDED if record is None or record.quotas == _UNBOUNDED else record.quotas

    # ------------------------------------------------------------ what is drawn

    async def _take_rate(self, request: Request, tenant: str, quota: str, rate: int | None) -> None:
        if rate is None or rate > RATE_MAX:
            return
        portion = max(1, rate // PORTIONS_PER_SECOND)
        draw = partial(self._draw_tokens, tenant, quota_bucket(quota, rate), rate)
        pause_seconds = min(max(portion / rate, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX)
        allowance = self._allowance(tenant, quota, rate, 0, draw, portion=portion, pause_seconds=pause_seconds)
        if not await allowance.take(1, ends_at=self._ends_at(request)):
            raise _over(quota, seconds=allowance.waiting // rate + 1)

    async def _take_bytes(self, request: Request, tenant: str, limit: int) -> None:
        day, passed_seconds = divmod(int(time.time()), DAY_SECONDS)
        portion = max(1, min(limit // DAILY_PORTIONS, PORTION_BYTES_MAX))
        draw = partial(self._spend, tenant, day, limit)
        allowance = self._allowance(
            tenant, "bytes_per_day", limit, day, draw, portion=portion, pause_seconds=PAUSE_SECONDS_MAX
        )
        if not await allowance.take(len(request.body), ends_at=self._ends_at(request)):
            raise _over("bytes_per_day", seconds=DAY_SECONDS - passed_seconds, seconds_max=DAY_SECONDS)

    def _allowance(
        self, tenant: str, quota: str, limit: int, day: int, draw: Draw, *, portion: int, pause_seconds: float
    ) -> Allowance:
        """Return the share of a quota; one that was drawn under other terms is forgotten."""
        found = self._allowances.get((tenant, quota))
        if found is None or found[:2] != (limit, day):
            found = (limit, day, Allowance(draw, portion=portion, pause_seconds=pause_seconds))
            self._allowances[tenant, quota] = found
        return found[2]

    async def _draw_tokens(self, tenant: str, bucket: bytes, rate: int, wanted: int, _least: int) -> int:
        return await self._view.draw_tokens(tenant, bucket, wanted=wanted, max_calls=rate, window_ms=WINDOW_MS)

    async def _spend(self, tenant: str, day: int, limit: int, wanted: int, least: int) -> int:
        return await self._view.spend(tenant, "bytes_per_day", day=day, limit=limit, wanted=wanted, least=least)

    # ------------------------------------------------------------ what is counted

    async def _take_room(
        self, request: Request, tenant: str, quota: str, limit: int, amount: int, count: Count
    ) -> None:
        """Wait until there is room for so much more under the limit. What is in flight elsewhere is not seen yet."""
        loop = asyncio.get_running_loop()
        ends_at = self._ends_at(request)
        counted = self._counts.setdefault((tenant, quota), _Counted())
        while True:
            if loop.time() - counted.at >= COUNT_SECONDS:
                counted.at = loop.time()
                seen = counted.added
                counts = await together(count(shard, tenant) for shard in range(self._shards))
                counted.total = sum(counts)
                # What was let in before the count is in it by now, or in flight.
                counted.added -= seen
            if counted.total + counted.added + amount <= limit:
                counted.added += amount
                return
            if loop.time() + COUNT_SECONDS >= ends_at:
                raise _over(quota, seconds=1)
            await asyncio.sleep(COUNT_SECONDS)

    def _ends_at(self, request: Request) -> float:
        return request.deadline - self._work_seconds


class _Counted(msgspec.Struct):
    """What the view counted of a tenant, and what this door has let in since."""

    total: int = 0
    added: int = 0
    at: float = float("-inf")


def _counted_for(caller: Caller) -> str:
    """Return whose quota a request counts against; an operator's counts against none."""
    if isinstance(caller, Principal) and caller.scopes == _OPERATOR_ALONE:
        return ""
    return tenant_of(caller)


def _over(quota: str, *, seconds: int, seconds_max: int = RETRY_SECONDS_MAX) -> TooMany:
    return TooMany(
        f"the quota {quota} of this tenant is used up",
        reason=quota,
        retry_after_seconds=min(max(seconds, 1), seconds_max),
    )
