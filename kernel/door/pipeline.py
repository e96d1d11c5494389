"""Appending an entry and waiting for what the fold decides about it.

One future and one timer for each request. A request that is refused with 503 is certainly not in the log; where that
cannot be known the answer is `OutcomeUnknown`.
"""

import asyncio
from functools import partial

import msgspec

from kernel.domain.errors import LogUnavailable, OutcomeUnknown, Unavailable, ViewUnavailable
from kernel.door.admission import Admission, Owner
from kernel.door.freshness import Freshness
from kernel.door.gate import Gate
from kernel.ports import Acknowledged, DoorView, Log, Outgoing, Rejected
from kernel.settings import Settings
from schemas.answers import AnyAnswer, decode_answer, decode_batch

PUBLISH_PAUSE_SECONDS = 0.05
"""Between two tries to publish an entry that is certainly not in the log."""
POLL_GROWTH = 1.5
POLL_SECONDS_MAX = 1.0


class Pipeline:
    """All requests of this door that wait for an answer from the log."""

    def __init__(self, *, settings: Settings, log: Log, view: DoorView, freshness: Freshness, gate: Gate) -> None:
        self._log = log
        self._gate = gate
        self._view = view
        self._freshness = freshness
        self._poll_seconds = settings.answer_poll_seconds
        self._republish_seconds = settings.republish_seconds
        self._admission = Admission(settings.in_flight_max, share=settings.in_flight_share_max)
        self._waiting: dict[str, _Wait] = {}
        self._heard: list[tuple[int, float]] = [(-1, 0.0)] * settings.shards

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    async def decide(self, outgoing: Outgoing, *, give_up_at: float, deadline: float) -> AnyAnswer:
        """Append the entry and return its answer. Times are on the loop's clock.

        Nothing is published after `give_up_at`, when the fold would take the entry for late. Raises Unavailable
        where the entry is certainly not in the log, OutcomeUnknown where it may be and the deadline passed.
        """
        self._gate.check(outgoing.shard)
        owner = outgoing.tenant, outgoing.shard
        if not self._admission.try_enter(owner):
            await self._enter(owner, give_up_at)
        wait = _Wait(outgoing, give_up_at=give_up_at, deadline=deadline)
        self._waiting[outgoing.entry_id] = wait
        try:
            self._publish(wait)
            raw = await wait.next(self._poll_seconds if wait.is_out else PUBLISH_PAUSE_SECONDS)
            while raw is None:
                raw = await self._look(wait)
            return decode_answer(raw)
        finally:
            del self._waiting[outgoing.entry_id]
            self._admission.leave(owner)

    def hear(self, payload: bytes) -> None:
        """Take the answers of one batch to their requests. What is not waited for any more is dropped."""
        try:
            batch = decode_batch(payload)
        except msgspec.DecodeError:
            # A message is a hint: whoever waits for what it may have held reads the stored answer.
            return
        if not 0 <= batch.shard < len(self._heard):
            return
        self._freshness.raise_floor(batch.shard, batch.watermark_seq)
        self._heard[batch.shard] = (batch.watermark_seq, asyncio.get_running_loop().time())
        for entry_id, raw in batch.answers:
            wait = self._waiting.get(entry_id)
            if wait is not None:
                self._log.note_stored(batch.shard, sent_at=wait.first_sent_at)
                wait.answer(raw)

    def abandon(self) -> None:
        """Let every request that waits end now, with what is known of its entry."""
        now = asyncio.get_running_loop().time()
        for wait in self._waiting.values():
            wait.give_up_at = min(wait.give_up_at, now)
            wait.deadline = min(wait.deadline, now)
            wait.wake()

    async def _enter(self, owner: Owner, give_up_at: float) -> None:
        try:
            async with asyncio.timeout_at(give_up_at):
                await self._admission.enter(owner)
        except TimeoutError as error:
            raise Unavailable("too many requests wait for the log") from error

    def _publish(self, wait: "_Wait") -> None:
        """Send the entry, once more where it was sent before: its id keeps it single.

        What may be in the log already is sent through a closed gate, too: it can only make the outcome known.
        """
        wait.tried_at = wait.loop.time()
        if not wait.is_out and not self._gate.is_open(wait.outgoing.shard):
            return
        try:
            self._log.send(wait.outgoing, partial(_on_acknowledged, wait))
        except LogUnavailable:
            return
        if not wait.is_out:
            # After the log took note of the publish, which so is no later than this.
            wait.first_sent_at = wait.loop.time()
        wait.open_sends += 1

    async def _look(self, wait: "_Wait") -> bytes | None:
        """Do what is due for a request whose answer does not come by itself, then wait a little longer."""
        now = wait.loop.time()
        if wait.is_out:
            if now >= wait.deadline:
                raise OutcomeUnknown("sent to the log and not answered in time")
        else:
            self._refuse_or_retry(wait, now)
        is_silent = wait.acknowledged is None and now - wait.tried_at >= self._republish_seconds
        if is_silent and wait.is_out and now < wait.give_up_at:
            self._publish(wait)
        if self._is_answer_overdue(wait, now):
            raw = await self._stored(wait)
            if raw is not None:
                return raw
        return await wait.next(self._pause(wait))

    def _refuse_or_retry(self, wait: "_Wait", now: float) -> None:
        """No publish of the entry can be in the log: give up where that is final, else publish."""
        if wait.is_full:
            raise LogUnavailable("the log is full", reason="log_full")
        self._gate.check(wait.outgoing.shard)
        if now >= wait.give_up_at:
            raise LogUnavailable("the log cannot be reached")
        if now - wait.tried_at >= PUBLISH_PAUSE_SECONDS:
            self._publish(wait)

    def _is_answer_overdue(self, wait: "_Wait", now: float) -> bool:
        """Whether the stored answer is worth a read.

        While answers of this shard are heard and the fold has not come to this entry, it is not: a loaded projector
        must not be asked about every request that waits for it.
        """
        if not wait.is_out or now < wait.poll_at:
            return False
        if wait.acknowledged is None:
            return now - wait.first_sent_at >= self._republish_seconds
        watermark_seq, heard_at = self._heard[wait.outgoing.shard]
        return watermark_seq >= wait.acknowledged or now - heard_at >= self._poll_seconds

    async def _stored(self, wait: "_Wait") -> bytes | None:
        outgoing = wait.outgoing
        try:
            async with asyncio.timeout_at(wait.deadline):
                seen = await self._view.stored_answer(outgoing.shard, outgoing.entry_id)
        except (ViewUnavailable, TimeoutError):
            seen = None
        wait.polls += 1
        wait.poll_at = wait.loop.time() + self._poll_interval(wait)
        if seen is None or seen.value is None:
            return None
        self._freshness.raise_floor(outgoing.shard, seen.watermark_seq)
        self._log.note_stored(outgoing.shard, sent_at=wait.first_sent_at)
        return seen.value

    def _poll_interval(self, wait: "_Wait") -> float:
        return min(self._poll_seconds * POLL_GROWTH**wait.polls, max(POLL_SECONDS_MAX, self._poll_seconds))

    def _pause(self, wait: "_Wait") -> float:
        if not wait.is_out:
            return PUBLISH_PAUSE_SECONDS
        left = wait.deadline - wait.loop.time()
        return max(0.0, min(self._poll_interval(wait), left))


