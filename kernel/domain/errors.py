"""Errors of the kernel, one tree. None of them knows a status code; the door maps them in one place.

KernelError
├── Refused                 the request is at fault; nothing changed
│   ├── Invalid             malformed or out of range (`path` names the field)
│   │   └── BundleInvalid   a policy bundle cannot be loaded (`line`, `field`)
│   ├── Unauthorized        no, bad or expired credential
│   ├── Forbidden           the credential lacks the scope
│   ├── NotFound            unknown or foreign (`noun`)
│   ├── MethodNotAllowed    known route, another method (`allow`)
│   ├── Conflict            the state or the key says no
│   ├── Terminal            the execution has ended (`status`)
│   ├── Superseded          a newer delivery attempt holds the lease
│   ├── TooLarge            the body is above the limit
│   └── TooMany             a bound is reached for now (`reason`)
├── Unavailable             log, view or owner missing: certainly not done, safe to retry (`reason`)
│   ├── LogUnavailable      not connected, or the log refused the entry
│   └── ViewUnavailable     Redis cannot be reached or has no room
├── OutcomeUnknown          sent to the log and not answered in time
├── OwnershipLost           another projector owns the shard
├── Misconfigured           this process must not start, or go on, as it is set up
└── InvariantBroken         our fault: park, alarm, never swallow
"""


class KernelError(Exception):
    """Root of all errors the kernel raises on purpose."""


class Refused(KernelError):
    """The request is refused and left no trace."""


class Invalid(Refused):
    """The request is malformed; `path` names the field where one is to blame."""

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


class BundleInvalid(Invalid):
    """A policy bundle cannot be loaded: `field`, such as `rules[2].then.decision`, is wrong on `line`, from 1.

    `field` is empty where the document as a whole is to blame.
    """

    def __init__(self, reason: str, *, line: int, field: str) -> None:
        super().__init__(reason, path=field)
        self.line = line
        self.field = field


class Unauthorized(Refused):
    """The credential is missing, bad or expired; it never says which."""


class Forbidden(Refused):
    """The credential is good and lacks the scope, or its holder may not do this."""


class NotFound(Refused):
    """The thing is unknown, or another's: the two are one answer."""

    def __init__(self, noun: str) -> None:
        super().__init__(f"{noun} not found")
        self.noun = noun


class MethodNotAllowed(Refused):
    """The route exists with other methods."""

    def __init__(self, allow: tuple[str, ...]) -> None:
        super().__init__("method not allowed")
        self.allow = allow


class Conflict(Refused):
    """The state, or a key used before, says no."""

    def __init__(self, reason: str, *, details: dict[str, str] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.details = details or {}


class Terminal(Refused):
    """The execution has ended with `status`."""

    def __init__(self, status: str) -> None:
        super().__init__("the execution has ended")
        self.status = status


class Superseded(Refused):
    """A newer delivery attempt holds the lease."""


class TooLarge(Refused):
    """The body is larger than `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the body is larger than {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class TooMany(Refused):
    """A quota or bound is reached for now; `reason` is its name."""

    def __init__(self, message: str, *, reason: str, retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class Unavailable(KernelError):
    """It was certainly not done and may be tried again. `reason` is empty or one of the contract's words."""

    def __init__(self, message: str, *, reason: str = "", retry_after_seconds: int = 1) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class LogUnavailable(Unavailable):
    """The log is not connected, or refused every publish of the entry."""


class ViewUnavailable(Unavailable):
    """The view cannot be reached, lags behind what was already answered, or has no room."""


class OutcomeUnknown(KernelError):
    """The entry was sent and neither acknowledged nor answered in time: it happens once or not at all."""


class OwnershipLost(KernelError):
    """The shard's fence names another owner; nothing was changed."""


class Misconfigured(KernelError):
    """The process must not run as it is set up. The message says what to do about it, and holds no secret."""


class InvariantBroken(KernelError):
    """The kernel contradicts itself. Never caught below the top of a loop."""
