"""The names that agents are written with, and what their errors are."""

import inspect

import pytest

import stepwell
from stepwell import (
    APIError,
    Blocked,
    ConflictError,
    ForbiddenError,
    LeaseSuperseded,
    NotFoundError,
    PolicyError,
    RateLimited,
    RebunoError,
    Terminated,
    ToolError,
    UnauthorizedError,
    ValidationError,
    failure_reason,
)
from stepwell.errors import error_of

NAMES = [
    *("APIError", "Agent", "Approval", "Blocked", "Client", "ConflictError", "Event", "Execution", "ExecutionContext"),
    *("ForbiddenError", "KernelClient", "Lease", "LeaseSuperseded", "NetworkError", "NotFoundError", "PolicyError"),
    *("RateLimited", "RebunoError", "Result", "Signal", "Step", "StepDecision", "Terminated", "ToolError"),
    *("UnauthorizedError", "Usage", "ValidationError", "execution", "failure_reason", "step", "tool", "tool_schema"),
    *("http_client", "raise_for_refusal", "sync_http_client", "wrap_tool"),
]


def test_a1_the_public_names_are_these() -> None:
    assert sorted(stepwell.__all__) == sorted(NAMES)
    assert all(hasattr(stepwell, name) for name in NAMES)


@pytest.mark.parametrize("method", ["submit_step", "complete_step", "fail_step", "heartbeat"])
def test_a1_the_kernel_client_has_the_calls_of_an_agent(method: str) -> None:
    assert inspect.iscoroutinefunction(getattr(stepwell.KernelClient, method))


@pytest.mark.parametrize("signal", [Blocked, Terminated, LeaseSuperseded])
def test_a1_signals_are_no_exceptions(signal: type[BaseException]) -> None:
    assert issubclass(signal, BaseException)
    assert not issubclass(signal, Exception)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("validation_error", ValidationError),
        ("payload_too_large", ValidationError),
        ("unauthorized", UnauthorizedError),
        ("forbidden", ForbiddenError),
        ("not_found", NotFoundError),
        ("conflict", ConflictError),
        ("lease_superseded", LeaseSuperseded),
        ("execution_terminal", Terminated),
        ("rate_limited", APIError),
        ("unavailable", APIError),
        ("a_code_of_a_later_kernel", APIError),
    ],
)
def test_a18_each_code_raises_its_class(code: str, expected: type[BaseException]) -> None:
    error = error_of(code, "why", 409)

    assert type(error) is expected
    assert str(error) == "why"
    if isinstance(error, APIError):
        assert isinstance(error, RebunoError)
        assert (error.code, error.status_code) == (code, 409)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PolicyError("too_expensive", "rule"), "too_expensive"),
        (PolicyError("Not on Sundays."), "policy_denied: Not on Sundays."),
        (RateLimited("rate_limiter_unavailable"), "rate_limiter_unavailable"),
        (RateLimited(), "rate_limit_exceeded"),
        (ToolError("no such city", "weather", "id"), "tool_error: weather: no such city"),
        (KeyError("x"), "agent_error: KeyError: 'x'"),
        (ValueError("a: b"), "agent_error: ValueError: a: b"),
    ],
)
def test_a19_an_execution_fails_with_a_stable_token_before_the_first_colon(error: Exception, reason: str) -> None:
    assert failure_reason(error) == reason
