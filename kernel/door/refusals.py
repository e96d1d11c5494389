"""Every refusal in the words of the contract: the one place that knows which status an error has.

A message never holds an id, a secret or anything else of another tenant.
"""

from collections.abc import Mapping
from typing import assert_never

from msgspec import UNSET

from kernel.domain.errors import (
    BundleInvalid,
    Conflict,
    Forbidden,
    Invalid,
    KernelError,
    MethodNotAllowed,
    NotFound,
    OutcomeUnknown,
    Superseded,
    Terminal,
    TooLarge,
    TooMany,
    Unauthorized,
    Unavailable,
)
from kernel.door.exchange import Response
from schemas.answers import DecidedBefore, Refusal
from schemas.http import ErrorEnvelope, encode_http, rfc3339

_SILENT_REASONS = frozenset({"rebuilding", "halted", "log_full", "view_unavailable"})
"""The only words that `details.reason` of a 503 may hold."""

Headers = tuple[tuple[bytes, bytes], ...]
Details = Mapping[str, str | int]


def refusal_response(error: KernelError) -> Response:
    """Return the response for an error; one that the contract has no words for is our fault, and a 500."""
    match error:
        case BundleInvalid():
            where: Details = {"line": error.line, "field": error.field}
            return _envelope(400, "validation_error", error.reason, where)
        case Invalid():
            return _envelope(400, "validation_error", error.reason, {"path": error.path} if error.path else {})
        case Unauthorized():
            return UNAUTHORIZED
        case Forbidden():
            return _envelope(403, "forbidden", str(error) or "the credential lacks the scope")
        case NotFound():
            return _envelope(404, "not_found", str(error))
        case MethodNotAllowed():
            allow = ", ".join(error.allow).encode()
            return _envelope(405, "method_not_allowed", str(error), headers=((b"allow", allow),))
        case Conflict():
            return _envelope(409, "conflict", error.reason, error.details)
        case Terminal():
            return _envelope(409, "execution_terminal", str(error), {"status": error.status})
        case Superseded():
            return _envelope(409, "lease_superseded", str(error))
        case TooLarge():
            return _envelope(413, "payload_too_large", str(error))
        case TooMany():
            details = {"reason": error.reason} if error.reason else {}
            return _envelope(429, "rate_limited", str(error), details, _retry_after(error.retry_after_seconds))
        case Unavailable():
            details = {"reason": error.reason} if error.reason in _SILENT_REASONS else {}
            return _envelope(503, "unavailable", str(error), details, _retry_after(error.retry_after_seconds))
        case OutcomeUnknown():
            return _envelope(504, "outcome_unknown", _UNKNOWN, headers=_retry_after(1))
        case _:
            return INTERNAL


def error_of(refusal: Refusal | DecidedBefore) -> KernelError:
    """Return the error that a refusal of the fold stands for."""
    if isinstance(refusal, DecidedBefore):
        return Conflict("the approval is decided already", details=_winner(refusal))
    match refusal.code:
        case "validation_error":
            return Invalid(refusal.message, path=refusal.detail)
        case "not_found":
            return NotFound(refusal.message.removesuffix(" not found"))
        case "conflict":
            return Conflict(refusal.message, details=_details(refusal))
        case "execution_terminal":
            return Terminal(refusal.detail)
        case "lease_superseded":
            return Superseded(refusal.message)
        case "rate_limited":
            return TooMany(refusal.message, reason=refusal.detail)
        case "unavailable":
            return Unavailable(refusal.message, reason=refusal.detail)
        case "forbidden":
            return Forbidden(refusal.message)
        case _:
            assert_never(refusal.code)


def _winner(before: DecidedBefore) -> dict[str, str]:
    return {"status": before.status, "decided_by": before.decided_by, "decided_at": rfc3339(before.decided_at)}


def _details(refusal: Refusal) -> dict[str, str]:
    return {refusal.detail_name: refusal.detail} if refusal.detail_name else {}


def _retry_after(seconds: int) -> Headers:
    return ((b"retry-after", b"%d" % max(1, seconds)),)


def _envelope(status: int, code: str, message: str, details: Details | None = None, headers: Headers = ()) -> Response:
    body = ErrorEnvelope(code=code, message=message, details=dict(details) if details else UNSET)
    return Response(status=status, body=encode_http(body), headers=headers)


_UNKNOWN = "the request was recorded or not: repeat it with the same Idempotency-Key to learn its outcome"
UNAUTHORIZED = _envelope(401, "unauthorized", "the credential is missing or not valid")
"""One body for whatever is wrong with a credential."""
INTERNAL = _envelope(500, "internal_error", "internal error")
