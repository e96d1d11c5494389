"""Delegation tokens: an agent lets a gateway act for one attempt of one execution, for a while.

Checking one never raises, whatever a stranger sends, and takes the same time for every wrong one.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Sequence

import msgspec

from schemas.entries import Lease
from schemas.ids import parse_uuid

DOMAIN = b"rebuno-delegation-v1\n"
AHEAD_SECONDS_MAX = 24 * 3600
SKEW_SECONDS = 30
"""By how much the clock that a token was minted with may differ."""
TOKEN_BYTES_MAX = 1024

_TOKEN = re.compile(rb"([A-Za-z0-9_-]+)\.([0-9a-f]{64})")
_TEXT = re.compile(r"([A-Za-z0-9._:-]{1,128})\n([^\n]{36})\n([^\n]{36})\n([1-9][0-9]{0,8})\n([0-9]{1,12})", re.ASCII)


class Delegation(msgspec.Struct, frozen=True):
    """What a token says: which agent lets act, in which attempt, until when (unix seconds)."""

    agent_id: str
    execution_id: str
    lease: Lease
    expires_at: int


def mint(secret: bytes, delegation: Delegation) -> str:
    """Return the token of a delegation."""
    lease = delegation.lease
    fields = (delegation.agent_id, delegation.execution_id, lease.dispatch_id, lease.attempt, delegation.expires_at)
    text = "\n".join(map(str, fields)).encode()
    return f"{base64.urlsafe_b64encode(text).rstrip(b'=').decode()}.{_mac(secret, text).decode()}"


def verified(secrets: Sequence[bytes], token: bytes, *, now_seconds: int) -> Delegation | None:
    """Return what a token says, None where none of the secrets made it or its time is not now."""
    split = _TOKEN.fullmatch(token) if len(token) <= TOKEN_BYTES_MAX else None
    text = _decoded(split[1]) if split is not None else None
    if split is None or text is None:
        return None
    # Every secret is tried, so that time does not tell which one matched.
    found = [hmac.compare_digest(_mac(secret, text), split[2]) for secret in secrets]
    delegation = _read(text) if any(found) else None
    if delegation is None:
        return None
    left_seconds = delegation.expires_at - now_seconds
    return delegation if -SKEW_SECONDS <= left_seconds <= AHEAD_SECONDS_MAX + SKEW_SECONDS else None


def _decoded(encoded: bytes) -> bytes | None:
    try:
        text = base64.urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))
    except binascii.Error:
        return None
    # The last digit can be spelled in several ways, and one token has one spelling.
    return text if base64.urlsafe_b64encode(text).rstrip(b"=") == encoded else None


def _read(text: bytes) -> Delegation | None:
    fields = _TEXT.fullmatch(text.decode("latin-1"))
    if fields is None:
        return None
    execution_id, dispatch_id = parse_uuid(fields[2]), parse_uuid(fields[3])
    if execution_id is None or dispatch_id is None:
        return None
    lease = Lease(dispatch_id=dispatch_id, attempt=int(fields[4]))
    return Delegation(agent_id=fields[1], execution_id=execution_id, lease=lease, expires_at=int(fields[5]))


def _mac(secret: bytes, text: bytes) -> bytes:
    return hmac.digest(secret, DOMAIN + text, "sha256").hex().encode()
