"""What the golden logs tell. A story is written into its log once; from then on the log is the authority."""

import itertools
import json
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from kernel.domain.fold import Position, park
from schemas.answers import Decided
from schemas.bodies import INLINE_BYTES_MAX, Spilled, Usage
from schemas.entries import (
    SPILLED_SCHEMA,
    ApprovalTerms,
    HeartbeatReceived,
    Lease,
    RateTerms,
    Verdict,
    encode_entry,
)
from schemas.records import CreateKeyRecord
from tests.golden.files import FrozenEntry
from tests.support.folding import LIMITS, SECOND, ListLog, error_of, request_key, result_of, uuid_number

UNKNOWN_STEP = "0" * 64
UNKNOWN_APPROVAL = uuid_number(998)


class _Execution(ListLog):
    """One execution of a shard's log."""

    def __init__(self, shard: "_Shard", number: int, tenant: str) -> None:
        super().__init__(shard.sequences, ids_from=1000 * number)
        self.execution_id = uuid_number(number)
        self.dispatch_id = uuid_number(500 + number)
        self.tenant = tenant
        self.records.create_keys = shard.create_keys
        self.damaged: list[FrozenEntry] = []

    def start(self, **more: Any) -> None:
        self.create(dispatch_id=self.dispatch_id, **more)
        self.later(0.05)
        self.claim()

    def submitted(self, *arguments: Any, **more: Any) -> str:
        """Submit, and return the id of the step."""
        answer = self.submit(*arguments, **more)
        assert isinstance(answer, Decided)
        return answer.step_id

    def damage(self, reason: str) -> None:
        """Append an entry that cannot be decoded, as the projector parks it."""
        whole = json.loads(encode_entry(HeartbeatReceived(**self.stamp(), lease=self.lease)))
        del whole["lease"]
        payload = json.dumps(whole, separators=(",", ":")).encode()
        position = Position(seq=next(self.sequences), stored_at=self.now, payload=payload)
        self.take(park(self.live_header, position, reason), self.tenant)
        self.damaged.append(FrozenEntry(position.seq, position.stored_at, Raw(payload), parked=reason))


class _Shard:
    """One shard's log: its executions share sequences and the keys of creates."""

    def __init__(self) -> None:
        self.sequences = itertools.count(1)
        self.create_keys: dict[tuple[str, bytes], CreateKeyRecord] = {}
        self.executions: list[_Execution] = []

    def execution(self, tenant: str = "default") -> _Execution:
        execution = _Execution(self, len(self.executions) + 1, tenant)
        self.executions.append(execution)
        return execution

    def frozen(self) -> list[FrozenEntry]:
        lines = [line for execution in self.executions for line in execution.damaged]
        for execution in self.executions:
            for _, position in execution.entries:
                lines.append(
                    FrozenEntry(
                        seq=position.seq,
                        stored_at=position.stored_at,
                        payload=Raw(position.payload),
                        is_repeated=position.is_repeated,
                    )
                )
        return sorted(lines, key=lambda line: line.seq)


def story_v1() -> list[FrozenEntry]:
    """Every entry of schema 1, and every answer that rules 1 can give."""
    shard = _Shard()
    three_attempts(shard)
    keys_of_creates(shard)
    other_ends(shard)
    halted_and_released(shard)
    return shard.frozen()


