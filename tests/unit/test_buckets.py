"""Names of token buckets: equal for what shares one, different for what does not."""

import pytest

from kernel.domain.buckets import bucket_digest, filled, quota_bucket, shared_bucket
from kernel.domain.policy.limits import COUNT_MAX, DURATION_SECONDS_MAX
from schemas.entries import RateTerms
from schemas.records import BucketRecord, encode_record

AGENT = RateTerms(max_calls=2, window_ms=1000, per="agent")
GLOBAL = RateTerms(max_calls=2, window_ms=1000, per="global")


def test_agents_have_a_bucket_each_and_share_a_global_one() -> None:
    assert shared_bucket("rule", AGENT, "a") != shared_bucket("rule", AGENT, "b")
    assert shared_bucket("rule", GLOBAL, "a") == shared_bucket("rule", GLOBAL, "b")
    assert shared_bucket("rule", AGENT, "global") != shared_bucket("rule", GLOBAL, "global")


@pytest.mark.parametrize("per", ["execution", "agent", "global"])
def test_another_rule_or_other_terms_are_another_bucket(per: str) -> None:
    def name(rule_id: str, max_calls: int, window_ms: int) -> bytes:
        terms = RateTerms(max_calls=max_calls, window_ms=window_ms, per=per)  # pyright: ignore[reportArgumentType] - a parameter
        return bucket_digest(rule_id, terms) if per == "execution" else shared_bucket(rule_id, terms, "a")

    names = {name("rule", 2, 1000), name("other", 2, 1000), name("rule", 3, 1000), name("rule", 2, 2000)}
    assert len(names) == 4
    assert name("rule", 2, 1000) in names


def test_another_quota_or_another_limit_is_another_bucket_and_never_a_rules() -> None:
    quotas = {quota_bucket(quota, limit) for quota in ("requests_per_second", "creates_per_second") for limit in (1, 2)}
    rules = {
        shared_bucket("requests_per_second", RateTerms(max_calls=1, window_ms=1000, per=per), "a")
        for per in ("agent", "global")
    }
    assert len(quotas | rules) == 6


def test_what_the_largest_bucket_holds_fits_into_a_record() -> None:
    terms = RateTerms(max_calls=COUNT_MAX, window_ms=DURATION_SECONDS_MAX * 1000, per="execution")

    held = filled(None, terms, 1)
    later = filled(BucketRecord(parts=held, at=1), terms, 2)

    assert later == held >= 100_000 * DURATION_SECONDS_MAX * 1_000_000
    assert encode_record(BucketRecord(parts=held, at=1))
