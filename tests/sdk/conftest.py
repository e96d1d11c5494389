"""A kernel for agents that are written with the library, and agents that serve on loopback."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio
import uvicorn

from kernel.embedded import free_port
from stepwell import Agent, Client, Execution
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

LEASE_SECONDS = 10
SETTINGS = {"STEPWELL_NO_POLICY": "allow", "STEPWELL_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8"}


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """One kernel for all tests of this worker."""
    with Stack.start(lease_seconds=LEASE_SECONDS, settings=SETTINGS) as running:
        yield running


class Served:
    """An agent that takes webhooks, and the client's side of its executions."""

    def __init__(self, agent: Agent, client: Client, stack: Stack) -> None:
        self.agent = agent
        self.client = client
        self.stack = stack

    async def run(self, given: Any = None, *, seconds: float = 30) -> Execution:
        """Create an execution and return it once it has ended."""
        execution = await self.client.create(self.agent.agent_id, given)
        return await self.client.wait(execution.id, timeout=seconds)

    async def status(self, execution_id: str, status: str) -> Execution:
        """Wait until the execution has a status, and return it."""

        async def reached() -> Execution | None:
            found = await self.client.get(execution_id)
            return found if found.status == status else None

        found = await wait_until_async(reached, f"the execution to be {status}", deadline_seconds=30)
        assert found is not None
        return found

    async def policy(self, bundle: str) -> None:
        await self.ask("POST", f"/v0/policies/{self.agent.agent_id}", {"bundle": bundle})

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        return await ask(self.stack, method, path, body)


async def ask(stack: Stack, method: str, path: str, body: Any = None) -> Any:
    headers = {"authorization": f"Bearer {stack.api_key}"}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, trust_env=False) as http:
        response = await http.request(method, path, json=body)
    assert response.is_success, response.text
    return response.json() if response.content else None


@asynccontextmanager
async def serving(app: Any, port: int) -> AsyncIterator[None]:
    """Serve an application on this loop."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="on"))
    task = asyncio.create_task(server.serve())
    try:
        await wait_until_async(lambda: server.started, "the agent to serve")
        yield
    finally:
        server.should_exit = True
        await task


Serve = Callable[..., Any]


@pytest_asyncio.fixture
async def serve(stack: Stack) -> AsyncIterator[Serve]:
    """Start an agent with a handler, and end all of them with the test."""
    async with AsyncExitStack() as ending:
        client = await ending.enter_async_context(Client(stack.url, stack.api_key))

        async def started(handler: Callable[..., Any], **options: Any) -> Served:
            secret, port = secrets.token_hex(16), free_port()
            options = {"base_url": stack.url, "drain_seconds": 2.0, **options}
            agent = Agent(f"agent-{secrets.token_hex(4)}", secret=secret, **options)
            agent.bind(handler)
            url = f"http://127.0.0.1:{port}/webhook"
            await ask(stack, "POST", "/v0/agents", {"id": agent.agent_id, "webhook_url": url, "secret": secret})
            await ending.enter_async_context(serving(agent.app, port))
            return Served(agent, client, stack)

        yield started
