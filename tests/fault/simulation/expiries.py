"""Design D6: an outage of ours expires no agent that kept trying to heartbeat. Judged from the log and from history."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import msgspec

from kernel.log.memory import MemoryLog
from kernel.view import limits, memory, memory_shard
from schemas.entries import DispatchFailed, LeaseExpired, decode_entry
from tests.fault.history import Asked, Delivered, History

SILENCE_MS_MAX = 2_000
"""As far below a lease of four seconds as the kernel's own bound is below the shortest lease, which is ten."""

Attempt = tuple[str, int]
"""Dispatch and attempt."""


class Ended(msgspec.Struct, frozen=True):
    """An attempt that was taken from its agent. `at` is when the entry that said so was stored."""

    attempt: Attempt
    is_expiry: bool
    at: float


@contextmanager
def short_silence() -> Iterator[None]:
    """Let views take doors and dispatchers for silent sooner, as everything in a simulation is sooner."""
    users = [module for module in (memory, memory_shard) if hasattr(module, "SILENCE_MS_MAX")]
    assert users, "the bound of silence has moved"
    for module in users:
        vars(module)["SILENCE_MS_MAX"] = SILENCE_MS_MAX
    try:
        yield
    finally:
        for module in users:
            vars(module)["SILENCE_MS_MAX"] = limits.SILENCE_MS_MAX


async def ended_attempts(log: MemoryLog, shards: int, *, started_at_us: int) -> list[Ended]:
    """Return what the log says of attempts that ended by themselves, in the seconds of the virtual clock."""
    found: list[Ended] = []
    for shard in range(shards):
        for seq in range(1, (await log.state(shard)).last_seq + 1):
            message = await log.get(shard, seq)
            assert message is not None
            entry = decode_entry(message.payload)
            if isinstance(entry, (LeaseExpired, DispatchFailed)):
                at = (message.stored_at - started_at_us) / 1_000_000
                attempt = (entry.lease.dispatch_id, entry.lease.attempt)
                found.append(Ended(attempt, isinstance(entry, LeaseExpired), at))
    return found


def expired_though_trying(
    history: History, ended: Sequence[Ended], *, gap_seconds_max: float, lease_seconds: float
) -> Iterator[str]:
    """Yield every expiry of an agent that had sent a heartbeat in each such gap from its delivery on.

    An expiry that changed nothing is followed by no attempt. Of several of one attempt the last one counted. One that
    comes sooner than a lease after the delivery is that of a claim which was delivered late: nothing renewed it yet.
    """
    delivered: dict[Attempt, float] = {}
    beats: dict[Attempt, list[float]] = {}
    for line in history:
        match line:
            case Delivered():
                delivered.setdefault((line.dispatch_id, line.attempt), line.at)
            case Asked(action="heartbeat"):
                beats.setdefault((line.dispatch_id, line.attempt), []).append(line.at)
            case _:
                continue
    failed = {each.attempt for each in ended if not each.is_expiry}
    expiries = {each.attempt: each.at for each in sorted(ended, key=_at) if each.is_expiry}
    for (dispatch_id, number), at in expiries.items():
        attempt, following = (dispatch_id, number), delivered.get((dispatch_id, number + 1))
        if attempt in failed or attempt not in delivered or following is None or following < at:
            continue
        if at - delivered[attempt] < lease_seconds:
            continue
        tries = [delivered[attempt], *(beat for beat in beats.get(attempt, []) if beat < at), at]
        if all(after - before <= gap_seconds_max for before, after in pairwise(tries)):
            yield (
                f"attempt {number} of {dispatch_id} was expired at {at:.3f} though its agent had sent "
                f"{len(tries) - 2} heartbeats since {delivered[attempt]:.3f}"
            )


def _at(ended: Ended) -> float:
    return ended.at
