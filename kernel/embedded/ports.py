"""TCP ports for servers on loopback."""

import secrets
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"

_PORT_MIN = 12_000
_PORT_BOUND_DEFAULT = 32_768
_PORT_SPAN_MIN = 1_000
_ATTEMPTS_MAX = 200
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port that nothing listened on a moment ago; whoever binds it still has to be ready to lose the race.

    It lies below the range that the system gives to outgoing connections. Inside that range a client which keeps
    connecting to a server that is down may be given the server's own port, connect to itself, and so keep the server
    from ever coming back.
    """
    bound = _ephemeral_port_min()
    for _ in range(_ATTEMPTS_MAX):
        port = _PORT_MIN + secrets.randbelow(bound - _PORT_MIN)
        if is_port_free(port):
            return port
    raise OSError(f"no free port found on {LOOPBACK} between {_PORT_MIN} and {bound} in {_ATTEMPTS_MAX} tries")


def is_port_free(port: int) -> bool:
    """Whether a server could listen on this port of loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers themselves do: connections of an earlier server that linger do not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _ephemeral_port_min() -> int:
    try:
        lowest = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        lowest = _PORT_BOUND_DEFAULT
    # A system that hands out nearly every port leaves no room below; then the usual bound has to do.
    return lowest if lowest >= _PORT_MIN + _PORT_SPAN_MIN else _PORT_BOUND_DEFAULT
