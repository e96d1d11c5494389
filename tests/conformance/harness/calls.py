"""One HTTP request as a value, so that a test can change any part of it after it was signed."""

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

JsonOrUnset: TypeAlias = Any | UnsetType
AGENT_ID = "Rebuno-Agent-Id"
SIGNATURE = "Rebuno-Signature"
TIMESTAMP = "Rebuno-Timestamp"
DISPATCH_ID = "Rebuno-Dispatch-Id"
ATTEMPT = "Rebuno-Dispatch-Attempt"
KEY = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
NEXT_CURSOR = "Rebuno-Next-Cursor"


class Call(msgspec.Struct, frozen=True):
    """A request. `target` is the path with the query, as it goes over the wire."""

    method: str
    target: str
    headers: Mapping[str, str] = {}
    body: bytes = b""

    def but(self, **changes: Any) -> "Call":
        """The same request, differing in these parts."""
        return msgspec.structs.replace(self, **changes)

    def with_headers(self, headers: Mapping[str, str]) -> "Call":
        """The same request, these headers set in addition."""
        return self.but(headers={**self.headers, **headers})

    def without_headers(self, *names: str) -> "Call":
        return self.but(headers={name: value for name, value in self.headers.items() if name not in names})

    def with_bearer(self, key: str) -> "Call":
        return self.with_headers({"Authorization": f"Bearer {key}"})

    def signed(self, agent_id: str, secret: str, *, scheme: str = "v1", timestamp: object = None) -> "Call":
        """The same request with an agent signature over it as it stands: what changes later is not covered."""
        seconds = str(int(time.time()) if timestamp is None else timestamp)
        if scheme == "sha256":
            signature = sha256_signature(secret, self.body)
        else:
            signature = v1_signature(
                secret,
                method=self.method,
                target=self.target,
                timestamp=seconds,
                dispatch_id=self.headers.get(DISPATCH_ID, ""),
                attempt=self.headers.get(ATTEMPT, ""),
                body=self.body,
            )
        return self.with_headers({AGENT_ID: agent_id, TIMESTAMP: seconds, SIGNATURE: signature})


def v1_signature(
    secret: str,
    *,
    method: str,
    target: str,
    timestamp: str,
    dispatch_id: str = "",
    attempt: str = "",
    body: bytes = b"",
) -> str:
    """The value of `Rebuno-Signature` by the scheme `v1`."""
    fields = ("rebuno-request-v1", method.upper(), target, timestamp, dispatch_id, attempt)
    covered = "".join(f"{field}\n" for field in fields).encode() + body
    return "v1=" + hmac.new(secret.encode(), covered, hashlib.sha256).hexdigest()


def sha256_signature(secret: str, body: bytes = b"") -> str:
    """The value of `Rebuno-Signature` by the scheme `sha256`, of requests and of webhooks."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def members(**named: JsonOrUnset) -> dict[str, Any]:
    """An object of the members that are given; an UNSET one is left out, None is null."""
    return {name: value for name, value in named.items() if value is not UNSET}


def json_bytes(value: JsonOrUnset) -> bytes:
    """A body: the JSON text of a value, bytes as they are, nothing where it is UNSET."""
    if value is UNSET:
        return b""
    if isinstance(value, bytes):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
