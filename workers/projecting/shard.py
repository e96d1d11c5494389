"""Owning one shard: take over, verify, rebuild where needed, then fold batches until ownership ends.

The position is the watermark, written by the same script as the view. After anything but a clean success the memory
is dropped and the view is asked what it holds; nothing is ever guessed.
"""

import asyncio
import logging
import time
from collections import deque
from typing import NoReturn

from kernel.domain.duty import duties
from kernel.domain.errors import InvariantBroken, KernelError, OwnershipLost, Unavailable, ViewUnavailable
from kernel.ports import (
    Batch,
    Follower,
    Log,
    LogMessage,
    LogState,
    Ownership,
    ProjectorView,
    StoredAnswer,
    ViewState,
    Wakes,
    Watermark,
    answers_channel,
    changes_channel,
    due_channel,
)
from kernel.settings import Settings
from schemas.answers import AnswerBatch, encode_answer, encode_batch
from schemas.records import Header, encode_record
from workers.projecting.batch import FoldedBatch, ShardStopped, ViewDamaged, fold_batch, inspect
from workers.projecting.collecting import Collecting
from workers.projecting.marks import Marks
from workers.projecting.memory import ShardMemory

logger = logging.getLogger(__name__)

ANSWERS_KEPT_SECONDS = 120
"""Answers of entries older than this are not stored: nobody can wait for them, and no copy of them can follow."""
ANSWERS_TOLD_SECONDS = 30
"""Waiting processes hear of entries younger than this: the longest request budget."""
EMPTY_WAIT_SECONDS = 0.25
RESEND_PAUSE_SECONDS = 0.1
RESENDS_MAX = 20
RELEASE_SECONDS_MAX = 1.0
NOTHING_FOLDED = FoldedBatch(count=0, answered=(), changes=(), create_keys=(), parked=())


