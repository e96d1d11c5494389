"""Every error has the status, code, details and headers of the contract."""

from collections.abc import Iterator

import msgspec
import pytest

from kernel.domain import errors
from kernel.domain.errors import (
    BundleInvalid,
    Conflict,
    Forbidden,
    Invalid,
    InvariantBroken,
    KernelError,
    LogUnavailable,
    MethodNotAllowed,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    OwnershipLost,
    Refused,
    Superseded,
    Terminal,
    TooLarge,
    TooMany,
    Unauthorized,
    Unavailable,
    ViewUnavailable,
)
from kernel.door.refusals import error_of, refusal_response
from schemas.answers import DecidedBefore, Refusal

CASES: list[tuple[KernelError, int, str, dict[str, str | int] | None]] = [
    (Invalid("no"), 400, "validation_error", None),
    (Invalid("no", path="args.x[1]"), 400, "validation_error", {"path": "args.x[1]"}),
    (
        BundleInvalid("no", line=3, field="rules[2].then"),
        400,
        "validation_error",
        {"line": 3, "field": "rules[2].then"},
    ),
    (Unauthorized(), 401, "unauthorized", None),
    (Forbidden(), 403, "forbidden", None),
    (NotFound("execution"), 404, "not_found", None),
    (MethodNotAllowed(("GET", "POST")), 405, "method_not_allowed", None),
    (Conflict("no"), 409, "conflict", None),
    (Conflict("no", details={"status": "granted"}), 409, "conflict", {"status": "granted"}),
    (Terminal("failed"), 409, "execution_terminal", {"status": "failed"}),
    (Superseded("old"), 409, "lease_superseded", None),
    (TooLarge(10), 413, "payload_too_large", None),
    (TooMany("no", reason="open_steps"), 429, "rate_limited", {"reason": "open_steps"}),
    (Unavailable("no"), 503, "unavailable", None),
    (Unavailable("no", reason="rebuilding"), 503, "unavailable", {"reason": "rebuilding"}),
    (Unavailable("no", reason="a word of ours"), 503, "unavailable", None),
    (LogUnavailable("no", reason="log_full"), 503, "unavailable", {"reason": "log_full"}),
    (ViewUnavailable("no", reason="view_unavailable"), 503, "unavailable", {"reason": "view_unavailable"}),
    (OutcomeUnknown(), 504, "outcome_unknown", None),
    (OwnershipLost(), 500, "internal_error", None),
    (Misconfigured(), 500, "internal_error", None),
    (InvariantBroken("ours"), 500, "internal_error", None),
]


@pytest.mark.parametrize(("error", "status", "code", "details"), CASES)
def test_an_error_is_answered_in_the_words_of_the_contract(
    error: KernelError, status: int, code: str, details: dict[str, str | int] | None
) -> None:
    response = refusal_response(error)
    body = msgspec.json.decode(response.body)
    assert (response.status, body["code"], body.get("details")) == (status, code, details)
    assert isinstance(body["message"], str)
    assert body["message"]
    assert set(body) <= {"code", "message", "details"}


def every_error() -> Iterator[type[KernelError]]:
    pending: list[type[KernelError]] = [KernelError]
    while pending:
        found = pending.pop()
        pending += found.__subclasses__()
        if found.__module__ == errors.__name__:
            yield found


def test_no_error_of_the_tree_is_forgotten() -> None:
    assert set(every_error()) - {KernelError, Refused} == {type(error) for error, *_ in CASES}


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (TooMany("no", reason="x", retry_after_seconds=60), b"60"),
        (Unavailable("no"), b"1"),
        (Unavailable("no", retry_after_seconds=0), b"1"),
        (OutcomeUnknown(), b"1"),
    ],
)
def test_what_may_be_repeated_says_when(error: KernelError, seconds: bytes) -> None:
    assert refusal_response(error).headers == ((b"retry-after", seconds),)


def test_a_wrong_method_is_told_the_right_ones() -> None:
    assert refusal_response(MethodNotAllowed(("GET", "POST"))).headers == ((b"allow", b"GET, POST"),)


def test_unknown_and_foreign_are_the_bytes_of_the_contract() -> None:
    assert refusal_response(NotFound("execution")).body == b'{"code":"not_found","message":"execution not found"}'
    assert refusal_response(NotFound("step")).body == b'{"code":"not_found","message":"step not found"}'


def test_who_decides_too_late_is_told_who_decided_and_when() -> None:
    response = refusal_response(error_of(DecidedBefore("granted", "boss", 1_760_000_000_000_001)))
    assert response.status == 409
    assert response.body == (
        b'{"code":"conflict","message":"the approval is decided already","details":'
        b'{"status":"granted","decided_by":"boss","decided_at":"2025-10-09T08:53:20.000001Z"}}'
    )


@pytest.mark.parametrize(
    ("refusal", "error", "status"),
    [
        (Refusal("validation_error", "bad", "path", "Rebuno-Dispatch-Id"), Invalid, 400),
        (Refusal("not_found", "execution not found"), NotFound, 404),
        (Refusal("not_found", "step not found"), NotFound, 404),
        (Refusal("conflict", "no"), Conflict, 409),
        (Refusal("execution_terminal", "ended", "status", "cancelled"), Terminal, 409),
        (Refusal("lease_superseded", "old"), Superseded, 409),
        (Refusal("rate_limited", "many", "reason", "open_steps"), TooMany, 429),
        (Refusal("unavailable", "halted", "reason", "halted"), Unavailable, 503),
    ],
)
def test_a_refusal_of_the_fold_keeps_its_message_and_details(
    refusal: Refusal, error: type[KernelError], status: int
) -> None:
    found = error_of(refusal)
    assert isinstance(found, error)
    body = msgspec.json.decode(refusal_response(found).body)
    assert refusal_response(found).status == status
    assert body.get("details", {}) == ({refusal.detail_name: refusal.detail} if refusal.detail_name else {})
