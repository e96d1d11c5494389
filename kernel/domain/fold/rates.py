"""Rate limits of one execution, judged from entry times; those of agents and tenants the door has judged."""

from kernel.domain.buckets import OVER, bucket_digest, filled
from kernel.domain.fold.draft import Draft
from schemas.entries import Verdict
from schemas.records import BucketRecord


def refused(draft: Draft, verdict: Verdict) -> str:
    """Take a token for a new step and return an empty text, or return why there is none; then nothing is taken."""
    if verdict.limited:
        return verdict.limited
    terms = verdict.rate_limit
    if terms is None or terms.per != "execution":
        return ""
    digest = bucket_digest(verdict.rule_id, terms)
    held = filled(draft.bucket(digest), terms, draft.now)
    window = terms.window_ms * 1000
    if held < window:
        return OVER
    draft.put_bucket(digest, BucketRecord(parts=held - window, at=draft.now))
    return ""
