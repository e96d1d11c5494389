"""Signatures in both directions. The secret is the one that the agent was registered with."""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from typing import Literal

import msgspec

Scheme = Literal["v1", "sha256"]
SENT_AT_SECONDS_MAX = 300
"""How far a webhook's `sent_at` may lie from now."""

_VERSION = "rebuno-request-v1"
_DELEGATION = b"rebuno-delegation-v1\n"


class Lease(msgspec.Struct, frozen=True):
    """The attempt that an agent holds. It goes with everything that the agent changes."""

    dispatch_id: str
    attempt: int


def sign_request(
    secret: str, *, method: str, target: str, timestamp: int, lease: Lease | None, body: bytes, scheme: Scheme = "v1"
) -> str:
    """Return the header `Rebuno-Signature` of a request. `target` is path and query as they are sent.

    `v1` covers all of it; `sha256` the body alone, for kernels that know nothing else.
    """
    if scheme == "sha256":
        return f"sha256={_mac(secret, body)}"
    dispatch_id, attempt = ("", "") if lease is None else (lease.dispatch_id, str(lease.attempt))
    head = "\n".join((_VERSION, method, target, str(timestamp), dispatch_id, attempt, "")).encode()
    return f"v1={_mac(secret, head + body)}"


def delegation(secret: str, *, agent_id: str, execution_id: str, lease: Lease, expires_at: int) -> str:
    """Return the token that lets a gateway act in this attempt until a time in unix seconds, at most a day ahead."""
    text = "\n".join((agent_id, execution_id, lease.dispatch_id, str(lease.attempt), str(expires_at))).encode()
    return f"{base64.urlsafe_b64encode(text).rstrip(b'=').decode()}.{_mac(secret, _DELEGATION + text)}"


def is_webhook_sound(secrets: Sequence[str], body: bytes, signature: str) -> bool:
    """Whether a webhook's body was signed with one of the secrets. Takes the same time for every wrong signature."""
    sent = signature.encode("latin-1", "replace")
    checks = [hmac.compare_digest(f"sha256={_mac(secret, body)}".encode(), sent) for secret in secrets]
    return any(checks)


def _mac(secret: str, text: bytes) -> str:
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
