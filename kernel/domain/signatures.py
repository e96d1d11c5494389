"""HMAC signatures of requests and webhooks. Checking one never raises, whatever a stranger sends, and takes the same
time for every wrong signature.

Headers and targets are the bytes that arrived; text is taken for its UTF-8. A signature is not a nonce.
"""

import hmac
import re
from collections.abc import Sequence
from typing import TypeAlias

REQUEST_DOMAIN = b"rebuno-request-v1"

_BODY_SCHEME = b"sha256="
_REQUEST_SCHEME = b"v1="
_SIGNATURE = re.compile(rb"(?:sha256|v1)=[0-9a-f]{64}")
# Unix seconds stay below this many digits for 30,000 years; more would only cost time to convert.
_TIMESTAMP = re.compile(r"[0-9]{1,12}")

Received: TypeAlias = str | bytes


def sign_body(secret: bytes, body: bytes) -> str:
    """Return the `sha256=` signature of a body."""
    return (_BODY_SCHEME + _mac(secret, body)).decode()


def sign_request(
    secret: bytes,
    *,
    method: Received,
    target: Received,
    timestamp: Received,
    dispatch_id: Received,
    attempt: Received,
    body: bytes,
) -> str:
    """Return the `v1=` signature of a request; a header that is not sent counts as empty."""
    fields = (method, target, timestamp, dispatch_id, attempt)
    return (_REQUEST_SCHEME + _mac(secret, _signed_text(fields, body))).decode()


def verify(
    secrets: Sequence[bytes],
    header: Received,
    *,
    method: Received,
    target: Received,
    timestamp: Received,
    dispatch_id: Received,
    attempt: Received,
    body: bytes,
    require_v1: bool = False,
) -> bool:
    """Whether a signature header, of either scheme, was made with one of the secrets over exactly this request.

    The age of a `v1=` signature is for `timestamp_ok`. With `require_v1` a `sha256=` signature never matches.
    """
    received = _bytes(header)
    if not _SIGNATURE.fullmatch(received):
        # Nothing is hashed for a header that cannot match.
        return False
    if received.startswith(_BODY_SCHEME):
        return not require_v1 and _matches(secrets, received, _BODY_SCHEME, body)
    fields = (method, target, timestamp, dispatch_id, attempt)
    if any(b"\n" in _bytes(field) for field in fields):
        # A line feed would let one signature stand for two different requests.
        return False
    return _matches(secrets, received, _REQUEST_SCHEME, _signed_text(fields, body))


def verify_body(secrets: Sequence[bytes], header: Received, body: bytes) -> bool:
    """Whether a `sha256=` header was made with one of the secrets over exactly these bytes."""
    return _matches(secrets, _bytes(header), _BODY_SCHEME, body)


def timestamp_ok(value: str, now_seconds: int, window_seconds: int) -> bool:
    """Whether a `Rebuno-Timestamp` is unix seconds in decimal digits, at most the window away from now either way."""
    return _TIMESTAMP.fullmatch(value) is not None and abs(int(value) - now_seconds) <= window_seconds


def _matches(secrets: Sequence[bytes], received: bytes, scheme: bytes, text: bytes) -> bool:
    # Every secret is tried, so that time does not tell which one matched.
    found = [hmac.compare_digest(scheme + _mac(secret, text), received) for secret in secrets]
    return any(found)


def _signed_text(fields: tuple[Received, ...], body: bytes) -> bytes:
    method, *rest = (_bytes(field) for field in fields)
    return b"\n".join((REQUEST_DOMAIN, method.upper(), *rest, body))


def _mac(secret: bytes, text: bytes) -> bytes:
    return hmac.digest(secret, text, "sha256").hex().encode()


def _bytes(text: Received) -> bytes:
    # Surrogates pass, so that no text makes this raise; such bytes match no signature over what was really sent.
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
