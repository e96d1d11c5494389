"""Several executions whose entries share one log, made up from a seed: what projectors are tested on."""

import itertools
import random

from kernel.domain.framing import checksum
from kernel.ports import LogMessage, Outgoing
from schemas.entries import Lease, RateTerms, Verdict, encode_entry
from schemas.ids import uuid7_from
from tests.support.folding import START, ListLog, result_of

EXECUTIONS = 5
TOOLS = [("tool", 1), ("tool", 2), ("pay", 1)]
LIMITED = Verdict(decision="allow", rule_id="slow", policy_version=1, rate_limit=RateTerms(max_calls=2, window_ms=2000))


class World:
    """Several executions whose entries share one log; every choice comes from one seeded source."""

    def __init__(self, rng: random.Random, *, entries: int, now: int = START) -> None:
        """Let `entries` things happen, at `now` and soon after (unix microseconds)."""
        self.rng = rng
        sequences = itertools.count(1)
        self.logs: list[ListLog] = []
        self.order: list[tuple[ListLog, int]] = []
        for number in range(EXECUTIONS):
            log = ListLog(sequences, ids_from=10_000 * (number + 1))
            log.execution_id = uuid7_from(1_760_000_000_000 + number, rng.randbytes(10))
            log.now = now
            self.logs.append(log)
        while len(self.order) < entries:
            self.act()

    def act(self) -> None:
        log = self.rng.choice(self.logs)
        before = len(log.entries)
        if log.header is None:
            log.create()
        elif log.live_header.lease is None:
            self.rng.choice([log.claim, log.claim, log.cancel])()
        else:
            self.act_under_lease(log)
        self.order.extend((log, index) for index in range(before, len(log.entries)))

    def act_under_lease(self, log: ListLog) -> None:
        rng = self.rng
        lease = Lease(log.lease.dispatch_id, log.lease.attempt + rng.choice([0, 0, 0, 0, -1, 1]))
        known = list(log.records.steps) or ["0" * 64]
        call = rng.choice(TOOLS)
        key = rng.choice(["", "", f"{call}", "k"])
        mode = rng.choice(["safe_to_retry", "at_most_once"])
        actions = [
            *[lambda: log.submit(*call, lease=lease, key=key, idempotency=mode)] * 8,
            *[lambda: log.submit(*call, lease=lease, settle=[result_of(rng.choice(known), "settled")])] * 2,
            *[lambda: log.complete_step(rng.choice(known), rng.randrange(3), lease=lease, key=rng.choice(["", "o"]))]
            * 4,
            lambda: log.fail_step(rng.choice(known), {"message": "no"}, lease=lease),
            lambda: log.submit(*call, lease=lease, verdict=LIMITED),
            lambda: log.ask(lease=lease, key=key, idempotency=mode),
            *[lambda: log.decide(rng.choice(["granted", "denied"]), key=rng.choice(["", "d"]))] * 2,
            log.expire_approval,
            log.expire,
            *[log.claim] * 2,
            lambda: log.delivered(lease),
            lambda: log.delivery_failed(rng.choice(["timeout", "unreachable"]), lease),
            lambda: log.heartbeat(lease),
            lambda: (
                log.complete("x" * rng.choice([1, 9000]), lease=lease, key=rng.choice(["", "e"]))
                if rng.random() < 0.1
                else log.heartbeat(lease)
            ),
            lambda: log.later(rng.randrange(3)),
        ]
        rng.choice(actions)()

    def outgoing(self, shard: int = 0) -> list[Outgoing]:
        """Return all entries in log order, as a door would send them."""
        entries = [log.entries[index][0] for log, index in self.order]
        return [
            Outgoing(
                shard=shard,
                tenant=entry.tenant,
                execution_id=entry.execution_id,
                entry_id=entry.id,
                payload=encode_entry(entry),
                reply_to="",
            )
            for entry in entries
        ]

    def message(self, log: ListLog, index: int) -> LogMessage:
        entry, position = log.entries[index]
        payload = encode_entry(entry)
        return LogMessage(
            shard=0,
            seq=position.seq,
            stored_at=position.stored_at,
            tenant=entry.tenant,
            entry_id=entry.id,
            execution_id=entry.execution_id,
            checksum=checksum(tenant=entry.tenant, execution_id=entry.execution_id, entry_id=entry.id, payload=payload),
            reply_to="",
            payload=payload,
        )
