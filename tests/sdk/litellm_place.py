"""LiteLLM in an environment of its own: its proxy, and programs that import it."""

import asyncio
import os
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from kernel.embedded import free_port
from tests.support.environments import Environment
from tests.support.stack import ROOT
from tests.support.wait import wait_until_async

# Beside it what our library needs, which is read from the checkout.
LITELLM = Environment(
    "litellm",
    ("litellm[proxy]==1.108.7", "aiohttp", "msgspec", "uvicorn", "yarl"),
    Path(__file__).with_name("litellm_constraints.txt"),
)
MASTER_KEY = "sk-of-this-proxy-0123456789abcdef0123456789"
EXAMPLES = ROOT / "examples"
START_SECONDS_MAX = 90.0


@asynccontextmanager
async def litellm_proxy(gateway_url: str, folder: Path, *, provider_key: str) -> AsyncIterator[str]:
    """Run LiteLLM's proxy as examples/litellm.yaml sets it up, in front of a gateway, and give its address."""
    config = (EXAMPLES / "litellm.yaml").read_text().replace("http://127.0.0.1:8081", gateway_url)
    (folder / "litellm.yaml").write_text(config)
    (folder / "litellm_callback.py").write_text((EXAMPLES / "litellm_callback.py").read_text())
    port = free_port()
    command = (LITELLM.interpreter().with_name("litellm"), "--config", folder / "litellm.yaml")
    address = ("--host", "127.0.0.1", "--port", str(port))
    own = {"LITELLM_MASTER_KEY": MASTER_KEY, "OPENAI_API_KEY": provider_key}
    async with program(*map(str, command), *address, folder=folder, environment=own) as process:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:

            async def is_up() -> bool:
                assert process.returncode is None, (folder / "said.txt").read_text()[-4000:]
                try:
                    return (await http.get("/health/liveliness")).status_code == httpx.codes.OK
                except httpx.HTTPError:
                    return False

            await wait_until_async(is_up, "the proxy to serve", deadline_seconds=START_SECONDS_MAX)
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def program(*command: str, folder: Path, environment: Mapping[str, str]) -> AsyncIterator[Process]:
    """Run a program in the folder; what it says is in said.txt. It is killed when the test leaves it."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LITELLM"))}
    # Its table of prices is not fetched from anywhere.
    known |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
    with (folder / "said.txt").open("ab") as said:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env={**known, **environment}, stdout=said, stderr=said
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