class ShardOwner:
    """One owned shard. `run` returns never; it raises OwnershipLost, ShardStopped, VersionUnknown or driver errors."""

    def __init__(
        self, ownership: Ownership, *, settings: Settings, log: Log, view: ProjectorView, wakes: Wakes
    ) -> None:
        self.shard = ownership.shard
        self._ownership = ownership
        self._settings = settings
        self._log = log
        self._view = view
        self._wakes = wakes
        self._marks = Marks(self.shard, log)
        self._collecting = Collecting(self.shard, log, unreferenced_seconds=settings.unreferenced_seconds)
        self._memory = self._fresh_memory()
        self._watermark = Watermark(created_at="", seq=0, checksum="")
        self._rebuild_until = 0
        """Readers wait until the watermark has reached this sequence."""
        self._is_damaged = False
        self._kept_at = 0.0

    async def run(self) -> NoReturn:
        """Own the shard until it is lost. Every return to the top starts from what the view says."""
        while True:
            try:
                await self._take_over()
                await self._follow()
            except Unavailable as error:
                logger.warning("shard %d starts anew: %s", self.shard, error)
                await asyncio.sleep(RESEND_PAUSE_SECONDS)
            except (ViewDamaged, InvariantBroken) as error:
                logger.critical("shard %d: the view is damaged: %s", self.shard, error)
                self._is_damaged = True
                # Damage that comes back at once must be no busy loop, and the fence must not run out meanwhile.
                await asyncio.sleep(self._settings.owner_ttl_seconds / 4)

    async def release(self) -> None:
        """Hand the shard over, so that the next owner need not wait for the fence to run out."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS_MAX):
                await self._view.release(self._ownership)
        except (KernelError, TimeoutError) as error:
            logger.warning("shard %d could not be handed over: %s", self.shard, error)

    def _fresh_memory(self) -> ShardMemory:
        settings = self._settings
        return ShardMemory(executions_max=max(settings.cached_executions_max // settings.shards, 16))

    # ------------------------------------------------------------ taking over

    async def _take_over(self) -> None:
        found = await self._keep()
        log_state = await self._log.state(self.shard)
        self._memory = self._fresh_memory()
        if found.watermark is None or found.is_dirty or self._is_damaged:
            await self._rebuild(log_state)
            self._is_damaged = False
            return
        await self._verify(found.watermark, log_state)
        await self._marks.check()
        self._watermark = found.watermark
        self._rebuild_until = log_state.last_seq if found.is_rebuilding else 0
        self._memory.log_bytes = await self._view.log_bytes(self.shard)
        entry_ids = await self._view.recent_entry_ids(self.shard)
        self._memory.remember(entry_ids, stored_at=log_state.broker_time)
        if found.is_rebuilding:
            await self._end_rebuild_if_level()

    async def _keep(self) -> ViewState:
        found = await self._view.keep(self._ownership, ttl_ms=int(self._settings.owner_ttl_seconds * 1000))
        self._kept_at = time.monotonic()
        return found

    async def _verify(self, watermark: Watermark, log_state: LogState) -> None:
        """Compare the watermark with the log: a restored or recreated stream must stop the shard, not be folded on."""
        if watermark.created_at != log_state.created_at:
            raise ShardStopped(
                f"shard {self.shard}: the stream of {log_state.created_at} is not the one the view was built from "
                f"({watermark.created_at}); docs/operating.md says how to go on with this log"
            )
        if watermark.seq > log_state.last_seq:
            raise ShardStopped(
                f"shard {self.shard}: the log ends at {log_state.last_seq}, before the view's {watermark.seq}: "
                "was it restored from a backup?"
            )
        if watermark.seq == 0 or watermark.seq < log_state.first_seq:
            return
        message = await self._log.get(self.shard, watermark.seq)
        if message is None or message.checksum != watermark.checksum:
            raise ShardStopped(f"shard {self.shard}: entry {watermark.seq} is not the one the view was built from")

    async def _rebuild(self, log_state: LogState) -> None:
        """Empty the shard's view and fold the log from its beginning; readers wait until it is level again."""
        await self._marks.check()
        count = log_state.last_seq - log_state.first_seq + 1
        logger.log(logging.WARNING if count else logging.DEBUG, "shard %d: rebuilding %d entries", self.shard, count)
        self._memory = self._fresh_memory()
        lease_ms = int(self._settings.lease_seconds * 1000)
        self._watermark = await self._view.wipe(self._ownership, created_at=log_state.created_at, lease_ms=lease_ms)
        self._rebuild_until = log_state.last_seq
        await self._end_rebuild_if_level()

    async def _end_rebuild_if_level(self) -> None:
        """Let readers in where there is nothing (more) to fold."""
        if self._watermark.seq < self._rebuild_until:
            return
        self._rebuild_until = 0
        await self._apply(self._batch_of(NOTHING_FOLDED, self._watermark))

    # ------------------------------------------------------------ following

    async def _follow(self) -> NoReturn:
        settings = self._settings
        keep_seconds = settings.owner_ttl_seconds / 4
        waiting: deque[LogMessage] = deque()
        async with (
            self._marks.recording(lambda: self._watermark, lambda: self._collecting.mark),
            self._collecting.beside(self._marks.pieces, self._watermark.seq),
            self._log.follow(self.shard, after_seq=self._watermark.seq) as follower,
        ):
            restarts = follower.restarts
            while True:
                if time.monotonic() - self._kept_at >= keep_seconds:
                    await self._check_view()
                if not waiting:
                    waiting.extend(await self._next(follower))
                    if follower.restarts != restarts:
                        restarts = follower.restarts
                        await self._verify(self._watermark, await self._log.state(self.shard))
                if waiting:
                    await self._fold(waiting)

    async def _next(self, follower: Follower) -> list[LogMessage]:
        return await follower.next(
            messages_max=self._settings.batch_entries_max,
            bytes_max=self._settings.batch_bytes_max,
            wait_seconds=EMPTY_WAIT_SECONDS,
        )

    async def _check_view(self) -> None:
        """Renew the fence; a view that lost or rewound its watermark is not this memory's view any more.

        An empty batch says so to the view itself: it refuses, and lets the next owner in with a new lease floor. Where
        only the sign of a rebuild went back, nothing else would take it away before the next entry comes.
        """
        found = await self._keep()
        is_rebuilding = self._rebuild_until > 0
        if found.is_dirty or found.watermark != self._watermark or found.is_rebuilding != is_rebuilding:
            await self._apply(self._batch_of(NOTHING_FOLDED, self._watermark))

    async def _fold(self, waiting: deque[LogMessage]) -> None:
        """Fold a run of messages into one batch, apply it, and tell whoever waits."""
        self._check_contiguous(waiting)
        folded = await fold_batch(self._view, self._memory, [inspect(message) for message in waiting])
        last = waiting[folded.count - 1]
        watermark = Watermark(created_at=self._watermark.created_at, seq=last.seq, checksum=last.checksum)
        if watermark.seq >= self._rebuild_until:
            self._rebuild_until = 0
        log_bytes = self._memory.grown(item.message for item in folded.answered)
        await self._apply(self._batch_of(folded, watermark, log_bytes))
        self._memory.log_bytes.update(log_bytes)
        self._collecting.note(folded.answered)
        for _ in range(folded.count):
            waiting.popleft()
        self._memory.settle(change.after.execution_id for change in folded.changes)
        for parked in folded.parked:
            logger.error("shard %d: entry %d is parked: %s", self.shard, parked.seq, parked.reason)
        self._tell(folded)

    def _check_contiguous(self, waiting: deque[LogMessage]) -> None:
        """A broker can skip a damaged record in silence: an undeclared gap must stop the shard."""
        expected = self._watermark.seq + 1
        if self._watermark.seq == 0:
            # The head of the log may have been purged up to the audit horizon.
            expected = waiting[0].seq
        for message in waiting:
            if message.seq != expected:
                raise ShardStopped(f"shard {self.shard}: entries {expected} to {message.seq - 1} are not in the log")
            expected += 1

    def _batch_of(
        self, folded: FoldedBatch, watermark: Watermark, log_bytes: tuple[tuple[str, int], ...] = ()
    ) -> Batch:
        oldest = time.time_ns() // 1000 - ANSWERS_KEPT_SECONDS * 1_000_000
        answers = tuple(
            StoredAnswer(entry_id=item.message.entry_id, answer=encode_answer(item.answer))
            for item in folded.answered
            if item.answer is not None
            and item.entry is not None
            and item.entry.expires is not None
            and item.message.stored_at >= oldest
        )
        return Batch(
            expected=self._watermark,
            watermark=watermark,
            changes=folded.changes,
            answers=answers,
            create_keys=folded.create_keys,
            parked=folded.parked,
            is_rebuilding=self._rebuild_until > 0,
            log_bytes=log_bytes,
        )

    async def _apply(self, batch: Batch) -> None:
        """Apply one batch, whatever it takes: this owner alone still holds the bytes of a half-applied one.

        New watermark: applied. Old, dirty or not: the very same batch is sent again. Anything else: the view itself
        refuses the batch, and ownership is lost.
        """
        for _ in range(RESENDS_MAX):
            try:
                await self._view.apply(self._ownership, batch)
            except ViewUnavailable as error:
                logger.warning("shard %d: a batch was not applied cleanly: %s", self.shard, error)
            else:
                self._watermark = batch.watermark
                return
            await asyncio.sleep(RESEND_PAUSE_SECONDS)
            found = await self._keep_patiently()
            if found.watermark == batch.watermark and not found.is_dirty and batch.watermark != batch.expected:
                self._watermark = batch.watermark
                return
        raise ViewUnavailable("a batch could not be applied", reason="view_unavailable")

    async def _keep_patiently(self) -> ViewState:
        for _ in range(RESENDS_MAX):
            try:
                return await self._keep()
            except ViewUnavailable:
                await asyncio.sleep(RESEND_PAUSE_SECONDS)
        raise OwnershipLost(f"shard {self.shard}: the view could not be asked")

    # ------------------------------------------------------------ telling

    def _tell(self, folded: FoldedBatch) -> None:
        """Wake the doors that wait, the dispatchers that have work, the readers that follow. All of it may be lost."""
        now = time.time_ns() // 1000
        by_process: dict[str, list[tuple[str, bytes]]] = {}
        for item in folded.answered:
            message = item.message
            if item.answer is None or not message.reply_to:
                continue
            if now - message.stored_at <= ANSWERS_TOLD_SECONDS * 1_000_000:
                pair = (message.entry_id, encode_answer(item.answer))
                by_process.setdefault(message.reply_to, []).append(pair)
        for process, answers in by_process.items():
            batch = AnswerBatch(shard=self.shard, watermark_seq=self._watermark.seq, answers=tuple(answers))
            self._wakes.tell(answers_channel(process), encode_batch(batch))
        if self._rebuild_until:
            return
        if any(is_due(change.after, now) for change in folded.changes):
            self._wakes.tell(due_channel(self.shard), b"")
        changed = [
            change.after.execution_id
            for change in folded.changes
            if change.before is None or change.before.event_count != change.after.event_count
        ]
        if changed:
            self._wakes.tell(changes_channel(self.shard), encode_record(changed))


DUE_SOON = 50_000
"""Microseconds ahead within which a dispatcher is woken at once."""


def is_due(header: Header, now: int) -> bool:
    """Whether a delivery of this execution is due now."""
    delivery_at = duties(header).delivery_at
    return delivery_at is not None and delivery_at <= now + DUE_SOON
