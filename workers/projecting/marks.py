"""The mark of a shard: how far its log was folded, on record beside the log.

Where the view is lost, it alone tells that the log went back. It is compared before a shard is folded, and recorded
beside the folding, which never waits for it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec

from kernel.domain.errors import OutcomeUnknown, Unavailable
from kernel.ports import Log, Watermark
from schemas.marks import MARK_SCHEMA_VERSION, PiecesMark, ShardMark, decode_mark, encode_mark
from workers.projecting.batch import ShardStopped

MARK_PERIOD_SECONDS = 60.0
"""Between two marks of a shard: a log that went back by less than this may go unnoticed once the view is lost, too."""
LOOK_SECONDS = 1.0
"""Between two looks at how far the folding is."""
RECORD_SECONDS = 5.0
"""For one mark; one that could not be recorded is followed by the next look's."""

logger = logging.getLogger(__name__)


class Marks:
    """The mark of one shard, for as long as one owner has it."""

    def __init__(self, shard: int, log: Log, *, period_seconds: float = MARK_PERIOD_SECONDS) -> None:
        self._shard = shard
        self._log = log
        self._period_seconds = period_seconds
        self._marked_seq = 0
        self.pieces: PiecesMark | None = None
        """What the mark says of pieces of bodies."""

    async def check(self) -> None:
        """Compare the log with its mark. Raises ShardStopped where it is not the log that was marked, or went back."""
        # The mark first: an owner that does not know yet that it is none may fold on, and its mark is of later entries.
        payload = await self._log.mark(self._shard)
        if payload is None:
            self._marked_seq = 0
            self.pieces = None
            return
        mark = self._read(payload)
        log_state = await self._log.state(self._shard)
        if mark.created_at != log_state.created_at:
            self._stop(f"the stream of {log_state.created_at} is not the one that was marked ({mark.created_at}).")
        if mark.seq > log_state.last_seq:
            self._stop(
                f"the log ends at {log_state.last_seq}, and {mark.seq} was folded: was it restored from a backup?"
            )
        if mark.seq >= log_state.first_seq:
            message = await self._log.get(self._shard, mark.seq)
            if message is None or message.checksum != mark.checksum:
                self._stop(f"entry {mark.seq} is not the one that was marked.")
        self._marked_seq = mark.seq
        self.pieces = mark.pieces

    @asynccontextmanager
    async def recording(
        self, watermark: Callable[[], Watermark], pieces: Callable[[], PiecesMark | None]
    ) -> AsyncGenerator[None]:
        """Record marks meanwhile: one soon where it is behind, then at most one a period, and only one that moved."""
        task = asyncio.create_task(self._record_for_ever(watermark, pieces), name=f"marks of shard {self._shard}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _record_for_ever(
        self, watermark: Callable[[], Watermark], pieces: Callable[[], PiecesMark | None]
    ) -> None:
        recorded_at: float | None = None
        is_failing = False
        while True:
            reached, looked_at = watermark(), pieces() or self.pieces
            is_due = recorded_at is None or time.monotonic() - recorded_at >= self._period_seconds
            try:
                # During a rebuild the watermark passes by what is marked already.
                has_moved = reached.seq > self._marked_seq or looked_at != self.pieces
                if is_due and has_moved and reached.seq >= max(self._marked_seq, 1):
                    await self._record(reached, looked_at)
                    recorded_at = time.monotonic()
                    is_failing = False
            except (Unavailable, OutcomeUnknown) as error:
                # The next look tries again, and not only the next period.
                if not is_failing:
                    logger.info("shard %d: its mark could not be recorded: %s", self._shard, error)
                is_failing = True
            except Exception:
                # The top of a loop: marks are a net below the folding and must never end it.
                logger.exception("shard %d: its mark could not be recorded", self._shard)
            await asyncio.sleep(min(LOOK_SECONDS, self._period_seconds))

    async def _record(self, reached: Watermark, pieces: PiecesMark | None) -> None:
        mark = ShardMark(
            shard=self._shard,
            created_at=reached.created_at,
            # This version keeps no snapshots: a rebuild needs everything that is there.
            floor_seq=(await self._log.state(self._shard)).first_seq,
            seq=reached.seq,
            checksum=reached.checksum,
            at=time.time_ns() // 1000,
            pieces=pieces,
        )
        await self._log.put_mark(self._shard, encode_mark(mark), timeout_seconds=RECORD_SECONDS)
        self._marked_seq = reached.seq
        self.pieces = pieces

    def _read(self, payload: bytes) -> ShardMark:
        try:
            mark = decode_mark(payload)
        except msgspec.MsgspecError as error:
            raise self._stopped(f"its mark cannot be read: {error}.") from error
        if mark.schema != MARK_SCHEMA_VERSION:
            raise self._stopped(f"its mark is of schema {mark.schema}: upgrade this process.")
        return mark

    def _stop(self, what: str) -> None:
        raise self._stopped(what)

    def _stopped(self, what: str) -> ShardStopped:
        return ShardStopped(
            f"shard {self._shard}: {what} Bring back the newer log; or, to go on with this one and without what it "
            f"lacks: `nats stream purge STEPWELL_MARKS --subject stepwell.marks.{self._shard}`, and empty the view"
        )
