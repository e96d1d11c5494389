"""Gateways on loopback, in this process or in one of their own that is killed."""

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from kernel.embedded import free_port
from stepwell.gateway import Gateway, Settings, Upstream
from stepwell.llm.scrubbing import Scrub
from tests.support.stack import ROOT
from tests.support.wait import wait_until_async

GRACE_SECONDS = 5
"""For callers that are still there when a test leaves its gateway."""


def upstreams(provider_url: str, **options: Any) -> dict[str, Upstream]:
    """One provider for everything that OpenAI's and Anthropic's clients ask for."""
    return {"openai": Upstream(url=provider_url, paths=("/v1",), **options)}


@asynccontextmanager
async def gateway(
    kernel_url: str, provider_url: str, *, api_key: str = "", scrub: Scrub | None = None, **options: Any
) -> AsyncIterator[str]:
    """Serve a gateway on this loop, and give its address; `options` are those of its provider."""
    providers = upstreams(provider_url, **options)
    app = Gateway(Settings(base_url=kernel_url, api_key=api_key, upstreams=providers, scrub=scrub))
    port = free_port()
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="warning", lifespan="on", timeout_graceful_shutdown=GRACE_SECONDS
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    try:
        await wait_until_async(lambda: server.started, "the gateway to serve")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


class GatewayProcess:
    """A gateway that is started, killed and started again on one port."""

    def __init__(self, kernel_url: str, provider_url: str, folder: Path) -> None:
        self._port = free_port()
        self._environment = os.environ | {"REBUNO_URL": kernel_url, "REBUNO_API_KEY": ""}
        self._config = folder / "gateway.toml"
        self._config.write_text(f'[upstreams.openai]\nurl = "{provider_url}"\npaths = ["/v1"]\n')
        self._log = folder / "gateway.log"
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Return when it serves."""
        command = (sys.executable, "-m", "stepwell.gateway", "--config", str(self._config), "--port", str(self._port))
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, cwd=ROOT, env=self._environment
            )
        await wait_until_async(self._is_up, "the gateway to serve", deadline_seconds=30)

    async def kill(self) -> None:
        """`kill -9`: no handler of the process runs, no answer leaves."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.returncode is None, self._log.read_text()
        async with httpx.AsyncClient(trust_env=False) as http:
            try:
                return (await http.get(f"{self.url}/healthz")).is_success
            except httpx.TransportError:
                return False


@asynccontextmanager
async def gateway_process(kernel_url: str, provider_url: str, folder: Path) -> AsyncIterator[GatewayProcess]:
    found = GatewayProcess(kernel_url, provider_url, folder)
    await found.start()
    try:
        yield found
    finally:
        await found.kill()
