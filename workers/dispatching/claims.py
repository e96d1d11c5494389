"""Claiming a dispatch: append the claim, then learn from the fold whether this process may deliver."""

import asyncio
import logging
import secrets
import time

import msgspec

from kernel.domain.errors import LogUnavailable, OutcomeUnknown, ViewUnavailable
from kernel.ports import DoorView, DueItem, Log
from schemas.answers import Claimed, Ignored, decode_answer, decode_batch
from schemas.entries import DispatchClaimed, Lease
from schemas.records import HEADER_FIELD, Header, decode_header
from workers.dispatching.entries import claimed, outgoing

APPEND_SECONDS = 5.0
ANSWER_SECONDS = 1.0
"""How long an answer may take before the view is looked at instead."""
LOOK_SECONDS = 0.25
ACCEPTANCE_SECONDS = 20.0
"""After that much waiting for a projector the claim is left to its lease."""

logger = logging.getLogger(__name__)


class Claim(msgspec.Struct, frozen=True, gc=False):
    """An accepted claim. It was accepted after `since`, a moment on the monotonic clock."""

    seq: int
    lease: Lease
    since: float


class Claims:
    """Claims of one process, and the answers it waits for."""

    def __init__(self, *, log: Log, view: DoorView, name: str) -> None:
        self._log = log
        self._view = view
        self._name = name
        self._waiting: dict[str, asyncio.Future[str]] = {}
        """By entry id; the answer is the name of whose the attempt is, empty where it is nobody's."""

    def heard(self, raw: bytes) -> None:
        """Take in one batch of answers from a projector. Whatever cannot be read is no answer."""
        try:
            batch = decode_batch(raw)
            answers = [(entry_id, decode_answer(answer)) for entry_id, answer in batch.answers]
        except msgspec.MsgspecError as error:
            logger.warning("a message that is no batch of answers came in: %s", error)
            return
        for entry_id, answer in answers:
            waiting = self._waiting.get(entry_id)
            # An answer without a name, as earlier builds gave it, tells nothing: then the header is looked at.
            if waiting is not None and not waiting.done() and isinstance(answer, Claimed | Ignored):
                waiting.set_result(answer.claimed_by if isinstance(answer, Claimed) else "")

    async def claim(self, shard: int, item: DueItem) -> Claim | None:
        """Return the claim where the fold gave it to this very call; None where it may not deliver.

        None also where nobody can tell in time: then a claim that was accepted after all ends with its lease.
        """
        entry = claimed(item, claimed_by=f"{self._name}.{secrets.token_hex(8)}")
        if entry.id in self._waiting:
            # The hold ran out while this process still waits for the same claim.
            return None
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[entry.id] = answered
        try:
            return await self._claimed(shard, entry, answered)
        except (LogUnavailable, OutcomeUnknown) as error:
            logger.info("execution %s: the claim could not be appended: %s", item.execution_id, error)
            return None
        finally:
            del self._waiting[entry.id]

    async def _claimed(self, shard: int, entry: DispatchClaimed, answered: asyncio.Future[str]) -> Claim | None:
        # Before the append nobody can have accepted it, so a pause of this process only ever makes a claim older.
        since = time.monotonic()
        message = outgoing(shard, entry, reply_to=self._name)
        acknowledged = await self._log.append(message, timeout_seconds=APPEND_SECONDS)
        # A duplicate may be another's claim, or an earlier one of this process: then only the header tells whose it is.
        if not acknowledged.is_duplicate:
            await asyncio.wait({answered}, timeout=ANSWER_SECONDS)
            if answered.done():
                # The id is every claim's of this attempt: the acceptance of an earlier one may be told again.
                is_mine = answered.result() == entry.claimed_by
                return Claim(seq=acknowledged.seq, lease=entry.lease, since=since) if is_mine else None
        return await self._looked_up(shard, entry, seq=acknowledged.seq, since=since)

    async def _looked_up(self, shard: int, entry: DispatchClaimed, *, seq: int, since: float) -> Claim | None:
        """Look at the header until the view reflects the claim."""
        ends_at = time.monotonic() + ACCEPTANCE_SECONDS
        while (asked_at := time.monotonic()) < ends_at:
            try:
                seen = await self._view.fields(shard, entry.tenant, entry.execution_id, [HEADER_FIELD])
            except ViewUnavailable:
                seen = None
            if seen is not None and not seen.is_rebuilding:
                if seen.watermark_seq >= seq:
                    raw = seen.value[0]
                    is_mine = raw is not None and _is_held(decode_header(raw), entry)
                    return Claim(seq=seq, lease=entry.lease, since=since) if is_mine else None
                # Not folded when this look began, so not accepted before it.
                since = asked_at
            await asyncio.sleep(LOOK_SECONDS)
        logger.warning("execution %s: nobody answered the claim; it is left to its lease", entry.execution_id)
        return None


def _is_held(header: Header, entry: DispatchClaimed) -> bool:
    is_open = not header.is_terminal and header.dispatch.state == "in_flight"
    return is_open and header.claimed_by == entry.claimed_by and header.lease == entry.lease