def three_attempts(shard: _Shard) -> None:
    """One execution over three attempts: outcomes, replays, an orphan, keys, refusals, completion."""
    log = shard.execution()
    deadline_at = log.now + 3600 * SECOND
    log.start(
        input=Raw(b'{"topic":"r\xc3\xa9sum\xc3\xa9","n":1.0}'),
        deadline_at=deadline_at,
        idempotency_key="nightly",
        key=request_key("nightly", {"agent_id": "agent"}),
    )
    log.delivered()
    log.later(1)
    search = log.submitted("web_search", {"q": "hi"}, key="first")
    log.submit("web_search", {"q": "hi"}, key="first")
    log.submit("web_search", {"q": "hello"}, key="first")
    again = log.submitted("web_search", {"q": "hi"})
    log.complete_step(search, {"hits": [1, 2.5]}, usage=Usage(3, 4, 7, 1, 2), key="outcome")
    log.complete_step(search, {"hits": [1, 2.5]}, key="outcome")
    log.complete_step(search, "another")
    log.submit("web_search", {"q": "hi"}, key="first")
    log.fail_step(again, {"message": "no such page"})
    log.submit("pay", {"amount": 7}, idempotency="at_most_once")
    log.submit("rm", "/", verdict=Verdict(decision="deny", rule_id="no-rm", policy_version=3, reason="never"))
    log.later(-5)
    log.submit("slow")
    log.heartbeat()
    log.heartbeat(Lease(log.dispatch_id, 2))
    log.submit(lease=Lease(uuid_number(999), 1))
    log.complete_step(UNKNOWN_STEP)
    log.expire(renewed_seq=1)
    log.later(130)
    log.expire()

    log.claim()
    log.delivery_failed("http_503", jitter=100, retry_after_ms=3000)
    log.later(4)
    log.claim()
    log.delivery_failed("unreachable")
    log.later(2)
    log.claim()
    log.submit("web_search", {"q": "hi"}, key="first")
    log.submit("web_search", {"q": "hi"})
    log.submit("slow")
    log.submit("pay", {"amount": 7}, idempotency="at_most_once")
    log.submit("pay", {"amount": 7}, idempotency="at_most_once")
    local = log.submitted("now", kind="local")
    model = log.submitted("gpt", {"text": "x" * INLINE_BYTES_MAX}, kind="llm_call", settle=[result_of(local, 17)])
    log.submit("tool", settle=[error_of(UNKNOWN_STEP, {"message": "?"})])
    stamp = log.stamp()
    log.append(HeartbeatReceived(**stamp, lease=log.lease))
    log.append(HeartbeatReceived(**stamp, lease=log.lease), is_repeated=True)
    log.append(HeartbeatReceived(**log.stamp(), lease=log.lease), stored_at=log.now + 25 * SECOND)
    open_step = log.submitted("tool", None)
    log.complete({"answer": 42}, state=Raw(b'{"page": 2}'), settle=[result_of(model, {"t": 1})], key="end")
    log.complete({"answer": 42}, key="end")
    log.complete()
    log.submit()
    log.complete_step(open_step)
    log.heartbeat()
    log.deadline(deadline_at)


def keys_of_creates(shard: _Shard) -> None:
    """A create repeated with its key, with another body, and in another tenant."""
    for tenant, request in [("default", "agent"), ("default", "other"), ("acme", "agent")]:
        log = shard.execution(tenant)
        log.create(dispatch_id=log.dispatch_id, key=request_key("nightly", {"agent_id": request}))
    shard.executions[-1].cancel()


def other_ends(shard: _Shard) -> None:
    """Failed by its agent, cancelled during a retry, past its deadline, without its agent, out of attempts."""
    failed = shard.execution()
    failed.start()
    done = failed.submitted("tool", 1)
    failed.expire()
    failed.submit("tool", 2)
    failed.fail("agent_error: ValueError: naïve\n\0", settle=[error_of(done, {"message": "bad"})])

    cancelled = shard.execution()
    cancelled.start()
    cancelled.submit("tool", 1)
    cancelled.expire()
    cancelled.cancel()
    cancelled.cancel()

    late = shard.execution()
    late.start(deadline_at=late.now + 60 * SECOND)
    late.later(61)
    late.deadline(late.now)
    late.deadline(late.now - SECOND - 50_000)

    orphaned = shard.execution()
    orphaned.create(dispatch_id=orphaned.dispatch_id)
    orphaned.agent_missing(orphaned.dispatch_id)

    exhausted = shard.execution()
    exhausted.start(limits=LIMITS.__class__(1, 12_000, 8_000, 1000, 30_000, 300_000))
    exhausted.delivery_failed("timeout")


def halted_and_released(shard: _Shard) -> None:
    """A damaged entry halts its execution; an operator releases it. And entries of nothing at all."""
    log = shard.execution()
    log.start()
    log.damage("the entry cannot be decoded")
    log.heartbeat()
    log.expire()
    log.release()
    log.heartbeat()
    nothing = shard.execution()
    nothing.append(HeartbeatReceived(**nothing.stamp(), lease=Lease(nothing.dispatch_id, 1)))


def story_approvals() -> list[FrozenEntry]:
    """What policy may ask for: approvals granted, denied, expired and overtaken, rate limits, a token budget."""
    shard = _Shard()
    decided(shard)
    overtaken(shard)
    held_back(shard)
    limited(shard)
    return shard.frozen()


