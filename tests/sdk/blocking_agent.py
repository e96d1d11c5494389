"""The program of the agents that keep their loop, their thread or the interpreter to themselves."""

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from stepwell import Agent, tool
from stepwell.agent import Handler
from tests.sdk.effects import Sink
from tests.sdk.lives import serve_lives, server

SECRET = "the secret of agents that block"
NAME = "blocking"
SLOW_TOOLS = 3


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to do: serve the agent of this kernel with one of the handlers."""

    kernel_url: str
    folder: str
    handler: str


def _marking(sink: Sink) -> Any:
    @tool
    async def mark() -> str:
        sink.add("mark")
        return "marked"

    return mark


def awaits(sink: Sink) -> Handler:
    mark = _marking(sink)

    async def handle() -> None:
        await mark()
        await asyncio.Event().wait()

    return handle


def blocks_its_loop(sink: Sink) -> Handler:
    mark = _marking(sink)

    async def handle() -> None:
        await mark()
        threading.Event().wait()

    return handle


def blocks_its_thread(sink: Sink) -> Handler:
    @tool
    def mark() -> str:
        sink.add("mark")
        return "marked"

    def handle() -> None:
        mark()
        threading.Event().wait()

    return handle


def computes(sink: Sink) -> Handler:
    mark = _marking(sink)

    async def handle() -> None:
        await mark()
        count = 0
        while count >= 0:
            count += 1

    return handle


def has_slow_tools(sink: Sink) -> Handler:
    """Three executions whose tools block: in a thread, in a thread below another tool, and the loop of all of them."""
    together = threading.Barrier(SLOW_TOOLS)

    @tool
    def in_a_thread(seconds: float) -> str:
        sink.add("in a thread")
        together.wait()
        threading.Event().wait(seconds)
        return "done"

    @tool
    async def below(seconds: float) -> str:
        sink.add("below")
        return await in_a_thread(seconds)

    @tool
    async def on_the_loop(seconds: float) -> str:
        sink.add("on the loop")
        await asyncio.to_thread(together.wait)
        threading.Event().wait(seconds)
        return "done"

    async def handle(which: str, seconds: float) -> str:
        return await {"thread": in_a_thread, "below": below, "loop": on_the_loop}[which](seconds)

    return handle


HANDLERS: dict[str, Callable[[Sink], Handler]] = {
    each.__name__: each for each in (awaits, blocks_its_loop, blocks_its_thread, computes, has_slow_tools)
}


def live(raw: bytes, listener: socket.socket) -> None:
    order = msgspec.json.decode(raw, type=Order)
    agent = Agent(NAME, secret=SECRET, base_url=order.kernel_url)
    agent.bind(HANDLERS[order.handler](Sink(Path(order.folder) / "effects.jsonl")))
    asyncio.run(server(agent.app).serve(sockets=[listener]))


if __name__ == "__main__":
    serve_lives(live)
