"""The fold: rate limits of one execution, token budgets, and what the door found out about other buckets."""

from typing import Any

import pytest

from schemas.answers import Decided
from schemas.bodies import Usage
from schemas.entries import ApprovalTerms, RateTerms, Verdict
from tests.support.folding import result_of, started, uuid_number


def limited(max_calls: int, window_ms: int = 1000, *, rule_id: str = "slow", **more: Any) -> Verdict:
    terms = RateTerms(max_calls=max_calls, window_ms=window_ms)
    parts: dict[str, Any] = {"decision": "allow", "policy_version": 1, "rate_limit": terms}
    return Verdict(rule_id=rule_id, **(parts | more))


def test_a_full_bucket_lets_in_as_many_as_it_holds_and_a_refusal_leaves_no_trace() -> None:
    log = started()
    verdict = limited(2)
    decisions = [log.submit("t", n, verdict=verdict).decision for n in range(2)]
    fields, since = log.live_header.field_count, len(log.events)

    refused = log.submit("t", 2, verdict=verdict, key="k")

    assert decisions == ["proceed", "proceed"]
    assert refused == Decided(decision="rate_limited", reason="rate_limit_exceeded", rule_id="slow")
    assert log.new_events(since) == []
    assert log.live_header.field_count == fields + 1 == log.field_count
    log.later(1)
    assert log.submit("t", 2, verdict=verdict, key="k").decision == "proceed", "no key is bound, no occurrence used"


def test_a_bucket_refills_continuously_and_not_beyond_its_size() -> None:
    log = started()
    verdict = limited(2, 1000)
    for n in range(2):
        log.submit("t", n, verdict=verdict)
    log.later(0.499)
    assert log.submit("t", 2, verdict=verdict).decision == "rate_limited"
    log.later(0.001)
    assert log.submit("t", 2, verdict=verdict).decision == "proceed"
    log.later(3600)
    decisions = [log.submit("t", n, verdict=verdict).decision for n in range(10, 13)]
    assert decisions == ["proceed", "proceed", "rate_limited"]


@pytest.mark.parametrize("other", [limited(1, rule_id="other"), limited(1, 2000), limited(2)])
def test_another_rule_or_other_terms_are_another_bucket(other: Verdict) -> None:
    log = started()
    log.submit("t", 0, verdict=limited(1))
    assert log.submit("t", 1, verdict=limited(1)).decision == "rate_limited"
    assert log.submit("t", 1, verdict=other).decision == "proceed"


def test_replays_and_orphan_retries_neither_take_nor_need_a_token() -> None:
    log = started()
    verdict = limited(1, 3_600_000)
    done = log.submit("done", verdict=verdict).step_id
    log.complete_step(done, 1)
    log.later(3600)
    log.submit("open", verdict=verdict)
    log.next_attempt()

    assert log.submit("done", verdict=verdict).decision == "replay"
    assert log.submit("open", verdict=verdict).decision == "proceed"
    assert log.submit("new", verdict=verdict).decision == "rate_limited"


def test_a_denied_step_takes_a_token_too() -> None:
    log = started()
    verdict = limited(1, decision="deny")
    assert log.submit("t", 0, verdict=verdict).decision == "denied"
    assert log.submit("t", 1, verdict=verdict).decision == "rate_limited"


@pytest.mark.parametrize("why", ["rate_limit_exceeded", "rate_limiter_unavailable"])
def test_a_bucket_of_the_agent_was_asked_at_the_door(why: str) -> None:
    log = started()
    terms = RateTerms(max_calls=1, window_ms=1000, per="agent")
    verdict = limited(1, rate_limit=terms, limited=why)
    assert log.submit("t", verdict=verdict) == Decided(decision="rate_limited", reason=why, rule_id="slow")
    passed = limited(1, rate_limit=terms)
    assert [log.submit("t", n, verdict=passed).decision for n in range(3)] == ["proceed"] * 3
    assert log.records.buckets == {}


def test_what_settles_is_kept_under_a_rate_limit_and_under_a_block() -> None:
    log = started()
    first = log.submit("a").step_id
    second = log.submit("b").step_id
    log.submit("t", 0, verdict=limited(1))
    assert log.submit("t", 1, verdict=limited(1), settle=[result_of(first, 1)]).decision == "rate_limited"
    log.ask()
    assert log.submit("t", 2, settle=[result_of(second, 1)]).decision == "execution_blocked"
    assert {log.records.steps[step].status for step in (first, second)} == {"succeeded"}


def test_a_token_budget_denies_new_model_calls_once_it_is_used_up() -> None:
    log = started()
    budget = Verdict(decision="allow", rule_id="frugal", policy_version=1, token_budget_max=100)
    step_id = log.submit("gpt", 0, kind="llm_call", verdict=budget).step_id
    log.complete_step(step_id, 1, usage=Usage(total_tokens=99))
    second = log.submit("gpt", 1, kind="llm_call", verdict=budget).step_id
    log.complete_step(second, 1, usage=Usage(total_tokens=1))

    refused = log.submit("gpt", 2, kind="llm_call", verdict=budget)

    assert (refused.decision, refused.reason, refused.rule_id) == (
        "denied",
        "execution_token_budget_exceeded",
        "frugal",
    )
    assert log.submit("tool", 2, verdict=budget).decision == "proceed", "a tool call uses no tokens"


def test_the_budget_is_judged_before_the_approval() -> None:
    log = started()
    step_id = log.submit("gpt", kind="llm_call").step_id
    log.complete_step(step_id, 1, usage=Usage(total_tokens=10))
    verdict = Verdict(
        decision="require_approval",
        rule_id="both",
        policy_version=1,
        token_budget_max=10,
        approval=ApprovalTerms(),
        approval_id=uuid_number(77),
    )
    assert log.submit("gpt", 1, kind="llm_call", verdict=verdict).reason == "execution_token_budget_exceeded"
