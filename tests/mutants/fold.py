"""Breaks of the fold: what is decided in log order."""

from tests.mutants.mutant import Mutant

_FOLD = "kernel/domain/fold/__init__.py"
_STEPS = "kernel/domain/fold/steps.py"
_KEYS = "kernel/domain/fold/keys.py"
_DISPATCHES = "kernel/domain/fold/dispatches.py"
_ENDINGS = "kernel/domain/fold/endings.py"
_EXECUTIONS = "kernel/domain/fold/executions.py"
_APPROVALS = "kernel/domain/fold/approvals.py"

_UNIT = "tests/unit/fold/"
_SUBMIT = _UNIT + "test_fold_submit.py::"
_APPROVED = _UNIT + "test_fold_approvals.py::"
_OUTCOMES = _UNIT + "test_fold_outcomes.py::"
_DISPATCH = _UNIT + "test_fold_dispatch.py::"
_ENDS = _UNIT + "test_fold_executions.py::"

OF_THE_FOLD = (
    Mutant(
        name="the lease of a request is not checked",
        promise="G3",
        file=_DISPATCHES,
        old="if draft.header.lease != lease:",
        new="if False:",
        tests=(_SUBMIT + "test_another_attempt_than_the_current_one_is_superseded_and_leaves_no_trace",),
    ),
    Mutant(
        name="a claim is accepted though an attempt is in flight",
        promise="G3",
        file=_DISPATCHES,
        old='if header.is_terminal or dispatch.state not in ("due", "waiting"):',
        new="if header.is_terminal:",
        tests=(_UNIT + "test_fold_claims.py::test_the_next_attempt_is_not_claimed_while_one_is_in_flight",),
    ),
    Mutant(
        name="the counters are kept at a claim",
        promise="G1",
        file=_STEPS,
        old="if counter.claims != header.claims:",
        new="if False:",
        tests=(_SUBMIT + "test_the_next_attempt_counts_from_zero_and_replays",),
    ),
    Mutant(
        name="proceed is answered and the start of the step is not recorded",
        promise="G2",
        file=_STEPS,
        old='draft.emit_step("step.executing", step)',
        new="",
        tests=(_SUBMIT + "test_a_first_submission_proceeds_and_is_written_before_it_does",),
    ),
    Mutant(
        name="an orphan that may run once at most proceeds",
        promise="G1",
        file=_STEPS,
        old='if step.idempotency == "safe_to_retry" and entry.idempotency == "safe_to_retry":',
        new="if True:",
        tests=(_SUBMIT + "test_an_orphan_in_the_stricter_mode_is_indeterminate",),
    ),
    Mutant(
        name="the stricter of two modes does not count for an orphan",
        promise="G1",
        file=_STEPS,
        old='if step.idempotency == "safe_to_retry" and entry.idempotency == "safe_to_retry":',
        new='if step.idempotency == "safe_to_retry" or entry.idempotency == "safe_to_retry":',
        tests=(_SUBMIT + "test_an_orphan_in_the_stricter_mode_is_indeterminate",),
    ),
    Mutant(
        name="an indeterminate call is not remembered as one",
        promise="G1",
        file=_STEPS,
        old="is_indeterminate=True",
        new="is_indeterminate=False",
        tests=(_SUBMIT + "test_an_indeterminate_call_is_not_retried_under_another_occurrence",),
    ),
    Mutant(
        name="settle is applied after the decision",
        promise="D8",
        file=_STEPS,
        old=(
            "    refusal = settle(draft, entry.settle)\n"
            "    if refusal is not None:\n"
            "        return refusal\n"
            "    answer = decide(draft, entry)\n"
        ),
        new=(
            "    answer = decide(draft, entry)\n"
            "    refusal = settle(draft, entry.settle)\n"
            "    if refusal is not None:\n"
            "        return refusal\n"
        ),
        tests=(_SUBMIT + "test_settle_is_applied_first_in_order_and_kept_under_a_denial",),
    ),
    Mutant(
        name="a bad item of settle is passed over and the others are applied",
        promise="D8",
        file=_STEPS,
        old="        if step is None:\n            return STEP_NOT_FOUND\n        if step.is_terminal:",
        new="        if step is None:\n            continue\n        if step.is_terminal:",
        tests=(_SUBMIT + "test_one_bad_item_of_settle_applies_nothing_at_all",),
    ),
    Mutant(
        name="a refused request keeps what was applied before its refusal",
        promise="D8",
        file=_FOLD,
        old="if isinstance(answer, Refusal | DecidedBefore | Ignored):",
        new="if isinstance(answer, DecidedBefore | Ignored):",
        tests=(_SUBMIT + "test_one_bad_item_of_settle_applies_nothing_at_all",),
    ),
    Mutant(
        name="a second decision is taken",
        promise="G4",
        file=_APPROVALS,
        old='if approval.status != "pending":\n        return',
        new="if False:\n        return",
        tests=(_APPROVED + "test_the_first_decision_in_the_log_wins_and_the_loser_learns_which",),
    ),
    Mutant(
        name="anybody may approve",
        promise="G7",
        file=_APPROVALS,
        old="if approval.approvers and entry.decided_by not in approval.approvers:",
        new="if False:",
        tests=(_APPROVED + "test_only_an_approver_decides_by_the_exact_name",),
    ),
    Mutant(
        name="who created an execution approves its step",
        promise="G7",
        file=_APPROVALS,
        old="if approval.separate_requester and entry.principal",
        new="if approval.separate_requester and entry.decided_by",
        tests=(_APPROVED + "test_who_created_the_execution_may_not_decide_where_the_rule_separates_the_two",),
    ),
    Mutant(
        name="a resumed dispatch orphans what runs at most once",
        promise="G1",
        file=_APPROVALS,
        old='step.status == "executing" and step.idempotency == "at_most_once"',
        new="False",
        tests=(_APPROVED + "TestStragglers::test_it_is_due_when_the_step_has_ended",),
    ),
    Mutant(
        name="a refused call costs a token",
        promise="G7",
        file="kernel/domain/fold/rates.py",
        old="    if held < window:\n        return OVER\n",
        new="    if held < window:\n        held += 0\n",
        tests=(
            _UNIT + "test_fold_rates.py::test_a_full_bucket_lets_in_as_many_as_it_holds_and_a_refusal_leaves_no_trace",
        ),
    ),
    Mutant(
        name="open steps have no bound",
        promise="D1",
        file=_STEPS,
        old="if len(header.open_steps) >= OPEN_STEPS_MAX:",
        new="if False:",
        tests=(_SUBMIT + "test_open_steps_are_bounded_and_a_full_execution_still_ends_what_it_has",),
    ),
    Mutant(
        name="a request key is forgotten",
        promise="D2",
        file=_KEYS,
        old="    if key is not None:\n        claims",
        new="    if False:\n        claims",
        tests=(_OUTCOMES + "test_a_key_gives_the_first_answer_again_and_changes_nothing",),
    ),
    Mutant(
        name="a request key answers another request",
        promise="D2",
        file=_KEYS,
        old="if record.request != key.request:",
        new="if False:",
        tests=(_OUTCOMES + "test_a_key_for_another_request_is_a_conflict_even_under_a_stale_lease",),
    ),
    Mutant(
        name="a key used under a lease outlives it",
        promise="D2",
        file=_KEYS,
        old="if record is None or record.claims not in (0, draft.header.claims):",
        new="if record is None:",
        tests=(_OUTCOMES + "test_the_next_claim_makes_keys_of_a_lease_fresh",),
    ),
    Mutant(
        name="a remembered proceed is said again after the step has ended",
        promise="G1",
        file=_KEYS,
        old='if first.decision != "proceed":',
        new="if True:",
        tests=(_OUTCOMES + "test_a_remembered_proceed_is_never_said_again_once_the_step_has_ended",),
    ),
    Mutant(
        name="a create key is forgotten",
        promise="D2",
        file=_EXECUTIONS,
        old="draft.create_key = (entry.key.key, record)",
        new="pass",
        tests=(_ENDS + "test_a_create_key_makes_one_execution",),
    ),
    Mutant(
        name="a late entry is accepted",
        promise="G9",
        file=_FOLD,
        old="if position.is_repeated or is_late(entry, position):",
        new="if position.is_repeated:",
        tests=(_ENDS + "test_a_late_or_repeated_entry_folds_to_nothing_and_is_answered_to_nobody",),
    ),
    Mutant(
        name="an entry whose id was seen is folded twice",
        promise="D2",
        file=_FOLD,
        old="if position.is_repeated or is_late(entry, position):",
        new="if is_late(entry, position):",
        tests=(_ENDS + "test_a_late_or_repeated_entry_folds_to_nothing_and_is_answered_to_nobody",),
    ),
    Mutant(
        name="a halted execution is folded on",
        promise="D3",
        file=_FOLD,
        old="if header.halted:",
        new="if False:",
        tests=(_ENDS + "test_a_parked_entry_halts_its_execution_until_it_is_released",),
    ),
    Mutant(
        name="a clock that steps back takes the history with it",
        promise="D1",
        file=_FOLD,
        old="now = max(time_of(entry.at, position), header.updated_at)",
        new="now = time_of(entry.at, position)",
        tests=(_ENDS + "test_fold_time_never_steps_back",),
    ),
    Mutant(
        name="a clock that runs ahead puts off what is due",
        promise="D1",
        file="kernel/domain/fold/draft.py",
        old="return min(at, position.stored_at)",
        new="return at",
        tests=(
            "tests/unit/fold/test_fold_executions.py::test_what_a_clock_that_runs_ahead_makes_due_is_due_when_the_log_has_it",
        ),
    ),
    Mutant(
        name="the chain leaves the entries out",
        promise="D3",
        file=_FOLD,
        old="digest.update(position.payload)",
        new="",
        tests=(_ENDS + "test_the_chain_covers_every_entry_in_order",),
    ),
    Mutant(
        name="a terminal execution takes an outcome",
        promise="G4",
        file=_STEPS,
        old='    if draft.header.is_terminal:\n        return Recorded(decision="execution_terminal")',
        new="",
        tests=(_OUTCOMES + "test_a_terminal_execution_takes_no_outcome",),
    ),
    Mutant(
        name="a second outcome takes the place of the first",
        promise="G4",
        file=_STEPS,
        old="    if not step.is_terminal:\n        usage =",
        new="    if True:\n        usage =",
        tests=(_OUTCOMES + "test_an_outcome_is_recorded_once_and_the_first_stays",),
    ),
    Mutant(
        name="the end of an execution forgets its open steps",
        promise="G4",
        file=_ENDINGS,
        old="for step_id in draft.header.open_steps:",
        new="for step_id in ():",
        tests=(_ENDS + "test_complete_closes_the_rest_in_order",),
    ),
    Mutant(
        name="the end of an execution closes its steps from the last to the first",
        promise="G4",
        file=_ENDINGS,
        old="for step_id in draft.header.open_steps:",
        new="for step_id in reversed(draft.header.open_steps):",
        tests=(_UNIT + "test_fold_endings.py::test_open_steps_are_cancelled_by_first_submission",),
    ),
    Mutant(
        name="dispatch.acked is emitted by every use of the lease",
        promise="D6",
        file=_DISPATCHES,
        old="if not header.is_lease_acknowledged:",
        new="if True:",
        tests=(_UNIT + "test_fold_claims.py::test_a_claim_is_acknowledged_once_however_often_its_lease_is_used",),
    ),
    Mutant(
        name="a lease expires although it was renewed since",
        promise="D6",
        file=_DISPATCHES,
        old="if header.is_terminal or header.lease != entry.lease or header.renewed_seq != entry.renewed_seq:",
        new="if header.is_terminal or header.lease != entry.lease:",
        tests=(_DISPATCH + "test_a_renewal_since_makes_an_expiry_void",),
    ),
    Mutant(
        name="a failed attempt is retried under its own number",
        promise="D6",
        file=_DISPATCHES,
        old="next_attempt=dispatch.attempt + 1)\n    return Done()",
        new="next_attempt=dispatch.attempt)\n    return Done()",
        tests=(_DISPATCH + "test_a_failed_delivery_waits_longer_each_time_and_the_fifth_is_the_last",),
    ),
)
