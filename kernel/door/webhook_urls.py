"""Which webhook URLs an agent may register. The dispatcher checks the address again at every send."""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from kernel.domain.addresses import Network, refusal
from kernel.domain.errors import Invalid

URL_BYTES_MAX = 2048
RESOLVE_SECONDS_MAX = 2.0
_FIELD = "webhook_url"


async def check_webhook_url(url: str, allowed_networks: Sequence[Network]) -> None:
    """Raise Invalid for a URL that no webhook is sent to.

    A name is resolved, and every address it has must be allowed; one that does not resolve now is accepted.
    """
    host, port = _host_and_port(url)
    for address in await _addresses(host, port):
        reason = refusal(address, allowed_networks)
        if reason is not None:
            raise Invalid(f"the host is {reason}", path=_FIELD)


def _host_and_port(url: str) -> tuple[str, int]:
    if len(url.encode()) > URL_BYTES_MAX:
        raise Invalid(f"longer than {URL_BYTES_MAX} bytes", path=_FIELD)
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise Invalid("only visible ASCII characters, other ones escaped", path=_FIELD)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Invalid("not a URL", path=_FIELD) from error
    if parts.scheme not in ("http", "https"):
        raise Invalid("neither http nor https", path=_FIELD)
    if parts.username is not None or parts.password is not None:
        raise Invalid("holds user info", path=_FIELD)
    if not host or port == 0:
        raise Invalid("has no host, or no port", path=_FIELD)
    return host, port or (443 if parts.scheme == "https" else 80)


async def _addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a host as text; none where it cannot be resolved in time."""
    try:
        return [str(ip_address(host))]
    except ValueError:
        # It is a name.
        pass
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS_MAX):
            # A final dot says that the name is whole; not every resolver knows it.
            found = await loop.getaddrinfo(host.rstrip("."), port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        return []
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]
