"""What the scripted agents share: notes in a file that outlives them, gates to wait at, and serving.

A note is one line appended by one write, so what an agent did is known however it ends.
"""
# The client is installed in the environment this runs in, not in the one that checks types.
# pyright: reportMissingImports=false

import asyncio
import fcntl
import json
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvicorn
from rebuno import Agent, ToolError, execution

AGENT_ID = os.environ["STAGE_AGENT_ID"]
ROLE = os.environ["STAGE_ROLE"]
FOLDER = Path(os.environ["STAGE_FOLDER"])


def note(what: str, name: str, /, **facts: object) -> None:
    """Append one line that says which attempt of which execution did what."""
    context = execution()
    line = {
        "what": what,
        "name": name,
        "role": ROLE,
        "pid": os.getpid(),
        "execution": context.id,
        "dispatch": context.dispatch_id,
        "attempt": context.dispatch_attempt,
        "facts": facts,
    }
    journal = os.open(FOLDER / "journal.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(journal, json.dumps(line).encode() + b"\n")
    finally:
        os.close(journal)


async def opened(gate: str) -> None:
    """Wait, with the event loop free, until the test opens the gate."""
    loop = asyncio.get_running_loop()
    passed = loop.create_future()

    def wait() -> None:
        opened_blocking(gate)
        loop.call_soon_threadsafe(lambda: passed.done() or passed.set_result(None))

    # A waiter that was cancelled stays at the gate: in a thread of its own it uses up none of the client's workers.
    threading.Thread(target=wait, daemon=True).start()
    await passed


def opened_blocking(gate: str) -> None:
    """Wait like a handler that hangs: the event loop stands still, so no heartbeat leaves.

    The test holds the gate's file locked for itself and lets go to open it.
    """
    with (FOLDER / f"{gate}.gate").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)


async def told(call: Awaitable[object]) -> list[object]:
    """The outcome of a tool call in words that JSON can carry."""
    try:
        return ["returned", await call]
    except ToolError as error:
        return ["raised", str(error)]


def serve(handler: Callable[..., object]) -> None:
    """Serve the client's own webhook application on the listening socket that the test holds."""
    agent = Agent(AGENT_ID)
    agent.bind(handler)

    async def idle() -> None:
        await agent.join()

    agent.app.get("/idle")(idle)
    threading.Thread(target=_leave_with_the_test, daemon=True).start()
    listener = socket.socket(fileno=int(os.environ["STAGE_LISTENER"]))
    uvicorn.Server(uvicorn.Config(agent.app, log_level="warning")).run(sockets=[listener])


def _leave_with_the_test() -> None:
    """The test holds the other end of standard input: no agent outlives it, whatever ended it."""
    sys.stdin.buffer.read()
    os._exit(0)
