"""Removing pieces of bodies that no entry refers to: those of requests that ended before their entry was in the log.

Only the log decides. The owner of a shard reads every entry of it anyway, in order, and notes which pieces it names. A
piece that was seen for long, and that no entry names although all up to now were read, is removed. Where anything was
missed, or cannot be told, all that is there is kept for good.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from msgspec import UnsetType

from kernel.domain.errors import KernelError
from kernel.ports import Log, LogState
from schemas.entries import AnyEntry
from schemas.marks import PiecesMark
from workers.projecting.batch import Answered, inspect

LOOK_SECONDS_MAX = 60.0
"""Between two looks at the stream of bodies."""
UNREFERENCED_MAX = 16_384
"""Pieces without a reference that are watched at once; later ones are looked at when there is room."""
AHEAD_MAX = 1_000_000
"""References to pieces that were not looked at yet; beyond, what is there is kept for good."""
TURN_PIECES = 8192
"""Pieces that are looked at in one turn of the loop."""
CATCH_UP_MESSAGES, CATCH_UP_BYTES, CATCH_UP_WAIT_SECONDS = 256, 1024 * 1024, 1.0

logger = logging.getLogger(__name__)


class Collecting:
    """The pieces of one shard, for as long as one owner has it."""

    def __init__(self, shard: int, log: Log, *, unreferenced_seconds: float) -> None:
        self.mark: PiecesMark | None = None
        """What another owner needs to know to go on from here."""
        self._shard = shard
        self._log = log
        self._kept_seconds = unreferenced_seconds
        self._look_seconds = min(LOOK_SECONDS_MAX, unreferenced_seconds / 8)
        self._stream = ""
        self._end = 0
        """The last piece that was looked at."""
        self._since: dict[int, float] = {}
        """Pieces up to there without a reference, by the time of the loop when they were first looked at."""
        self._ahead: set[int] = set()
        """Pieces beyond that entries refer to."""
        self._read_seq = 0
        """All entries up to this one were read."""
        self._live_seq = 0
        """The last entry that was folded."""
        self._misses, self._misses_met = 1, 0
        """How often something was missed, and how often of them all that was there has been let be for it."""
        self._head_seq, self._head_at = 0, float("-inf")
        """Where the log ended at a time: once all entries up to there are read, all that are older than it are."""

    def note(self, answered: Sequence[Answered]) -> None:
        """Take note of what was folded, in the order of the log. Cheap: it is called for every batch."""
        for item in answered:
            self._note(item.entry)
        is_next = self._live_seq <= self._read_seq
        self._live_seq = answered[-1].message.seq
        if is_next:
            self._read_seq = max(self._read_seq, self._live_seq)

    @asynccontextmanager
    async def beside(self, marked: PiecesMark | None, watermark_seq: int) -> AsyncGenerator[None]:
        """Collect meanwhile, beside a folding that goes on after `watermark_seq`. `marked` is what is on record."""
        if not self._stream and marked is not None:
            self._stream, self._end, self._read_seq = marked.created_at, marked.end, marked.seq
            self._since = dict.fromkeys(marked.unreferenced, asyncio.get_running_loop().time())
            self._misses_met = self._misses
        self._live_seq = watermark_seq
        task = asyncio.create_task(self._look_for_ever(watermark_seq), name=f"pieces of shard {self._shard}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    # ------------------------------------------------------------ references

    def _note(self, entry: AnyEntry | None) -> None:
        if entry is None:
            # Nobody can tell what it refers to, and somebody may still mend the log.
            self._misses += 1
        elif not isinstance(entry.spilled, UnsetType):
            for body in entry.spilled.values():
                self._refer(body.pieces)

    def _refer(self, pieces: Sequence[int]) -> None:
        for seq in pieces:
            if seq > self._end:
                self._ahead.add(seq)
            else:
                self._since.pop(seq, None)
        if len(self._ahead) > AHEAD_MAX:
            self._ahead.clear()
            self._misses += 1

    async def _catch_up(self, until_seq: int) -> None:
        """Read the entries that were folded after the last one that was noted: by another owner, or unnoticed."""
        if self._read_seq >= until_seq or self._misses != self._misses_met:
            return
        async with self._log.follow(self._shard, after_seq=self._read_seq) as follower:
            while self._read_seq < until_seq:
                for message in await follower.next(
                    messages_max=CATCH_UP_MESSAGES, bytes_max=CATCH_UP_BYTES, wait_seconds=CATCH_UP_WAIT_SECONDS
                ):
                    if message.seq != self._read_seq + 1:
                        self._misses += 1
                        return
                    self._note(inspect(message).entry)
                    self._read_seq = message.seq
        self._read_seq = max(self._read_seq, self._live_seq)

    # ------------------------------------------------------------ looking

    async def _look_for_ever(self, watermark_seq: int) -> None:
        while True:
            try:
                await self._catch_up(watermark_seq)
                await self._look()
            except KernelError as error:
                logger.debug("shard %d: its pieces could not be looked at: %s", self._shard, error)
            except Exception:
                # The top of a loop: collecting must never end the folding.
                logger.exception("shard %d: its pieces could not be looked at", self._shard)
            await asyncio.sleep(self._look_seconds)

    async def _look(self) -> None:
        misses = self._misses
        now = asyncio.get_running_loop().time()
        # The log first: what entries up to its end refer to is then no later than the end of the pieces.
        head = await self._log.state(self._shard)
        bodies = await self._log.bodies_state(self._shard)
        if misses != self._misses_met or bodies.created_at != self._stream or bodies.last_seq < self._end:
            self._let_be(bodies, misses)
        await self._extend(bodies.last_seq, now)
        if self._misses != self._misses_met:
            return
        if self._read_seq >= self._head_seq:
            await self._remove(bodies, before=self._head_at)
            self._head_seq, self._head_at = head.last_seq, now
        if self._end >= bodies.last_seq:
            # Later entries may refer to later pieces: whoever goes on from here has to read them again.
            read_seq = min(self._read_seq, head.last_seq)
            self.mark = PiecesMark(
                created_at=self._stream, end=self._end, seq=read_seq, unreferenced=tuple(self._since)
            )

    def _let_be(self, bodies: LogState, misses: int) -> None:
        """Look at nothing that is there, ever; and go on with what comes."""
        self._stream, self._end = bodies.created_at, bodies.last_seq
        self._since.clear()
        self._ahead = {seq for seq in self._ahead if seq > self._end}
        self._read_seq = self._live_seq
        self._head_seq, self._head_at = 0, float("-inf")
        self._misses_met = misses

    async def _extend(self, last_seq: int, now: float) -> None:
        """Look at the pieces that are new, as many as there is room for."""
        while self._end < last_seq and len(self._since) < UNREFERENCED_MAX:
            room = min(TURN_PIECES, UNREFERENCED_MAX - len(self._since))
            end = min(last_seq, self._end + room)
            new = set(range(self._end + 1, end + 1))
            self._since.update(dict.fromkeys(sorted(new - self._ahead), now))
            self._ahead -= new
            self._end = end
            await asyncio.sleep(0)

    async def _remove(self, bodies: LogState, *, before: float) -> None:
        """Remove what has been without a reference for long at a time up to which all entries are read."""
        removed = 0
        for seq in [seq for seq, since in self._since.items() if since + self._kept_seconds <= before]:
            piece = await self._log.piece(self._shard, seq)
            if self._misses != self._misses_met:
                return
            if seq not in self._since:
                continue
            if piece is not None:
                # The stream may have been another one meanwhile. Both clocks have to agree.
                if bodies.broker_time - piece.stored_at < self._kept_seconds * 1_000_000:
                    continue
                await self._log.drop_piece(self._shard, seq)
                removed += 1
            self._since.pop(seq, None)
        if removed:
            logger.info("shard %d: %d pieces of bodies that no entry refers to were removed", self._shard, removed)
