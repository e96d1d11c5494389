"""The real NATS and Valkey servers as child processes, from the wheels of the extra `dev-servers`.

For `stepwell dev` and the tests. The servers run with the files of `deploy/`, listen on loopback only and die with
the process that started them.
"""

from kernel.embedded.limits import EmbeddedLimits, EmbeddedServerError
from kernel.embedded.ports import free_port
from kernel.embedded.servers import EmbeddedServer, EmbeddedServers, embedded_nats, embedded_valkey

__all__ = [
    "EmbeddedLimits",
    "EmbeddedServer",
    "EmbeddedServerError",
    "EmbeddedServers",
    "embedded_nats",
    "embedded_valkey",
    "free_port",
]
