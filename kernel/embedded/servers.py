"""The embedded servers as their users see them: start, stop, kill, pause, and start again on the same port and data."""

import asyncio
import fcntl
import os
import secrets
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from kernel.embedded.kinds import Launch, NatsKind, ServerKind, ValkeyKind
from kernel.embedded.limits import EmbeddedLimits, EmbeddedServerError
from kernel.embedded.ports import LOOPBACK, free_port
from kernel.embedded.process import ChildProcess

_PORT_TAKEN = b"address already in use"


class EmbeddedServers:
    """Both servers with their data under one folder: `async with EmbeddedServers(path) as servers`."""

    def __init__(self, data_path: Path, *, limits: EmbeddedLimits | None = None) -> None:
        self.nats = embedded_nats(data_path / "nats", limits=limits)
        self.valkey = embedded_valkey(data_path / "valkey", limits=limits)
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Start both. When one fails, neither is left running."""
        async with AsyncExitStack() as running:
            for server in (self.nats, self.valkey):
                await server.start()
                running.push_async_callback(server.stop)
            self._running = running.pop_all()

    async def stop(self) -> None:
        """Stop both, the view before the log."""
        await self._running.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class EmbeddedServer:
    """One server. Its port stays the same from the first start on, and so does its data.

    A data folder serves one server at a time, whatever process it belongs to.
    """

    def __init__(
        self, kind: ServerKind, data_path: Path, *, port: int | None, arguments: Sequence[str], limits: EmbeddedLimits
    ) -> None:
        self._kind = kind
        self._data_path = data_path
        self._port = port
        self._arguments = tuple(arguments)
        self._limits = limits
        self._child: ChildProcess | None = None

    @property
    def url(self) -> str:
        return f"{self._kind.scheme}://{LOOPBACK}:{self.port}"

    @property
    def port(self) -> int:
        if self._port is None:
            raise EmbeddedServerError(f"the embedded {self._kind.name} server has no port before its first start")
        return self._port

    @property
    def pid(self) -> int:
        return self._running_child().pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there; a paused one counts."""
        return self._child is not None and self._child.exit_code is None

    @property
    def log_path(self) -> Path:
        return self._data_path / f"{self._kind.name}.log"

    async def start(self) -> None:
        """Return when the server answers. Raises `EmbeddedServerError` with the end of its log when it does not."""
        if self.is_running:
            raise EmbeddedServerError(f"the embedded {self._kind.name} server is running already")
        self._data_path.mkdir(parents=True, exist_ok=True)
        lock = await self._lock_data()
        try:
            async with asyncio.timeout(self._limits.start_deadline_seconds):
                await self._start_on_a_port(lock)
        except TimeoutError as error:
            raise self._failure(f"did not get ready in {self._limits.start_deadline_seconds} s") from error
        finally:
            # The server holds the lock from now on, and gives it up by ending, however it ends.
            os.close(lock)

    async def stop(self) -> None:
        """Let the server end in order, and kill it after the grace. Does nothing when it is not running."""
        if self._child is not None:
            await self._child.terminate()

    async def kill(self) -> None:
        """SIGKILL. `start` brings the server back on the same port and data."""
        await self._running_child().kill()

    async def restart(self) -> None:
        """Stop in order, then start on the same port and data."""
        await self.stop()
        await self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers from when this returns."""
        self._running_child().pause()

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._running_child().send(signal.SIGCONT)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _start_on_a_port(self, lock: int) -> None:
        for _ in range(self._limits.port_attempts_max):
            port = self._port if self._port is not None else free_port()
            log_bytes = self.log_path.stat().st_size if self.log_path.exists() else 0
            if await self._is_started(port, lock):
                self._port = port
                return
            if _PORT_TAKEN not in self._log_tail(log_bytes).lower():
                raise self._failure("ended during its start")
            await asyncio.sleep(self._limits.probe_interval_seconds)
        raise self._failure(f"found its port taken {self._limits.port_attempts_max} times")

    async def _is_started(self, port: int, lock: int) -> bool:
        """Whether the server came up on this port; False when it ended instead."""
        label = f"embedded-{self._kind.name}-{secrets.token_hex(8)}"
        launch = Launch(port=port, data_path=self._data_path.resolve(), label=label)
        child = await ChildProcess.start(
            [*self._kind.command(launch), *self._arguments],
            environment=os.environ | self._kind.environment(launch),
            log_path=self.log_path,
            keep_open=lock,
            limits=self._limits,
        )
        try:
            while child.exit_code is None:
                if await self._answers(launch, child):
                    self._child = child
                    return True
                await asyncio.sleep(self._limits.probe_interval_seconds)
        except BaseException:
            # Cancelled or out of time: a server that nobody waits for must not stay.
            child.send(signal.SIGKILL)
            raise
        return False

    async def _answers(self, launch: Launch, child: ChildProcess) -> bool:
        try:
            async with asyncio.timeout(self._limits.probe_timeout_seconds):
                return await self._kind.is_ready(launch, pid=child.pid)
        except (OSError, EOFError, asyncio.LimitOverrunError):
            return False

    async def _lock_data(self) -> int:
        lock = os.open(self._data_path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with ExitStack() as undo:
            undo.callback(os.close, lock)
            try:
                async with asyncio.timeout(self._limits.lock_deadline_seconds):
                    while not _is_locked(lock):  # noqa: ASYNC110 - a file lock announces nothing
                        await asyncio.sleep(self._limits.probe_interval_seconds)
            except TimeoutError as error:
                raise EmbeddedServerError(f"another server is using the data in {self._data_path}") from error
            undo.pop_all()
        return lock

    def _running_child(self) -> ChildProcess:
        if self._child is None or self._child.exit_code is not None:
            raise EmbeddedServerError(f"the embedded {self._kind.name} server is not running")
        return self._child

    def _log_tail(self, start: int) -> bytes:
        if not self.log_path.exists():
            return b""
        with self.log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(start, end - self._limits.log_tail_bytes_max))
            return log.read()

    def _failure(self, what: str) -> EmbeddedServerError:
        tail = self._log_tail(0).decode(errors="replace")
        return EmbeddedServerError(f"the embedded {self._kind.name} server {what}; {self.log_path} ends with:\n{tail}")


def _is_locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def embedded_nats(
    data_path: Path, *, port: int | None = None, arguments: Sequence[str] = (), limits: EmbeddedLimits | None = None
) -> EmbeddedServer:
    """A NATS server with JetStream, not started yet. Without a port it takes a free one at its first start.

    `arguments` go to the program after ours.
    """
    return EmbeddedServer(NatsKind(), data_path, port=port, arguments=arguments, limits=limits or EmbeddedLimits())


def embedded_valkey(
    data_path: Path, *, port: int | None = None, arguments: Sequence[str] = (), limits: EmbeddedLimits | None = None
) -> EmbeddedServer:
    """A Valkey server, not started yet. Without a port it takes a free one at its first start.

    `arguments` go to the program after ours, such as `--maxmemory 20mb`.
    """
    return EmbeddedServer(ValkeyKind(), data_path, port=port, arguments=arguments, limits=limits or EmbeddedLimits())
