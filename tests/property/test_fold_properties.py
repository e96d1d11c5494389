"""The fold under arbitrary interleavings of agents, crashes, deliveries and late calls."""

import copy
import json

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kernel.domain.identity import step_id
from schemas.answers import Decided, Done, Recorded, Refusal
from schemas.entries import Lease, RateTerms, Verdict
from schemas.events import TERMINAL_EXECUTION, TERMINAL_STEP
from schemas.records import Header
from tests.support.folding import EXECUTION, ListLog, hash_of, result_of

CALLS = st.sampled_from([("tool", 1), ("tool", 2), ("pay", 1)])
MODES = st.sampled_from(["safe_to_retry", "at_most_once"])
ENDS = {"step.succeeded": "succeeded", "step.failed": "failed", "step.denied": "denied", "step.cancelled": "cancelled"}


STALENESS = st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1])
"""How far the attempt that an agent holds is from the current one."""
PICKS = st.integers(0, 40)


CLOSING = ("approval.expired", "step.denied", "step.cancelled", "dispatch.discarded")
"""What may follow the end of an execution, in the same transition."""
APPROVAL_ENDS = ("approval.granted", "approval.denied", "approval.expired")


class Interleavings(RuleBasedStateMachine):
    """Agents hold leases that may be stale; whoever acts, the guarantees hold after every entry."""

    def __init__(self) -> None:
        super().__init__()
        self.log = ListLog()
        self.log.create()
        self.log.claim()
        self.acknowledged: set[str] = set()
        self.outcomes: dict[str, object] = {}
        self.calls: dict[tuple[int, str, int], int] = {}
        self.known: list[str] = []

    def lease(self, staleness: int) -> Lease:
        return Lease(self.log.lease.dispatch_id, self.log.lease.attempt + staleness)

    def step(self, pick: int) -> str | None:
        return self.known[pick % len(self.known)] if self.known else None

    # ------------------------------------------------------------ what the world does

    @rule(is_patient=st.booleans())
    def redeliver(self, is_patient: bool) -> None:
        """Let the lease run out; the next attempt is claimed at once or some time later."""
        self.log.expire()
        if not is_patient:
            self.log.claim()

    @rule()
    def claim(self) -> None:
        self.log.claim()

    @rule(staleness=STALENESS)
    def deliver(self, staleness: int) -> None:
        self.log.delivered(self.lease(staleness))

    @rule(
        staleness=STALENESS, reason=st.sampled_from(["timeout", "http_500", "unreachable"]), jitter=st.integers(0, 250)
    )
    def fail_delivery(self, staleness: int, reason: str, jitter: int) -> None:
        self.log.delivery_failed(reason, self.lease(staleness), jitter=jitter)

    @rule(seconds=st.integers(-100, 400))
    def pass_time(self, seconds: int) -> None:
        self.log.later(seconds)

    # ------------------------------------------------------------ what agents do

    @rule(
        staleness=STALENESS,
        call=CALLS,
        mode=MODES,
        key=st.sampled_from(["", "", "", "own", "own", "shared"]),
        settled=st.none() | PICKS,
    )
    def submit(self, staleness: int, call: tuple[str, int], mode: str, key: str, settled: int | None) -> None:
        before = self.log.live_header
        key = f"{call}" if key == "own" else key
        settling = None if settled is None or key else self.step(settled)
        settle = [] if settling is None else [result_of(settling, "settled")]
        answer = self.log.submit(*call, lease=self.lease(staleness), idempotency=mode, key=key, settle=settle)
        if isinstance(answer, Refusal):
            self.assert_no_trace(before)
            return
        assert isinstance(answer, Decided)
        self.assert_lease_was_current(staleness, is_terminal=before.is_terminal, is_replayed=answer.is_replayed)
        if settling is not None and answer.decision != "execution_terminal":
            self.acknowledged.add(settling)
            self.outcomes.setdefault(settling, self.outcome_of(settling))
        self.check_decision(answer)
        if answer.step_id and not answer.is_replayed:
            self.assert_occurrence(answer, call)
            if answer.step_id not in self.known:
                self.known.append(answer.step_id)

    @rule(staleness=STALENESS, pick=PICKS, value=st.integers(0, 3), key=st.sampled_from(["", "", "o1"]))
    def complete_step(self, staleness: int, pick: int, value: int, key: str) -> None:
        step = self.step(pick)
        if step is not None:
            before = self.log.live_header
            answer = self.log.complete_step(step, value, lease=self.lease(staleness), key=key)
            self.note_outcome(answer, step, before, staleness)

    @rule(staleness=STALENESS, pick=PICKS)
    def fail_step(self, staleness: int, pick: int) -> None:
        step = self.step(pick)
        if step is not None:
            before = self.log.live_header
            answer = self.log.fail_step(step, {"message": "no"}, lease=self.lease(staleness))
            self.note_outcome(answer, step, before, staleness)

    @rule(staleness=STALENESS)
    def heartbeat(self, staleness: int) -> None:
        before = self.log.live_header
        if isinstance(self.log.heartbeat(self.lease(staleness)), Refusal):
            self.assert_no_trace(before)
        else:
            assert staleness == 0

    @rule(staleness=STALENESS, is_success=st.booleans(), luck=st.integers(0, 19))
    def end(self, staleness: int, is_success: bool, luck: int) -> None:
        if luck == 0:
            lease = self.lease(staleness)
            self.log.complete("out", lease=lease) if is_success else self.log.fail(lease=lease)

    # ------------------------------------------------------------ what policy and people do

    @rule(staleness=STALENESS, call=CALLS, mode=MODES, key=st.sampled_from(["", "", "asked"]))
    def ask(self, staleness: int, call: tuple[str, int], mode: str, key: str) -> None:
        before = self.log.live_header
        answer = self.log.ask(*call, lease=self.lease(staleness), idempotency=mode, key=key)
        if isinstance(answer, Refusal):
            self.assert_no_trace(before)
            return
        if answer.decision == "execution_blocked":
            assert before.status == "blocked"
        if answer.step_id and not answer.is_replayed:
            self.assert_occurrence(answer, call)
            if answer.step_id not in self.known:
                self.known.append(answer.step_id)

    @rule(staleness=STALENESS, call=CALLS, max_calls=st.integers(1, 3))
    def submit_limited(self, staleness: int, call: tuple[str, int], max_calls: int) -> None:
        before, counted = self.log.live_header, len(self.log.records.steps)
        terms = RateTerms(max_calls=max_calls, window_ms=60_000)
        verdict = Verdict(decision="allow", rule_id="slow", policy_version=1, rate_limit=terms)
        answer = self.log.submit(*call, lease=self.lease(staleness), verdict=verdict)
        if isinstance(answer, Refusal):
            self.assert_no_trace(before)
            return
        if answer.decision == "rate_limited":
            assert len(self.log.records.steps) == counted
        if answer.step_id:
            self.assert_occurrence(answer, call)
            if answer.step_id not in self.known:
                self.known.append(answer.step_id)

    @rule(decision=st.sampled_from(["granted", "denied"]), key=st.sampled_from(["", "d"]))
    def decide(self, decision: str, key: str) -> None:
        before = self.log.live_header
        answer = self.log.decide(decision, key=key)
        if answer == Done():
            assert before.status == "blocked"
            assert self.log.live_header.status == "running"
        else:
            self.assert_no_trace(before)

    @rule()
    def expire_approval(self) -> None:
        self.log.expire_approval()

    @rule(luck=st.integers(0, 39))
    def cancel(self, luck: int) -> None:
        if luck == 0:
            self.log.cancel()

    # ------------------------------------------------------------ what must hold

    def check_decision(self, answer: Decided) -> None:
        if answer.decision == "proceed":
            assert answer.step_id not in self.acknowledged, "G1: an acknowledged step proceeds again"
            started = {event.payload.step_id for event in self.log.events if event.type == "step.executing"}
            assert answer.step_id in started, "G2: proceed without step.executing"
        if answer.decision == "replay" and answer.step_id in self.outcomes:
            body = answer.result or answer.error
            assert body is not None
            assert json.loads(body.json) == self.outcomes[answer.step_id]

    def outcome_of(self, step: str) -> object:
        record = self.log.records.steps[step]
        body = record.result or record.error
        assert body is not None, "an acknowledged outcome is not recorded"
        return json.loads(body.json)

    def note_outcome(self, answer: object, step: str, before: Header, staleness: int) -> None:
        if isinstance(answer, Refusal):
            self.assert_no_trace(before)
            return
        assert isinstance(answer, Recorded)
        self.assert_lease_was_current(staleness, is_terminal=before.is_terminal, is_replayed=answer.is_replayed)
        if answer.decision == "recorded" and not answer.is_replayed:
            assert step not in self.outcomes, "G4: a second outcome was recorded"
        if answer.decision != "execution_terminal":
            self.acknowledged.add(step)
            self.outcomes.setdefault(step, self.outcome_of(step))

    def assert_lease_was_current(self, staleness: int, *, is_terminal: bool, is_replayed: bool) -> None:
        assert staleness == 0 or is_terminal or is_replayed, "G3: a lease that is not the current one was accepted"

    def assert_no_trace(self, before: Header) -> None:
        after = copy.copy(self.log.live_header)
        for name in ("chain", "entry_count", "field_count", "last_seq"):
            setattr(after, name, getattr(before, name))
        assert after == before, "I6: a refused entry left a trace"

    def assert_occurrence(self, answer: Decided, call: tuple[str, int]) -> None:
        """G5: the ids of one attempt are those of its calls, counted from 0 in that attempt."""
        place = (self.log.live_header.claims, *call)
        occurrence = self.calls.get(place, 0)
        self.calls[place] = occurrence + 1
        assert answer.step_id == step_id(EXECUTION, "tool_call", call[0], hash_of(call[1]), occurrence)

    @invariant()
    def header_and_records_agree(self) -> None:
        header, records = self.log.live_header, self.log.records
        assert header.field_count == self.log.field_count
        assert header.event_count == len(self.log.events)
        assert header.step_count == len(records.steps)
        by_ordinal = sorted(records.steps.values(), key=lambda step: step.ordinal)
        assert [step.ordinal for step in by_ordinal] == list(range(1, len(by_ordinal) + 1))
        assert header.open_steps == tuple(step.step_id for step in by_ordinal if not step.is_terminal)

    @invariant()
    def histories_are_well_formed(self) -> None:
        ended: dict[str, str] = {}
        is_over = False
        for event in self.log.events:
            assert not is_over or event.type in CLOSING
            is_over = is_over or event.type.removeprefix("execution.") in TERMINAL_EXECUTION
            if event.type in ENDS:
                assert event.payload.step_id not in ended, "G4: a step ended twice"
                ended[event.payload.step_id] = ENDS[event.type]
        steps = self.log.records.steps.values()
        assert ended == {step.step_id: step.status for step in steps if step.status in TERMINAL_STEP}

    @invariant()
    def a_block_is_a_pending_approval(self) -> None:
        header, records = self.log.live_header, self.log.records
        pending = [each.approval_id for each in records.approvals.values() if each.status == "pending"]
        named = [] if header.approval is None else [header.approval.approval_id]
        assert pending == named
        assert bool(pending) == (header.status == "blocked")
        waiting = [step.step_id for step in records.steps.values() if step.status == "awaiting_approval"]
        assert waiting == ([] if header.approval is None else [header.approval.step_id])
        ends = [event.payload.approval_id for event in self.log.events if event.type in APPROVAL_ENDS]
        assert len(ends) == len(set(ends)), "an approval ended twice"
        assert set(ends) == records.approvals.keys() - pending

    @invariant()
    def a_resumed_dispatch_orphans_nothing_that_runs_once(self) -> None:
        header, steps = self.log.live_header, self.log.records.steps
        assert (header.dispatch.state == "held") == bool(header.awaited)
        awaited = [steps[awaited] for awaited in header.awaited]
        assert all(step.status == "executing" and step.idempotency == "at_most_once" for step in awaited)

    def teardown(self) -> None:
        """Folding the same entries again gives the same everything."""
        again = ListLog()
        for entry, position in self.log.entries:
            again.append(entry, stored_at=position.stored_at)
        assert again.header == self.log.header
        assert again.events == self.log.events
        assert again.records.steps == self.log.records.steps
        assert again.records.keys == self.log.records.keys
        assert again.records.counters == self.log.records.counters
        assert again.records.approvals == self.log.records.approvals
        assert again.records.buckets == self.log.records.buckets


Interleavings.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestInterleavings = Interleavings.TestCase
