"""What stands between a caller and its model: nothing, nginx, or our gateway; and how long each takes."""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import cast

import msgspec

from bench.machine import ROOT, cpu_seconds
from bench.processes import Processes, until
from bench.ratios import MeasureFailed
from bench.requests import SECRET, Held
from kernel.domain.delegation import Delegation, mint
from kernel.embedded import EmbeddedLimits, free_port
from kernel.embedded.process import ChildProcess

FIRST_COUNT = 100
"""Calls of one round whose first piece is timed."""
APART_SECONDS = 0.01
"""Between two calls that are apart: what the kernel still does for the one before is over by then."""
FIRST_GAP_MS = 5
"""From one piece of theirs to the next: the end of a stream waits for its record, and is to be no part of the first."""
STREAMS, EVENTS, GAP_MS = 8, 400, 2
"""Of a round whose pieces are counted: so many streams at once, so many pieces each, so far apart."""
TOKEN_SECONDS = 3600
NGINX = "nginx"

_NGINX_CONFIG = """\
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log warn;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream model {{ server 127.0.0.1:{model}; keepalive 32; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


class Caller(asyncio.Protocol):
    """A connection on which one stream at a time is read."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._first: asyncio.Future[float] | None = None
        self._whole: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._first is not None and not self._first.done() and b"data: " in self._received:
            self._first.set_result(time.perf_counter())
        if self._whole is not None and not self._whole.done() and self._received.endswith(b"\r\n0\r\n\r\n"):
            self._whole.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        for each in (self._first, self._whole):
            if each is not None and not each.done():
                each.set_exception(MeasureFailed(f"the stream broke off: {self._received[:300]!r}"))

    async def stream(self, request: bytes) -> float:
        """Send a request, read its stream to the end, and return the seconds until its first piece."""
        assert self._transport is not None  # noqa: S101 - connected before it is handed out
        loop = asyncio.get_running_loop()
        self._received, self._first, self._whole = b"", loop.create_future(), loop.create_future()
        started_at = time.perf_counter()
        self._transport.write(request)
        async with asyncio.timeout(60):
            first_at = await self._first
            await self._whole
        return first_at - started_at

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Way:
    """One way to the model, and the process in it that is measured."""

    def __init__(self, port: int, prefix: str, pid: int, numbers: "count[int]") -> None:
        self.pid = pid
        self._port = port
        self._prefix = prefix
        self._numbers = numbers

    async def first_milliseconds(self, *, apart_seconds: float) -> float:
        """Return the median time to the first piece of a stream, of calls that come one after another."""
        caller = await self._caller()
        spent: list[float] = []
        try:
            for _ in range(FIRST_COUNT):
                await asyncio.sleep(apart_seconds)
                spent.append(await caller.stream(self._request(events=3, gap_ms=FIRST_GAP_MS)))
        finally:
            caller.close()
        return median(spent) * 1000

    async def piece_microseconds(self) -> float:
        """Return the CPU time of the process for one piece, of streams beside each other whose pieces come singly."""
        callers = [await self._caller() for _ in range(STREAMS)]
        before = cpu_seconds(self.pid)
        try:
            await asyncio.gather(*(each.stream(self._request(events=EVENTS, gap_ms=GAP_MS)) for each in callers))
        finally:
            for each in callers:
                each.close()
        return (cpu_seconds(self.pid) - before) / (STREAMS * EVENTS) * 1e6

    async def _caller(self) -> Caller:
        _, caller = await asyncio.get_running_loop().create_connection(Caller, "127.0.0.1", self._port)
        return caller

    def _request(self, *, events: int, gap_ms: int) -> bytes:
        body = b'{"model": "m", "stream": true, "n": %d, "events": %d, "gap_ms": %d}' % (
            next(self._numbers),
            events,
            gap_ms,
        )
        return (
            b"POST %b/v1/chat/completions HTTP/1.1\r\nHost: model\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (self._prefix.encode(), len(body), body)
        )


class Ways(msgspec.Struct, frozen=True):
    direct: Way
    nginx: Way
    gateway: Way


@asynccontextmanager
async def ways(processes: Processes, held: Held) -> AsyncIterator[Ways]:
    """Serve a model, and both proxies in front of it. Raises MeasureFailed where nginx is not there."""
    nginx = shutil.which(NGINX, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if nginx is None:
        raise MeasureFailed("nginx is not installed: apt-get install nginx-light")
    folder = processes.folder
    model, proxy, gateway = free_port(), free_port(), free_port()
    (folder / "nginx.conf").write_text(_NGINX_CONFIG.format(folder=folder, model=model, port=proxy))
    (folder / "gateway.toml").write_text(f'[upstreams.openai]\nurl = "http://127.0.0.1:{model}"\npaths = ["/v1"]\n')
    kernel = {"REBUNO_URL": f"http://127.0.0.1:{processes.door_port}", "REBUNO_API_KEY": processes.api_key}
    numbers = count(1)
    async with AsyncExitStack() as ending:
        model_pid = await _started(ending, folder, [sys.executable, "-m", "bench.model", str(model)], model, {})
        nginx_pid = await _started(ending, folder, [nginx, "-p", str(folder), "-c", "nginx.conf"], proxy, {})
        command = [sys.executable, "-m", "stepwell.gateway", "--config", str(folder / "gateway.toml")]
        gateway_pid = await _started(ending, folder, [*command, "--port", str(gateway)], gateway, kernel)
        yield Ways(
            direct=Way(model, "", model_pid, numbers),
            nginx=Way(proxy, "", _worker(nginx_pid), numbers),
            gateway=Way(gateway, f"/d/{token(held)}", gateway_pid, numbers),
        )


async def _started(
    ending: AsyncExitStack, folder: Path, command: list[str], port: int, environment: dict[str, str]
) -> int:
    """Start a process that listens on a port, and return its id once it does."""
    paths = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk' / 'src'}", "PYTHONUNBUFFERED": "1"}
    with open(os.devnull, "rb") as nothing:  # noqa: ASYNC230 - opening it takes no time
        child = await ChildProcess.start(
            command,
            environment=paths | environment,
            log_path=folder / f"{Path(command[0]).name}-{port}.log",
            keep_open=nothing.fileno(),
            limits=EmbeddedLimits(),
        )
    ending.push_async_callback(child.terminate)
    await until(lambda: child.exit_code is not None or _is_listening(port), f"{command[0]} to listen")
    if child.exit_code is not None:
        raise MeasureFailed(f"{command[0]} ended with {child.exit_code}")
    return child.pid


def _is_listening(port: int) -> bool:
    return any(f":{port:04X} 00000000:0000 0A" in line for line in Path("/proc/net/tcp").read_text().splitlines())


def _worker(master_pid: int) -> int:
    """Return the process of nginx that does the work."""
    children = Path(f"/proc/{master_pid}/task/{master_pid}/children").read_text().split()
    return int(children[0]) if children else master_pid


def token(held: Held) -> str:
    """Return a token with which a gateway acts for the agent that holds an execution."""
    expires_at = int(time.time()) + TOKEN_SECONDS
    said = Delegation(agent_id=held.agent_id, execution_id=held.execution_id, lease=held.lease, expires_at=expires_at)
    return mint(SECRET, said)
