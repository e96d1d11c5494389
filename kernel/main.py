"""Running the server's commands: settings, the roles that a command stands for, and how a process ends."""

import asyncio
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import uvloop

from kernel.config import Mode, load_settings, require, require_key
from kernel.domain.errors import KernelError, Misconfigured, Unavailable
from kernel.embedded import EmbeddedServerError
from kernel.journal import set_up_logging
from kernel.listener import Listener
from kernel.manifest import ManifestAgent, apply_manifest, read_manifest
from kernel.process import Parts, Role, Stops, serve
from kernel.roles import DispatcherRole, DoorRole, ProjectorRole
from kernel.settings import Settings

RoleName = Literal["door", "projector", "dispatcher"]
Command = Literal["server"] | RoleName

ALL_ROLES: tuple[RoleName, ...] = ("projector", "dispatcher", "door")
EXIT_REFUSED = 2
EXIT_BROKEN = 1
GC_THRESHOLDS = (50_000, 20, 100)

_WORKERS: Mapping[RoleName, Callable[[Parts], Role]] = {"projector": ProjectorRole, "dispatcher": DispatcherRole}

_log = logging.getLogger(__name__)


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says. `flags` are settings by flag, such as `--port`."""

    flags: Mapping[str, str]
    config_path: Path | None = None


def run_command(command: Command, arguments: Arguments) -> int:
    """Run one of the server's commands until a signal, and return the exit code."""

    async def work(stops: Stops) -> None:
        settings = settings_of("server", arguments)
        roles = ALL_ROLES if command == "server" else (command,)
        if "door" in roles:
            require(settings, "storage", "master_key", "key")
        else:
            require(settings, "storage", "master_key")
        agents = await agents_of(arguments, settings)
        await run_roles(roles, settings, agents=agents, stops=stops)

    return run(work)


def run(work: Callable[[Stops], Coroutine[Any, Any, None]]) -> int:
    """Run `work` on an event loop of its own and return the exit code.

    2 with one line on standard error where the process must not or cannot run, 1 after a fault of ours.
    """

    async def listening() -> None:
        stops = Stops()
        stops.listen()
        await work(stops)

    # Requests and entries make many objects and hardly any cycles: what is there now stays, and is not walked again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(listening())
    except Exception as error:  # noqa: BLE001 - the top of the process: every fault becomes an exit code
        return _exit_code(error)
    return 0


async def run_roles(
    names: Sequence[RoleName],
    settings: Settings,
    *,
    agents: Sequence[ManifestAgent],
    stops: Stops,
    started: Callable[[str], None] | None = None,
) -> None:
    """Run the roles until a signal. `started` is called with the door's URL, empty without a door."""
    url = ""
    makers: list[Callable[[Parts], Role]] = []
    with ExitStack() as closing:
        for name in names:
            if name == "door":
                # The address is taken before anything else is touched.
                listener = closing.enter_context(Listener(host=settings.listen_host, port=settings.listen_port))
                url = listener.url
                makers.append(partial(DoorRole, listener=listener))
            else:
                makers.append(_WORKERS[name])

        async def prepare(parts: Parts) -> None:
            if "door" in names:
                require_key(settings, is_in_record=parts.control.keys.is_any_valid(now=time.time_ns() // 1000))
            await apply_manifest(agents, parts.control)

        def ready() -> None:
            _log.info("ready: %s%s", ", ".join(names), f" on {url}" if url else "")
            if started is not None:
                started(url)

        await serve(settings, makers, stops=stops, prepare=prepare, ready=ready)


def settings_of(mode: Mode, arguments: Arguments) -> Settings:
    """Return the settings, with logging set up by them and their warnings logged. Raises Misconfigured."""
    loaded = load_settings(mode, os.environ, arguments.flags)
    set_up_logging(loaded.settings)
    for warning in loaded.warnings:
        _log.warning("%s", warning)
    return loaded.settings


async def agents_of(arguments: Arguments, settings: Settings) -> tuple[ManifestAgent, ...]:
    """Return the agents of the manifest, none without one. Raises Misconfigured."""
    if arguments.config_path is None:
        return ()
    return await read_manifest(arguments.config_path, os.environ, settings)


def _exit_code(error: Exception) -> int:
    cause = _first_cause(error)
    if isinstance(cause, Misconfigured | Unavailable | EmbeddedServerError):
        line = " ".join(str(cause).split())
        sys.stderr.write(f"stepwell: {line}\n")
        return EXIT_REFUSED
    _log.critical("ended by a fault of its own", exc_info=error)
    return EXIT_BROKEN


def _first_cause(error: Exception) -> Exception:
    """The error that says most: of a group, what refuses to run before what merely broke."""
    if not isinstance(error, ExceptionGroup):
        return error
    group = cast("ExceptionGroup[Exception]", error)
    causes = [_first_cause(each) for each in group.exceptions]
    refusals = [each for each in causes if isinstance(each, Misconfigured)]
    kernel_errors = [each for each in causes if isinstance(each, KernelError)]
    return (refusals or kernel_errors or causes)[0]
