"""A whole Stepwell for black-box tests: child processes on free loopback ports, with data of their own.

Everything here blocks, also inside an asynchronous test; put `asyncio.to_thread` around it where that matters.
"""

import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from kernel.embedded import EmbeddedLimits, EmbeddedServer, embedded_nats, embedded_valkey, free_port
from kernel.embedded.process import ChildProcess
from tests.support.blocking import run_blocking
from tests.support.wait import wait_until_async

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 15.0
LOG_TAIL_BYTES_MAX = 4096
PORT_ATTEMPTS_MAX = 5

_READY = b" kernel.main ready: "
_PORT_TAKEN = b"stepwell: cannot listen on "
_LIMITS = EmbeddedLimits(stop_grace_seconds=STOP_SECONDS_MAX)

_running: "dict[Stack, None]" = {}


class KernelProcess:
    """One process of the stack. It keeps its port and its log from one start to the next."""

    def __init__(self, name: str, arguments: list[str], environment: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        self.url = ""
        """Of a process with a door, from its first start on."""
        self._arguments = arguments
        self._environment = dict(environment)
        self._child: ChildProcess | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; a negative number is the signal that ended it."""
        return None if self._child is None else self._child.exit_code

    def kill(self) -> None:
        """`kill -9`."""
        run_blocking(self._running_child().kill())

    def terminate(self) -> None:
        """SIGTERM, and SIGKILL when that does not help in time."""
        run_blocking(self._running_child().terminate())

    def send(self, signal_number: signal.Signals) -> None:
        self._running_child().send(signal_number)

    def unset(self, *names: str) -> None:
        """Let the next start be without these variables."""
        for name in names:
            self._environment.pop(name, None)

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers from when this returns."""
        self._running_child().pause()

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self.send(signal.SIGCONT)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    async def start(self, *, has_door: bool) -> None:
        """Return when it is ready; a door has taken a port by then, the same one at every start."""
        for _ in range(PORT_ATTEMPTS_MAX):
            port = int(self.url.rpartition(":")[2]) if self.url else free_port()
            log_bytes = self.log_path.stat().st_size if self.log_path.exists() else 0
            await self._spawn(port)
            if (
                await wait_until_async(
                    lambda start=log_bytes: self._has_ended() or self._says(_READY, start),
                    f"the process {self.name} to be ready",
                    deadline_seconds=READY_SECONDS_MAX,
                )
                and not self._has_ended()
            ):
                self.url = f"http://127.0.0.1:{port}" if has_door else ""
                return
            if not self._says(_PORT_TAKEN, log_bytes):
                break
        raise AssertionError(f"the process {self.name} ended with {self.exit_code} during its start:\n{self.log()}")

    async def _spawn(self, port: int) -> None:
        # The thread that waits for a child keeps this open for it; there is nothing to share.
        with open(os.devnull, "rb") as nothing:  # noqa: ASYNC230 - opening it takes no time
            self._child = await ChildProcess.start(
                [sys.executable, "-m", "kernel.cli", *self._arguments],
                environment=self._environment | {"STEPWELL_LISTEN_ADDR": f"127.0.0.1:{port}"},
                log_path=self.log_path,
                keep_open=nothing.fileno(),
                limits=_LIMITS,
            )

    def _running_child(self) -> ChildProcess:
        assert self._child is not None
        assert self.is_running, f"{self.name} ended with {self.exit_code}"
        return self._child

    def _has_ended(self) -> bool:
        return not self.is_running

    def _says(self, words: bytes, start: int) -> bool:
        with self.log_path.open("rb") as file:
            file.seek(start)
            return words in file.read()


class Stack:
    """Servers, kernel processes, and the key to them. Made by `start`, ended by `stop`."""

    def __init__(self, folder: Path, mode: Literal["server", "dev"], settings: Mapping[str, str]) -> None:
        self.api_key = f"key-{secrets.token_hex(12)}"
        self.operator_key = f"operator-{secrets.token_hex(12)}"
        self.folder = folder
        self.processes: dict[str, KernelProcess] = {}
        self._mode = mode
        self._settings = dict(settings)
        self._servers: dict[str, EmbeddedServer] = {}
        self._log_starts: dict[Path, int] = {}

    @classmethod
    def start(
        cls,
        mode: Literal["server", "dev"] = "server",
        *,
        lease_seconds: float = 10,
        settings: Mapping[str, str] | None = None,
        processes: Literal["one", "apart"] = "one",
        doors: int = 1,
        projectors: int = 1,
        dispatchers: int = 1,
        config: str = "",
    ) -> "Stack":
        """Return a stack that is ready.

        `one` process has every role and is named after the mode. `apart` there is a process for each role, named
        `door`, `door-2`, ...; `projector`, ...; `dispatcher`, .... `settings` are environment variables and win over
        what the stack sets itself. `config` is the text of a manifest.
        """
        folder = Path(tempfile.mkdtemp(prefix="stepwell-stack-"))
        given = {"STEPWELL_DISPATCH_LEASE_TIMEOUT": f"{lease_seconds}s"} | dict(settings or {})
        stack = cls(folder, mode, given)
        counts = {"door": doors, "projector": projectors, "dispatcher": dispatchers}
        commands = {mode: mode} if processes == "one" else _named(counts)
        if config:
            (folder / "stepwell.yaml").write_text(config)
        try:
            run_blocking(stack._start(commands, has_config=bool(config)))
        except BaseException:
            stack.stop()
            raise
        _running[stack] = None
        return stack

    # ------------------------------------------------------------ what a test uses

    @property
    def url(self) -> str:
        """Of the first door."""
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        """Of every door, in the order of their names."""
        return [process.url for process in self.processes.values() if process.url]

    @property
    def nats(self) -> EmbeddedServer:
        """The log's server, to be paused or killed; of `mode="server"` only."""
        return self._servers["nats"]

    @property
    def valkey(self) -> EmbeddedServer:
        """The view's server, to be paused or killed; of `mode="server"` only."""
        return self._servers["valkey"]

    def process(self, name: str) -> KernelProcess:
        return self.processes[name]

    def kill(self, name: str) -> None:
        """`kill -9` of a process, or of `nats` or `valkey`."""
        if name in self._servers:
            run_blocking(self._servers[name].kill())
        else:
            self.processes[name].kill()

    def restart(self, name: str) -> None:
        """Start again what was killed; what still runs is ended in order first. The port and the data stay."""
        if name in self._servers:
            run_blocking(self._servers[name].restart())
            return
        process = self.processes[name]
        if process.is_running:
            process.terminate()
        run_blocking(process.start(has_door=bool(process.url)))

    def logs(self) -> dict[str, str]:
        """What every process has logged, by name."""
        return {name: process.log() for name, process in self.processes.items()}

    def stop(self) -> None:
        """End everything, the doors first and the log last, and remove the data."""
        _running.pop(self, None)
        try:
            run_blocking(self._stop())
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "Stack":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------ starting and stopping

    async def _start(self, commands: Mapping[str, str], *, has_config: bool) -> None:
        environment = await self._environment()
        for name, command in commands.items():
            arguments = [command]
            if command == "dev":
                arguments += ["--data", str(self.folder / "data")]
            if has_config and command in _WITH_DOOR:
                arguments += ["--config", str(self.folder / "stepwell.yaml")]
            self.processes[name] = KernelProcess(name, arguments, environment, self.folder)
        for name, command in commands.items():
            await self.processes[name].start(has_door=command in _WITH_DOOR)
        for url in self.urls:
            await _wait_ready(url)

    async def _environment(self) -> dict[str, str]:
        """What the processes see: nothing of the test's own settings, so that every run is the same."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
        ours = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        if self._mode == "dev":
            return plain | ours | self._settings
        self._servers = {
            "nats": embedded_nats(self.folder / "nats"),
            "valkey": embedded_valkey(self.folder / "valkey"),
        }
        for server in self._servers.values():
            await server.start()
        ours |= {
            # Agents without a bundle may do everything, unless a test wants it otherwise.
            "STEPWELL_NO_POLICY": "allow",
            "STEPWELL_NATS_URL": self.nats.url,
            "STEPWELL_REDIS_URL": self.valkey.url,
            "STEPWELL_MASTER_KEY": secrets.token_hex(16),
            "STEPWELL_API_KEY": self.api_key,
            "STEPWELL_OPERATOR_KEY": self.operator_key,
            # Agents of tests listen on this machine.
            "STEPWELL_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8,::1/128",
        }
        self.api_key = self._settings.get("STEPWELL_API_KEY", self.api_key)
        return plain | ours | self._settings

    async def _stop(self) -> None:
        async with AsyncExitStack() as ending:
            for server in self._servers.values():
                ending.push_async_callback(server.stop)
            for process in self.processes.values():
                if process.is_running:
                    ending.push_async_callback(process._running_child().terminate)

    # ------------------------------------------------------------ logs of a failed test

    def mark_logs(self) -> None:
        """What is logged from here on belongs to the test that begins."""
        self._log_starts = {path: path.stat().st_size for path in self.folder.glob("*.log")}

    def log_tails(self) -> str:
        """The ends of what the processes have logged since the mark; empty where they logged nothing."""
        tails = [(path.name, _tail(path, self._log_starts.get(path, 0))) for path in sorted(self.folder.glob("*.log"))]
        return "\n".join(f"--- {name}:\n{tail}" for name, tail in tails if tail)


_WITH_DOOR = frozenset({"server", "dev", "door"})


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The server that the tests of one worker share: one process, leases of 10 s. A test must not harm it."""
    with Stack.start() as shared:
        yield shared


@pytest.fixture
def new_stack() -> Iterator[Callable[..., Stack]]:
    """Makes stacks for this test alone: `new_stack(...)` takes what `Stack.start` takes."""
    made: list[Stack] = []

    def make(*arguments: Any, **keywords: Any) -> Stack:
        made.append(Stack.start(*arguments, **keywords))
        return made[-1]

    yield make
    for each in reversed(made):
        each.stop()


def pytest_runtest_setup() -> None:
    for each in _running:
        each.mark_logs()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """A failed test shows what the processes logged meanwhile."""
    report = yield
    if report.failed:
        tails = [(f"stack in {each.folder.name}", each.log_tails()) for each in _running]
        report.sections += [(title, tail) for title, tail in tails if tail]
    return report


def _named(counts: Mapping[str, int]) -> dict[str, str]:
    """Names of the processes of each role, and their commands. Projectors start first: doors need their answers."""
    roles = ("projector", "dispatcher", "door")
    return {
        role if number == 1 else f"{role}-{number}": role for role in roles for number in range(1, counts[role] + 1)
    }


async def _wait_ready(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=5.0) as client:

        async def is_ready() -> bool:
            return (await client.get("/v0/ready")).status_code == httpx.codes.OK

        await wait_until_async(
            is_ready, f"{url} to be ready", deadline_seconds=READY_SECONDS_MAX, retry_on=httpx.TransportError
        )


def _tail(path: Path, start: int) -> str:
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(start, end - LOG_TAIL_BYTES_MAX))
        return file.read().decode(errors="replace")
