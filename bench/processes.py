"""A whole Stepwell to be measured: both servers and one process for each role, on loopback, with data of its own."""

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from bench.machine import ROOT
from kernel.embedded import EmbeddedLimits, EmbeddedServers, free_port
from kernel.embedded.process import ChildProcess

READY_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.05
LEASE_SECONDS = 900
"""Longer than a run: the measures send no heartbeats."""

_READY = b" ready: "


class Processes:
    """Use it as an asynchronous context manager."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stepwell-bench-"))
        self.servers = EmbeddedServers(self.folder)
        self.api_key = f"key-{secrets.token_hex(12)}"
        self.operator_key = f"operator-{secrets.token_hex(12)}"
        self.door_port = 0
        self.echo_port = 0
        self.pids: dict[str, int] = {}
        self._children: dict[str, ChildProcess] = {}
        self._ending = AsyncExitStack()
        self._environment: Mapping[str, str] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._ending.aclose()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def start(self, name: str, role: str) -> None:
        """Start one more process of a role and return when it is ready."""
        await self._spawn(name, ["-m", "kernel.cli", role], port=free_port())

    async def stop(self, name: str) -> None:
        """End a process in order."""
        child = self._children.pop(name)
        del self.pids[name]
        await child.terminate()

    async def _start(self) -> None:
        await self._ending.enter_async_context(self.servers)
        plain = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
        self._environment = plain | {
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "STEPWELL_NATS_URL": self.servers.nats.url,
            "STEPWELL_REDIS_URL": self.servers.valkey.url,
            "STEPWELL_MASTER_KEY": secrets.token_hex(16),
            "STEPWELL_API_KEY": self.api_key,
            "STEPWELL_OPERATOR_KEY": self.operator_key,
            "STEPWELL_NO_POLICY": "allow",
            "STEPWELL_DISPATCH_LEASE_TIMEOUT": f"{LEASE_SECONDS}s",
            # The agents of the measures listen on this machine.
            "STEPWELL_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8",
        }
        self.door_port, self.echo_port = free_port(), free_port()
        await self.start("projector", "projector")
        await self.start("dispatcher", "dispatcher")
        await self._spawn("door", ["-m", "kernel.cli", "door"], port=self.door_port)
        await self._spawn("echo", ["-m", "bench.echo"], port=self.echo_port)
        self.pids |= {"nats": self.servers.nats.pid, "valkey": self.servers.valkey.pid}

    async def _spawn(self, name: str, arguments: Sequence[str], *, port: int) -> None:
        log_path = self.folder / f"{name}.log"
        log_path.write_bytes(b"")
        with open(os.devnull, "rb") as nothing:  # noqa: ASYNC230 - opening it takes no time
            child = await ChildProcess.start(
                [sys.executable, *arguments],
                environment={**self._environment, "STEPWELL_LISTEN_ADDR": f"127.0.0.1:{port}"},
                log_path=log_path,
                keep_open=nothing.fileno(),
                limits=EmbeddedLimits(),
            )
        self._ending.push_async_callback(child.terminate)
        await until(lambda: child.exit_code is not None or _READY in log_path.read_bytes(), f"{name} to be ready")
        if child.exit_code is not None:
            raise RuntimeError(f"{name} ended with {child.exit_code}:\n{log_path.read_text()}")
        self._children[name] = child
        self.pids[name] = child.pid


async def until(condition: Callable[[], bool], what: str, *, seconds_max: float = READY_SECONDS_MAX) -> None:
    """Look until something holds. Raises TimeoutError naming it."""
    try:
        async with asyncio.timeout(seconds_max):
            while not condition():  # noqa: ASYNC110 - what another process does announces nothing
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError as error:
        raise TimeoutError(f"waited {seconds_max:g} s for {what}") from error