def decided(shard: _Shard) -> None:
    """One execution that is asked about three times; whoever comes second learns who was first."""
    log = shard.execution("acme")
    log.start()
    parallel = log.submitted("read")
    terms = ApprovalTerms(approvers=("boss", "deputy"), timeout_ms=60_000, message="sure?")
    log.ask("rm", "/srv", terms=terms, key="asked")
    log.ask("rm", "/srv", terms=terms, key="asked")
    log.submit("other")
    log.complete_step(parallel, "page")
    log.heartbeat()
    log.decide("granted", by="clerk")
    asked = log.live_header.approval.approval_id
    log.decide("granted", by="deputy", rationale="fine", key="decision")
    log.decide("granted", by="deputy", rationale="fine", key="decision", approval_id=asked)
    log.decide("denied", approval_id=asked)
    log.decide("denied", approval_id=UNKNOWN_APPROVAL)
    log.claim()
    log.submit("read")
    log.submit("rm", "/srv")
    log.ask("pay", 7, terms=ApprovalTerms(separate_requester=True))
    log.decide("granted", by="api")
    log.decide("denied", by="deputy", asserted_by="api", rationale="not on a Friday")
    log.claim()
    log.ask("pay", 7)
    log.ask("pay", 8)
    log.later(60)
    log.expire_approval()
    log.expire_approval(asked)
    log.claim()
    log.ask("pay", 8)
    log.complete("done")


def overtaken(shard: _Shard) -> None:
    """A cancel comes before the decision."""
    log = shard.execution()
    log.start()
    log.submit("read")
    log.ask()
    asked = log.live_header.approval.approval_id
    log.cancel()
    log.decide("granted", approval_id=asked)
    log.expire_approval(asked)


def held_back(shard: _Shard) -> None:
    """What runs at most once holds the resumed dispatch back until it has ended, or its lease has."""
    first = shard.execution()
    first.start()
    charged = first.submitted("charge", idempotency="at_most_once")
    first.ask()
    first.decide("granted")
    first.claim()
    first.complete_step(charged, 1)
    first.claim()
    second = shard.execution()
    second.start()
    second.submit("charge", idempotency="at_most_once")
    second.ask()
    second.decide("granted")
    second.expire()
    second.claim()
    second.submit("charge", idempotency="at_most_once")
    third = shard.execution()
    third.start()
    third.ask()
    third.expire()
    third.decide("denied")
    third.claim()


def limited(shard: _Shard) -> None:
    """A bucket of two, one that the door asked, and a budget."""
    log = shard.execution()
    log.start()
    slow = Verdict(decision="allow", rule_id="slow", policy_version=3, rate_limit=RateTerms(2, 1000))
    for number in range(3):
        log.submit("search", number, verdict=slow)
    log.later(0.5)
    log.submit("search", 2, verdict=slow)
    shared = RateTerms(1, 1000, per="global")
    log.submit(
        "search",
        3,
        verdict=Verdict(
            decision="allow", rule_id="shared", policy_version=3, rate_limit=shared, limited="rate_limit_exceeded"
        ),
    )
    frugal = Verdict(decision="allow", rule_id="frugal", policy_version=3, token_budget_max=10)
    model = log.submitted("gpt", 1, kind="llm_call", verdict=frugal)
    log.complete_step(model, "text", usage=Usage(4, 6, 10))
    log.submit("gpt", 2, kind="llm_call", verdict=frugal)


def named_claims() -> list[FrozenEntry]:
    """Claims that are answered by name: one of two that ask for an attempt, its repeat, and the next attempt."""
    shard = _Shard()
    log = shard.execution()
    log.create(dispatch_id=log.dispatch_id)
    log.later(0.05)
    log.claim(by="dispatcher0001.a1b2c3d4", is_named=True)
    log.claim(attempt=1, by="dispatcher0002.e5f60718", is_named=True)
    log.delivered()
    step = log.submitted("charge", {"n": 1})
    log.later(130)
    log.expire()
    log.claim(by="dispatcher0002.0badcafe", is_named=True)
    log.complete_step(step, "late")
    log.complete("done")
    return shard.frozen()


def spilled_bodies() -> list[FrozenEntry]:
    """Bodies that stand in pieces beside the shard: of a create, of arguments, of outcomes and of the end."""
    shard = _Shard()
    log = shard.execution()
    log.start(**elsewhere("input"))
    chat = log.submitted("gpt", kind="llm_call", **elsewhere("args"))
    log.complete_step(chat, **elsewhere("result"))
    search, other = log.submitted("search", 1), log.submitted("search", 2)
    log.submit("next", settle=[result_of(search, None), result_of(other, 7)], **elsewhere("settle.0"))
    log.complete(state=Raw(b"null"), **elsewhere("output", "state"))
    return shard.frozen()


def elsewhere(*places: str) -> dict[str, Any]:
    """The members of an entry whose bodies at these places stand elsewhere."""
    sha256 = bytes(range(32))
    spilled = {place: Spilled(size_bytes=9_000, sha256=sha256, pieces=(3, 4), rest="]") for place in places}
    return {"spilled": spilled, "schema": SPILLED_SCHEMA}


STORIES: dict[str, Callable[[], list[FrozenEntry]]] = {
    "log_v1": story_v1,
    "log_named_claims": named_claims,
    "log_v1_approvals": story_approvals,
    "log_spilled_bodies": spilled_bodies,
}
