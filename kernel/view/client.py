"""Commands and scripts over a bounded set of connections. A script that the server forgot is loaded again."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis
from redis.exceptions import NoScriptError, ResponseError

from kernel.view.connections import Connections, Reply, unavailable
from kernel.view.limits import ViewLimits
from kernel.view.scripts import Script

Argument = bytes | str | int
Command = tuple[Argument, ...]

_MULTI = b"*1\r\n$5\r\nMULTI\r\n"
_EXEC = b"*1\r\n$4\r\nEXEC\r\n"

# The stub of hiredis says that a command is a tuple of one.
_packed: Callable[[Command], bytes] = cast("Any", hiredis).pack_command


class Client:
    """Every method raises ViewUnavailable, and nothing else, for what the server or the network does."""

    def __init__(self, url: str, limits: ViewLimits) -> None:
        self.limits = limits
        self._connections = Connections(url, limits)

    @property
    def losses(self) -> int:
        """How often a connection was lost. A reply that comes after a loss may be from a server with older data."""
        return self._connections.losses

    async def call(self, *command: Argument) -> Reply:
        """Run one command."""
        answers = await self._connections.exchange(_packed(command), replies=1)
        return _sound(answers[0])

    async def pipeline(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands on one connection, one after the other, with others' in between."""
        if not commands:
            return []
        answers = await self._connections.exchange(b"".join(map(_packed, commands)), replies=len(commands))
        return [_sound(answer) for answer in answers]

    async def transaction(self, *commands: Command) -> list[Reply]:
        """Run commands at one moment."""
        request = b"".join((_MULTI, *map(_packed, commands), _EXEC))
        answers = await self._connections.exchange(request, replies=len(commands) + 2)
        replies = [_sound(answer) for answer in answers][-1]
        if not isinstance(replies, list):
            raise unavailable("a transaction was given up")
        return [_sound(reply) for reply in replies]

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Reply:
        """Run a script."""
        return (await self.run_each(script, [(keys, arguments)]))[0]

    async def run_each(self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]) -> list[Reply]:
        """Run a script once for each pair of keys and arguments, in one pipeline."""
        requests = [_packed(("EVALSHA", script.digest, len(keys), *keys, *arguments)) for keys, arguments in calls]
        answers: list[Reply | ResponseError] = [NoScriptError()] * len(requests)
        loading = b""
        for _ in range(1 + self.limits.script_loads_max):
            # A call that met no script did nothing, so it may be sent again; the others are done.
            unknown = [at for at, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
            if not unknown:
                break
            request = loading + b"".join(requests[at] for at in unknown)
            found = await self._connections.exchange(request, replies=len(unknown) + bool(loading))
            for at, answer in zip(unknown, found[-len(unknown) :], strict=True):
                answers[at] = answer
            loading = _packed(("SCRIPT", "LOAD", script.source))
        return [_sound(answer) for answer in answers]

    async def close(self) -> None:
        await self._connections.close()


def _sound(reply: Reply | ResponseError) -> Reply:
    # Inside a transaction's reply the driver leaves errors as values.
    if isinstance(reply, ResponseError):
        raise unavailable(str(reply)) from reply
    return reply
