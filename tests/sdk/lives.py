"""Agent processes that are forked, not started: a test can have hundreds, each a process of its own that is killed.

A program imports what its agents need once and holds their listening socket, then forks at every order. Between two
lives nobody accepts, and webhooks wait.
"""

import asyncio
import gc
import os
import select
import signal
import socket
import sys
import traceback
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec
import uvicorn

from tests.support.stack import ROOT

BACKLOG = 512
START_SECONDS_MAX = 60.0
LOG_CHARACTERS_MAX = 6000


class Lives:
    """The processes of one program, one at a time. Made by `start`, ended by `close`."""

    def __init__(self, program: Process, log: Path) -> None:
        self._program = program
        self._log = log
        self._pid = 0
        self.port = 0

    @classmethod
    async def start(cls, module: str, log: Path) -> Self:
        """Start the program; `log` gets what its processes say."""
        # Nothing here speaks TLS, and to read every authority of the world takes a life as long as its work does.
        environment = os.environ | {"SSL_CERT_FILE": "", "SSL_CERT_DIR": str(log.parent)}
        command = (sys.executable, "-m", module)
        with log.open("ab") as errors:
            program = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=errors, cwd=ROOT, env=environment
            )
        lives = cls(program, log)
        async with asyncio.timeout(START_SECONDS_MAX):
            lives.port = await lives._said()
        return lives

    async def begin(self, order: msgspec.Struct) -> int:
        """Begin a life, the last one having ended, and return its process id."""
        assert self._program.stdin is not None
        self._program.stdin.write(msgspec.json.encode(order) + b"\n")
        self._pid = await self._said()
        return self._pid

    def kill(self) -> None:
        """`kill -9`: no handler of the process runs, no answer leaves."""
        os.kill(self._pid, signal.SIGKILL)

    async def ended(self) -> int:
        """Return how the life ended, once it has: 0, or the negative number of a signal."""
        return await self._said()

    async def close(self) -> None:
        """End the program, and the life that it has."""
        assert self._program.stdin is not None
        self._program.stdin.close()
        await self._program.wait()

    async def _said(self) -> int:
        assert self._program.stdout is not None
        line = await self._program.stdout.readline()
        if not line:
            raise RuntimeError(f"the program has ended:\n{self._log.read_text()[-LOG_CHARACTERS_MAX:]}")
        return int(line)


def server(app: Any) -> uvicorn.Server:
    """Return a server of webhooks, for the listening socket of the program."""
    return uvicorn.Server(uvicorn.Config(app, ws="none", lifespan="off", log_level="warning"))


def serve_lives(live: Callable[[bytes, socket.socket], None]) -> None:
    """Fork at every order of the test, and let the process live by it."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    # What a life needs is imported before it begins, and is nobody's garbage: to look through it would copy it.
    server(None).config.load()
    gc.freeze()
    _say(listener.getsockname()[1])
    while order := sys.stdin.buffer.readline():
        pid = os.fork()
        if pid == 0:
            _live(live, order, listener)
        _say(pid)
        _outlive(pid)


def _live(live: Callable[[bytes, socket.socket], None], order: bytes, listener: socket.socket) -> None:
    try:
        live(order, listener)
    except BaseException:  # noqa: BLE001 - the top of a process: what it dies of is said, and nothing else of it runs
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _outlive(pid: int) -> None:
    """Wait for the end of a life, and end it where the test has ended."""
    ending = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([ending, sys.stdin.fileno()], [], [])
        if ending not in ready:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(ending)
    _say(os.waitstatus_to_exitcode(status))


def _say(number: int) -> None:
    try:
        os.write(1, f"{number}\n".encode())
    except BrokenPipeError:
        # The test has ended, and nobody listens.
        os._exit(0)
