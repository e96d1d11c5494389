"""Token buckets of rate limits: their names, and how full one is. Full at first, refilled without steps."""

import hashlib

from schemas.entries import RateTerms
from schemas.records import BucketRecord

OVER = "rate_limit_exceeded"
UNAVAILABLE = "rate_limiter_unavailable"
_DIGEST_BYTES = 16
_PARTS_MAX = 2**63 - 1
"""More than that no record holds. At the longest window it is still some 290,000 calls of one execution at once."""


def bucket_digest(rule_id: str, terms: RateTerms) -> bytes:
    """Return the 16 bytes that name a rule's bucket in an execution; other terms are another bucket."""
    return _digest(f"{terms.max_calls}/{terms.window_ms}/{rule_id}")


def shared_bucket(rule_id: str, terms: RateTerms, agent_id: str) -> bytes:
    """Return the 16 bytes that name a rule's bucket in a tenant: one for each agent, or one for all of them."""
    whose = f"agent/{agent_id}" if terms.per == "agent" else "global"
    # No agent id holds a line break, so no two of these are one text, nor that of a quota.
    return _digest(f"{whose}\n{terms.max_calls}/{terms.window_ms}/{rule_id}")


def quota_bucket(quota: str, limit: int) -> bytes:
    """Return the 16 bytes that name a tenant's bucket of a quota per second: another limit is another bucket."""
    return _digest(f"quota\n{limit}/{quota}")


def filled(bucket: BucketRecord | None, terms: RateTerms, now: int) -> int:
    """Return what the bucket holds now. A call takes as many parts as the window has microseconds, so all is whole."""
    capacity = min(_PARTS_MAX, terms.max_calls * terms.window_ms * 1000)
    if bucket is None:
        return capacity
    return min(capacity, bucket.parts + (now - bucket.at) * terms.max_calls)


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:_DIGEST_BYTES]
