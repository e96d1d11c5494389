"""The records of one execution in plain dicts: what the fold reads from in tests, and what it wrote."""

from typing import Any

from schemas.records import ApprovalRecord, BucketRecord, CallCounter, CreateKeyRecord, KeyRecord, StepRecord


class DictRecords:
    """Everything the fold ever wrote, by kind."""

    def __init__(self) -> None:
        self.steps: dict[str, Any] = {}
        self.counters: dict[bytes, CallCounter] = {}
        self.keys: dict[bytes, KeyRecord] = {}
        self.dispatches: set[str] = set()
        self.approvals: dict[str, ApprovalRecord] = {}
        self.buckets: dict[bytes, BucketRecord] = {}
        self.create_keys: dict[tuple[str, bytes], CreateKeyRecord] = {}

    def step(self, step_id: str) -> StepRecord | None:
        return self.steps.get(step_id)

    def counter(self, call_digest: bytes) -> CallCounter | None:
        return self.counters.get(call_digest)

    def key(self, key_digest: bytes) -> KeyRecord | None:
        return self.keys.get(key_digest)

    def has_dispatch(self, dispatch_id: str) -> bool:
        return dispatch_id in self.dispatches

    def approval(self, approval_id: str) -> ApprovalRecord | None:
        return self.approvals.get(approval_id)

    def bucket(self, bucket_digest: bytes) -> BucketRecord | None:
        return self.buckets.get(bucket_digest)

    def create_key(self, tenant: str, key_digest: bytes) -> CreateKeyRecord | None:
        return self.create_keys.get((tenant, key_digest))
