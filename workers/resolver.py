"""Name resolution for webhooks: a name that hangs costs one thread, never another agent's delivery.

The loop's own executor has a handful of threads for everybody, which a few dead names would hold for half a minute.
"""

import asyncio
import socket
import threading

LOOKUPS_MAX = 128
"""Names looked up at once; one more is refused, which a delivery takes as an unreachable target."""


class Resolver:
    """Looks names up in daemon threads, one for all who ask for the same name at the same time."""

    def __init__(self, *, lookups_max: int = LOOKUPS_MAX) -> None:
        self._lookups: dict[str, asyncio.Future[tuple[str, ...] | OSError]] = {}
        self._lookups_max = lookups_max

    async def resolve(self, host: str) -> tuple[str, ...]:
        """Return the addresses of a host, the preferred ones first. Raises OSError; the deadline is the caller's."""
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._start(host)
        # The shield keeps one caller's deadline from ending the lookup for the others.
        found = await asyncio.shield(lookup)
        if isinstance(found, OSError):
            raise OSError(str(found)) from found
        return found

    def _start(self, host: str) -> asyncio.Future[tuple[str, ...] | OSError]:
        if len(self._lookups) >= self._lookups_max:
            raise OSError("too many names are being resolved")
        loop = asyncio.get_running_loop()
        lookup: asyncio.Future[tuple[str, ...] | OSError] = loop.create_future()

        def settle(found: tuple[str, ...] | OSError) -> None:
            del self._lookups[host]
            if not lookup.done():
                lookup.set_result(found)

        def work() -> None:
            found = _look_up(host)
            # A loop that has been closed meanwhile has nobody left to tell.
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, found)

        self._lookups[host] = lookup
        threading.Thread(target=work, name="resolve", daemon=True).start()
        return lookup


def _look_up(host: str) -> tuple[str, ...] | OSError:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except ValueError as error:
        # A name that cannot even be asked for: a label too long, a NUL.
        return OSError(str(error))
    # A dict keeps the order and drops repetitions.
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))
