"""The dispatcher: takes what has become due and does it. Deliveries are claimed and sent; the rest is appended.

Any number may run. A dispatcher decides nothing: the fold judges every entry. An agent that is slow or dead fills
its own places alone, because no loop here ever waits for a delivery.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import assert_never

from kernel.control.control import Control
from kernel.domain.errors import Unavailable
from kernel.ports import DueItem, Log, View, Wakes, answers_channel, due_channel
from kernel.settings import Settings
from workers.dispatching.appends import Appends
from workers.dispatching.claims import Claims
from workers.dispatching.delivery import Deliveries
from workers.dispatching.entries import agent_missing, approval_expired, deadline_passed, lease_expired
from workers.dispatching.slots import Slot, Slots
from workers.dispatching.tasks import Tasks
from workers.dispatching.turns import Owner, Returns, Turn, Turns, at_least_ms
from workers.webhook import WebhookSender

GROUP = "dispatchers"
ITEMS_MAX = 128
"""Due items taken at once from one shard."""
LAPSE_SECONDS = 1.0
"""A delivery stops waiting for its turn that long before the hold on its item ends."""
NOT_LEVEL_MS = 250
PAUSE_SECONDS_MIN = 0.02
"""Between two looks that found nothing, whatever the view says is due next."""
PAUSE_SECONDS_MAX = 2.0
JITTER_STEPS = 1000

logger = logging.getLogger(__name__)


class Dispatcher:
    """One dispatcher over all shards."""

    def __init__(
        self,
        *,
        settings: Settings,
        log: Log,
        view: View,
        wakes: Wakes,
        control: Control,
        name: str,
        sender: WebhookSender | None = None,
    ) -> None:
        self._settings = settings
        self._view = view
        self._wakes = wakes
        self._control = control
        self._name = name
        self._claims = Claims(log=log, view=view, name=name)
        self._deliveries = Deliveries(
            log=log, claims=self._claims, control=control, sender=sender or WebhookSender(settings)
        )
        self._slots = Slots(view, name=name, delivery_seconds=settings.delivery_seconds)
        self._appends = Appends(log)
        self._turns = Turns(open_max=settings.deliveries_max)
        self._returns = Returns()
        self._is_stopping = False
        self._woken = tuple(asyncio.Event() for _ in range(settings.shards))

    def stop(self) -> None:
        """Take and claim nothing more; `run` then returns, after open deliveries had their time to end."""
        self._is_stopping = True
        for woken in self._woken:
            woken.set()

    async def run(self) -> None:
        """Serve until stopped or cancelled. What is cut off is left to its hold or its lease."""
        async with AsyncExitStack() as stack:
            answers = await self._wakes.listen(answers_channel(self._name), self._claims.heard)
            stack.push_async_callback(answers.close)
            for shard, woken in enumerate(self._woken):
                due = await self._wakes.listen(due_channel(shard), _setter(woken), group=GROUP)
                stack.push_async_callback(due.close)
            async with asyncio.TaskGroup() as group:
                tasks = Tasks(group)
                async with asyncio.TaskGroup() as loops:
                    for shard in range(self._settings.shards):
                        loops.create_task(self._serve(shard, tasks), name=f"dispatch-{shard}")
                await self._give_back_waiting()
                await tasks.drain(wait_seconds=self._settings.drain_seconds)

    async def _serve(self, shard: int, tasks: Tasks) -> None:
        woken = self._woken[shard]
        failures = 0
        while not self._is_stopping:
            woken.clear()
            try:
                pause_seconds = await self._take(shard, tasks)
                failures = 0
            except Unavailable as error:
                failures += 1
                if failures == 1:
                    logger.warning("shard %d: what is due cannot be taken: %s", shard, error)
                pause_seconds = self._backoff_seconds(failures)
            except Exception:
                # The top of a loop: one shard's trouble must not end the others.
                failures += 1
                logger.exception("shard %d: taking what is due broke", shard)
                pause_seconds = self._backoff_seconds(failures)
            if not self._is_stopping:
                await _wait(woken, pause_seconds)

    def _backoff_seconds(self, failures: int) -> float:
        return min(self._settings.due_poll_seconds * 2 ** min(failures, 8), PAUSE_SECONDS_MAX)

    async def _take(self, shard: int, tasks: Tasks) -> float:
        """Take what is due and start it; return the seconds until there may be more."""
        taken_at = _now()
        due = await self._view.take_due(
            shard,
            items_max=ITEMS_MAX,
            hold_ms=int(self._settings.due_hold_seconds * 1000),
            lease_ms=int(self._settings.lease_seconds * 1000),
        )
        deliveries = [item for item in due.items if item.kind == "delivery"]
        if self._control.is_level:
            await self._offer(shard, deliveries, taken_at, tasks)
        elif deliveries:
            # Nothing is decided by agents that may have changed.
            await self._view.defer(shard, deliveries, delay_ms=NOT_LEVEL_MS)
        self._start_ready(tasks)
        for item in due.items:
            await self._append_due(shard, item, tasks)
        if due.next_due_ms is None:
            return self._settings.due_poll_seconds
        pause_seconds_min = 0.0 if due.items else PAUSE_SECONDS_MIN
        return min(max(due.next_due_ms / 1000, pause_seconds_min), self._settings.due_poll_seconds)

    # ------------------------------------------------------------ deliveries

    async def _offer(self, shard: int, items: Sequence[DueItem], taken_at: float, tasks: Tasks) -> None:
        """Let the deliveries wait for their turn; what has no place to wait is given back."""
        lapses_at = taken_at + self._settings.due_hold_seconds - LAPSE_SECONDS
        over: dict[Owner, list[DueItem]] = {}
        for item in items:
            agent = self._control.agent(item.tenant, item.agent_id)
            if agent is None:
                await self._append_missing(shard, item, tasks)
                continue
            turn = Turn(shard=shard, item=item, limit=agent.max_concurrency, lapses_at=lapses_at)
            if not self._turns.offer(turn, now=taken_at):
                over.setdefault(turn.owner, []).append(item)
        for owner, rest in over.items():
            delay_ms = self._returns.delay_ms(owner, count=len(rest), now=taken_at)
            await self._view.defer(shard, rest, delay_ms=delay_ms)

    def _start_ready(self, tasks: Tasks) -> None:
        while not self._is_stopping and (turn := self._turns.take(now=_now())) is not None:
            tasks.start(self._deliver(turn, tasks), what=f"delivering execution {turn.item.execution_id}")

    async def _deliver(self, turn: Turn, tasks: Tasks) -> None:
        try:
            slot = await self._take_slot(turn)
            if slot is not None:
                async with slot:
                    self._admit(turn, tasks)
                    await self._deliveries.deliver(turn.shard, turn.item, slot)
                # Its slot is free again, here first.
                self._turns.admit(turn)
        finally:
            self._turns.finish(turn)
        self._start_ready(tasks)

    async def _take_slot(self, turn: Turn) -> Slot | None:
        """Return the slot of a delivery whose turn it is; None where it has to wait, which uses up no attempt."""
        item = turn.item
        agent = self._control.agent(item.tenant, item.agent_id)
        try:
            slot = await self._slots.take(item, limit=turn.limit if agent is None else agent.max_concurrency)
            if slot is None:
                # Back before its turn it would wait for whatever happens next.
                await self._view.defer(turn.shard, [item], delay_ms=at_least_ms(self._refuse(turn)))
                # The loop asks when that will be, and is there in time.
                self._woken[turn.shard].set()
        except Unavailable as error:
            # Nothing is sent that nobody counts. The item comes back with the end of its hold.
            logger.info("execution %s: no webhook slot can be taken: %s", item.execution_id, error)
            self._refuse(turn)
            return None
        return slot

    def _admit(self, turn: Turn, tasks: Tasks) -> None:
        self._turns.admit(turn)
        self._start_ready(tasks)

    def _refuse(self, turn: Turn) -> float:
        jitter = secrets.randbelow(JITTER_STEPS) / JITTER_STEPS
        return self._turns.refuse(turn, now=_now(), jitter=jitter)

    async def _give_back_waiting(self) -> None:
        waiting: dict[int, list[DueItem]] = {}
        for turn in self._turns.clear():
            waiting.setdefault(turn.shard, []).append(turn.item)
        for shard, items in waiting.items():
            try:
                await self._view.defer(shard, items, delay_ms=0)
            except Unavailable as error:
                logger.info("shard %d: what waited comes back with the end of its hold: %s", shard, error)

    # ------------------------------------------------------------ what is only appended

    async def _append_due(self, shard: int, item: DueItem, tasks: Tasks) -> None:
        match item.kind:
            case "delivery":
                return
            case "lease":
                entry = lease_expired(item)
            case "deadline":
                entry = deadline_passed(item)
            case "approval":
                entry = approval_expired(item)
            case _:
                assert_never(item.kind)
        if entry is not None:
            await self._appends.start(tasks, shard, entry)

    async def _append_missing(self, shard: int, item: DueItem, tasks: Tasks) -> None:
        """End an execution whose agent is gone, once that is certain.

        The agents known here may be older than the execution. One lag later a control state that counts as level was
        level after the item was taken, hence after the execution was created.
        """

        async def is_gone() -> bool:
            await asyncio.sleep(self._settings.control_lag_seconds_max)
            if self._control.is_level and self._control.agent(item.tenant, item.agent_id) is None:
                return True
            await self._view.defer(shard, [item], delay_ms=0)
            return False

        await self._appends.start(tasks, shard, agent_missing(item), only_if=is_gone)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _setter(event: asyncio.Event) -> Callable[[bytes], None]:
    def heard(_payload: bytes) -> None:
        event.set()

    return heard


async def _wait(event: asyncio.Event, wait_seconds: float) -> None:
    """Return when the event is set, or the time is up."""
    try:
        async with asyncio.timeout(wait_seconds):
            await event.wait()
    except TimeoutError:
        return
