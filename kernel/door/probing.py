"""Asking a silent stream whether it stores again, by an entry that means nothing to anybody."""

from kernel.domain.errors import LogUnavailable
from kernel.domain.identity import shard_of
from kernel.ports import Acknowledged, Log, Outgoing, Rejected
from schemas.entries import ExecutionCancelled, encode_entry
from schemas.ids import DEFAULT_TENANT, new_uuid7


class Probes:
    """One probe for each shard that is silent, under one id for as long as it is: the log keeps it once at most."""

    def __init__(self, *, log: Log, shards: int) -> None:
        self._log = log
        self._shards = shards
        self._probes: dict[int, Outgoing] = {}

    def send(self) -> None:
        """Send what is due and do not wait: the log itself hears the acknowledgement."""
        for shard in range(self._shards):
            if not self._log.is_silent(shard):
                self._probes.pop(shard, None)
                continue
            probe = self._probes.setdefault(shard, probe_entry(shard, self._shards))
            try:
                self._log.send(probe, _not_waited_for)
            except LogUnavailable:
                # Another publish is the probe of this period, or the connection is gone and the silence with it.
                continue


def probe_entry(shard: int, shards: int) -> Outgoing:
    """Return an entry whose time was over before it is sent, of an execution that is not there: it folds to nothing."""
    execution_id = new_uuid7()
    while shard_of(execution_id, shards) != shard:
        execution_id = new_uuid7()
    entry = ExecutionCancelled(
        id=new_uuid7(), tenant=DEFAULT_TENANT, execution_id=execution_id, at=0, expires=0, cancelled_by="probe"
    )
    return Outgoing(
        shard=shard,
        tenant=entry.tenant,
        execution_id=execution_id,
        entry_id=entry.id,
        payload=encode_entry(entry),
        reply_to="",
    )


def _not_waited_for(_: Acknowledged | Rejected) -> None:
    """Nobody waits for it."""
