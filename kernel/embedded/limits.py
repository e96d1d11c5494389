"""The bounds of the embedded servers and the one error they raise."""

import msgspec


class EmbeddedLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long an embedded server may take, and how often a start is tried."""

    start_deadline_seconds: float = 30.0
    """From the first try to the first good answer, over all ports tried. A large log takes time to open."""
    lock_deadline_seconds: float = 10.0
    """For an earlier server on the same data to be gone."""
    stop_grace_seconds: float = 10.0
    """Between asking a server to end and killing it."""
    kill_deadline_seconds: float = 10.0
    """Between SIGKILL and the end of the process; longer means a process stuck in the system."""
    probe_interval_seconds: float = 0.02
    probe_timeout_seconds: float = 1.0
    port_attempts_max: int = 20
    log_tail_bytes_max: int = 4096
    """How much of the server's log an error quotes."""


class EmbeddedServerError(RuntimeError):
    """An embedded server cannot be found, started or stopped. The message says what to do about it."""
