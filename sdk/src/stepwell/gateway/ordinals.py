"""Which call of its kind, in its attempt, a request is.

A provider's client repeats a request whose answer it did not get, and says so. The repeat is the same call, and has the
same key at the kernel; the same words without that are a call of their own.
"""

import hashlib
from collections import OrderedDict

from stepwell.gateway.callers import Caller

KINDS_MAX = 100_000
"""Kinds of calls that are remembered. What is forgotten costs a question more at the kernel."""


class Kind(str):
    """Calls of one attempt for the same thing with the same body: a digest."""

    __slots__ = ()

    @classmethod
    def of(cls, caller: Caller, path: str, body: bytes, client_key: str) -> "Kind":
        """`path` is what the caller asks for, `client_key` its own Idempotency-Key, empty where it has none."""
        lease = caller.lease
        head = "\n".join((caller.execution_id, lease.dispatch_id, str(lease.attempt), path, client_key, "")).encode()
        return cls(hashlib.sha256(head + body).hexdigest())

    def key(self, ordinal: int) -> str:
        """Return the Idempotency-Key of one of these calls."""
        return f"gateway-{self}-{ordinal}"


class Ordinals:
    """Counts the calls of every kind from zero; a gateway that begins anew has counted none."""

    def __init__(self) -> None:
        self._taken: OrderedDict[Kind, int] = OrderedDict()

    def take(self, kind: Kind) -> int:
        """Return the number of a new call."""
        ordinal = self._taken.pop(kind, 0)
        self._taken[kind] = ordinal + 1
        while len(self._taken) > KINDS_MAX:
            self._taken.popitem(last=False)
        return ordinal

    def last(self, kind: Kind) -> int:
        """Return the number of the latest call, the first where none is remembered."""
        return self._taken[kind] - 1 if kind in self._taken else self.take(kind)
