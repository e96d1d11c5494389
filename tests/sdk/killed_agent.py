"""The program of the agents that are killed: every scenario, served by one process at a time."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepwell.agent import Agent
from stepwell.context import ExecutionContext
from tests.sdk.chronicle import Chronicle
from tests.sdk.effects import Sink, telling_steps
from tests.sdk.lives import serve_lives, server
from tests.sdk.scenarios import SCENARIOS

SECRET = "the secret of agents that are killed"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to do: serve the agents of this kernel, and write down what happens in this folder."""

    number: int
    kernel_url: str
    folder: str


def live(raw: bytes, listener: socket.socket) -> None:
    order = msgspec.json.decode(raw, type=Order)
    # Never undone: it ends with the process.
    patch = pytest.MonkeyPatch()
    patch.setattr(ExecutionContext, "_perform", telling_steps())
    Chronicle(Path(order.folder) / "history.jsonl", order.number).install(patch)
    asyncio.run(_serve(order, listener))


async def _serve(order: Order, listener: socket.socket) -> None:
    sink = Sink(Path(order.folder) / "effects.jsonl")
    apps: dict[str, Any] = {}
    for scenario in SCENARIOS:
        path = f"/{scenario.name}"
        agent = Agent(scenario.name, secret=SECRET, base_url=order.kernel_url, webhook_path=path)
        agent.bind(scenario.handler(sink))
        apps[path] = agent.app

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await apps[scope["path"]](scope, receive, send)

    await server(app).serve(sockets=[listener])


if __name__ == "__main__":
    serve_lives(live)
