"""Everything the library raises.

    Exception
      RebunoError              whatever an agent or a client may want to catch
        NetworkError           the kernel could not be reached, or did not answer, in time
        APIError               the kernel refused: `code`, `status_code`
          ValidationError · UnauthorizedError · ForbiddenError · NotFoundError · ConflictError
          PolicyError          a rule denied the step: `rule_id`
        ToolError              a tool's own failure, live or replayed
        RateLimited            a rule's bucket is empty
    BaseException
      Signal                   this attempt ends here; nothing is left to do for it
        Blocked                a person has to decide first; the execution comes back
        Terminated             the execution has ended
        LeaseSuperseded        a newer attempt has the execution

Signals are no `Exception`, so that `except Exception` around a tool call cannot swallow a pause.
"""

import re

_TOKEN = re.compile(r"[a-z0-9_]+", re.ASCII)


class RebunoError(Exception):
    """Of all errors of this library, signals apart."""


class NetworkError(RebunoError):
    """No answer came in time. Whether the request happened is unknown; the library has repeated it under its key."""


class APIError(RebunoError):
    """The kernel refused a request."""

    def __init__(self, message: str, code: str = "", status_code: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.status_code = status_code


class ValidationError(APIError):
    """The request itself is wrong."""


class UnauthorizedError(APIError):
    """The key or the signature is not accepted."""


class ForbiddenError(APIError):
    """The key lacks the scope."""


class NotFoundError(APIError):
    """It does not exist, or is another tenant's."""


class ConflictError(APIError):
    """It contradicts what is recorded."""


class PolicyError(APIError):
    """A rule denied the step. The message is the rule's reason."""

    def __init__(self, message: str, rule_id: str = "") -> None:
        super().__init__(message, "denied")
        self.rule_id = rule_id


class ToolError(RebunoError):
    """A tool failed: now, or in the attempt whose outcome is replayed."""

    def __init__(self, message: str, tool_id: str = "", step_id: str = "", retryable: bool = False) -> None:
        super().__init__(message)
        self.tool_id = tool_id
        self.step_id = step_id
        self.retryable = retryable


class RateLimited(RebunoError):
    """A rule's bucket is empty. The message says which kind of refusal it is."""

    def __init__(self, reason: str = "rate_limit_exceeded") -> None:
        super().__init__(reason)
        self.reason = reason


class Signal(BaseException):
    """Ends the attempt. Code of an agent lets it pass; `finally` blocks run."""


class Blocked(Signal):
    """A step waits for a person. The execution comes back as a new attempt."""


class Terminated(Signal):
    """The execution has ended, or was cancelled."""


class LeaseSuperseded(Signal):
    """A newer attempt has the execution. Nothing that this one does counts any more."""


_BY_CODE: dict[str, type[APIError]] = {
    "validation_error": ValidationError,
    "payload_too_large": ValidationError,
    "unauthorized": UnauthorizedError,
    "forbidden": ForbiddenError,
    "not_found": NotFoundError,
    "conflict": ConflictError,
}


def error_of(code: str, message: str, status_code: int) -> BaseException:
    """Return what a refusal of the kernel raises."""
    match code:
        case "lease_superseded":
            return LeaseSuperseded(message)
        case "execution_terminal":
            return Terminated(message)
        case _:
            return _BY_CODE.get(code, APIError)(message, code, status_code)


def failure_reason(error: BaseException) -> str:
    """Return the text under which an execution fails because of an error.

    What stands before the first colon is stable: programs may compare it.

    >>> failure_reason(ValueError("no such city"))
    'agent_error: ValueError: no such city'
    """
    match error:
        case PolicyError():
            reason = str(error)
            return reason if _TOKEN.fullmatch(reason) else f"policy_denied: {reason}"
        case RateLimited():
            return error.reason
        case ToolError():
            return f"tool_error: {error.tool_id}: {error}"
        case _:
            return f"agent_error: {type(error).__name__}: {error}"
