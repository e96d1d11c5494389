"""Bearer keys as doors look them up: by their hash, and never after their end."""

import hashlib
import hmac
from collections.abc import Iterable

from kernel.control.state import ControlState, KeyRecord

_PREFIX_BYTES = 8


def key_hash(key: bytes) -> bytes:
    """Return what is kept of a key. Keys of ours have 256 random bits, so a plain hash is as good as a slow one."""
    return hashlib.sha256(key).digest()


class Keys:
    """The keys of one control state, found by hash and by id."""

    def __init__(self) -> None:
        self._by_id: dict[str, KeyRecord] = {}
        self._by_prefix: dict[bytes, tuple[KeyRecord, ...]] = {}

    def holder(self, sent_hash: bytes, *, now: int) -> KeyRecord | None:
        """Return the key with this hash unless it has expired by `now`, unix microseconds.

        The prefix that is looked up is of a hash: whoever measures the time learns nothing of a key from it.
        """
        found: KeyRecord | None = None
        for record in self._by_prefix.get(sent_hash[:_PREFIX_BYTES], ()):
            if hmac.compare_digest(record.hash, sent_hash):
                found = record
        return found if found is not None and not _is_over(found, now) else None

    def get(self, key_id: str) -> KeyRecord | None:
        """Return a key that was not revoked, though it may have expired."""
        return self._by_id.get(key_id)

    def is_valid(self, key_id: str, *, now: int) -> bool:
        record = self._by_id.get(key_id)
        return record is not None and not _is_over(record, now)

    def listed(self, tenant: str | None) -> list[KeyRecord]:
        """Return the keys of a tenant, or of all, sorted by id, which tells the time of creation."""
        records = [each for _, each in sorted(self._by_id.items())]
        return records if tenant is None else [each for each in records if each.tenant == tenant]

    def is_any_valid(self, *, now: int) -> bool:
        return any(not _is_over(record, now) for record in self._by_id.values())

    def follow(self, state: ControlState, changed: Iterable[tuple[str, str]]) -> None:
        """Take over what the state says about the keys, by tenant and id, that may have changed."""
        for tenant, key_id in changed:
            self._forget(tenant, key_id)
            record = state.keys.get(tenant, {}).get(key_id)
            if record is not None:
                prefix = record.hash[:_PREFIX_BYTES]
                self._by_id[key_id] = record
                self._by_prefix[prefix] = (*self._by_prefix.get(prefix, ()), record)

    def _forget(self, tenant: str, key_id: str) -> None:
        before = self._by_id.get(key_id)
        if before is None or before.tenant != tenant:
            return
        del self._by_id[key_id]
        prefix = before.hash[:_PREFIX_BYTES]
        others = tuple(each for each in self._by_prefix[prefix] if each.key_id != key_id)
        if others:
            self._by_prefix[prefix] = others
        else:
            del self._by_prefix[prefix]


def _is_over(record: KeyRecord, now: int) -> bool:
    return record.expires_at is not None and record.expires_at <= now