class _Wait:
    """One request: what was sent for it, what the broker said, and the future its answer comes by."""

    __slots__ = (
        "acknowledged",
        "deadline",
        "first_sent_at",
        "future",
        "give_up_at",
        "is_full",
        "loop",
        "open_sends",
        "outgoing",
        "poll_at",
        "polls",
        "raw",
        "tried_at",
    )

    def __init__(self, outgoing: Outgoing, *, give_up_at: float, deadline: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.outgoing = outgoing
        self.give_up_at = give_up_at
        self.deadline = deadline
        self.raw: bytes | None = None
        self.future: asyncio.Future[None] | None = None
        self.acknowledged: int | None = None
        self.open_sends = 0
        """Publishes that were neither acknowledged nor refused: through each of them the entry may be in the log."""
        self.is_full = False
        self.tried_at = self.first_sent_at = self.loop.time()
        self.poll_at = 0.0
        self.polls = 0

    @property
    def is_out(self) -> bool:
        """Whether the entry may be in the log."""
        return self.acknowledged is not None or self.open_sends > 0

    async def next(self, seconds: float) -> bytes | None:
        """Return the answer; None where the time is up or something else has to be done first."""
        if self.raw is not None:
            return self.raw
        self.future = self.loop.create_future()
        timer = self.loop.call_later(seconds, self.wake)
        try:
            await self.future
        finally:
            timer.cancel()
            self.future = None
        return self.raw

    def answer(self, raw: bytes) -> None:
        self.raw = raw
        self.wake()

    def wake(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


def _on_acknowledged(wait: _Wait, spoken: Acknowledged | Rejected) -> None:
    wait.open_sends -= 1
    if isinstance(spoken, Acknowledged):
        wait.acknowledged = spoken.seq
        wait.poll_at = max(wait.poll_at, wait.loop.time())
        return
    wait.is_full = spoken.is_full
    if not wait.is_out:
        wait.wake()
