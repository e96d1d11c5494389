"""The program of the agents that kill themselves: at the n-th passage of a point around settle and linger.

The points are put around methods of the library and into the connection, from outside.
"""

import asyncio
import json
import os
import secrets
import signal
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import uvicorn
from aiohttp.http_writer import StreamWriter

from stepwell import Agent, Step, ToolError, execution, tool
from stepwell.agent import Handler
from stepwell.context import ExecutionContext
from stepwell.exchange import Answer, Call, Exchange
from stepwell.settling import Settling
from stepwell.types import Webhook
from tests.sdk.chronicle import Chronicle
from tests.sdk.effects import Sink, append, telling_steps
from tests.sdk.lives import serve_lives, server
from tests.sdk.scenario_agents import Ending
from tests.sdk.scenarios import Scenario
from tests.support.wait import wait_until_async

SECRET = "the secret of agents that crash"
STEPS, ONCE = 3, 1
"""Of a chain; the one that is never run twice."""
NEVER_SECONDS = 3600.0

Mode = Literal["rides", "goes-alone", "races", "fans-out"]
"""How outcomes travel: on the next request; alone, before the next step begins; alone and on the next request at once;
on two requests at once, the first of which is kept back until the second one is answered.
"""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to do: one execution, up to the n-th passage; 0 is to its end."""

    number: int
    kernel_url: str
    folder: str
    mode: Mode
    crashes_at: int


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A point was passed."""

    point: str
    process: int


class Points:
    """Counts passages, and ends the process at one of them. Called from any thread."""

    def __init__(self, path: Path, crashes_at: int) -> None:
        self._path = path
        self._crashes_at = crashes_at
        self._passed = 0
        self._lock = threading.Lock()

    def pass_by(self, point: str) -> None:
        with self._lock:
            self._passed += 1
            append(self._path, Passage(point=point, process=os.getpid()))
            if self._passed == self._crashes_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, patch: pytest.MonkeyPatch, owner: type, method: str, point: str) -> None:
        """Make both sides of a plain method points."""
        original = getattr(owner, method)

        def passing(*args: Any) -> Any:
            self.pass_by(f"before {point}")
            result = original(*args)
            self.pass_by(f"after {point}")
            return result

        patch.setattr(owner, method, passing)


def place_points(points: Points, patch: pytest.MonkeyPatch, keeping: "KeepingBack") -> None:
    points.around(patch, Settling, "add", "add")
    points.around(patch, Settling, "arrived", "arrived")
    points.around(patch, Settling, "_send_alone", "the linger fires")
    board, send, take, perform = Settling.board, Exchange._try, Agent.take, ExecutionContext._perform

    async def boarding(settling: Settling) -> Any:
        outcomes = await board(settling)
        points.pass_by("boarded")
        return outcomes

    async def sending(exchange: Exchange, call: Call) -> Answer:
        what = _named(call)
        await keeping.before(call)
        points.pass_by(f"before {what} leaves")
        response = await send(exchange, call)
        points.pass_by(f"before the answer to {what} is taken")
        keeping.after(call)
        return response

    async def taking(agent: Agent, webhook: Webhook) -> bool:
        taken = await take(agent, webhook)
        points.pass_by("before the webhook is answered")
        return taken

    async def performing(context: ExecutionContext, step_id: str, target: str, mode: Any, run: Any) -> Any:
        async def passing() -> Any:
            points.pass_by("before the body")
            result = await run()
            points.pass_by("after the body")
            return result

        return await perform(context, step_id, target, mode, passing)

    patch.setattr(Settling, "board", boarding)
    patch.setattr(Exchange, "_try", sending)
    patch.setattr(Agent, "take", taking)
    patch.setattr(ExecutionContext, "_perform", performing)
    _note_departures(points, patch)


def _note_departures(points: Points, patch: pytest.MonkeyPatch) -> None:
    """Make the moment a point at which a request is with the system, whatever becomes of its sender."""
    write_eof = StreamWriter.write_eof

    async def written(writer: StreamWriter, chunk: bytes = b"") -> None:
        await write_eof(writer, chunk)
        points.pass_by("a request has left")

    patch.setattr(StreamWriter, "write_eof", written)


class KeepingBack:
    """Keeps the request for the left branch back until the one for the right branch is answered."""

    def __init__(self) -> None:
        self._is_right_answered = asyncio.Event()

    async def before(self, call: Call) -> None:
        if _branch(call) == "left":
            await self._is_right_answered.wait()

    def after(self, call: Call) -> None:
        if _branch(call) == "right":
            self._is_right_answered.set()


def _branch(call: Call) -> str:
    args = json.loads(call.body).get("args") if call.path.endswith("/steps") else None
    return args.get("branch", "") if isinstance(args, dict) else ""


def _named(call: Call) -> str:
    """Return what a request is, for its points."""
    words = call.path.strip("/").split("/")
    if call.method == "GET":
        return "the read"
    if words[-1] == "steps":
        return "a submission"
    return "a lone outcome" if "steps" in words else "the end"


# ---------------------------------------------------------------- the agents


def chained(sink: Sink, *, waits: bool) -> Handler:
    """Every step takes the fresh word of the one before it; one of them is never run twice."""

    async def made(number: int) -> str:
        sink.add(f"link {number}")
        return secrets.token_hex(8)

    @tool
    async def link(number: int, after: str) -> str:
        return await made(number)

    @tool(idempotency="at_most_once")
    async def once(number: int, after: str) -> str:
        return await made(number)

    async def handle() -> str:
        word = "first"
        for number in range(STEPS):
            try:
                word = await (once if number == ONCE else link)(number, word)
            except ToolError as error:
                word = str(error)
            if waits:
                await _until_acknowledged(execution()._settling)
        return word

    return handle


async def _until_acknowledged(settling: Settling) -> None:
    await wait_until_async(lambda: not settling._unacknowledged, "every outcome to be acknowledged")


def chained_ending(steps: list[Step]) -> Ending:
    words = [step.result if step.status == "succeeded" else step.error["message"] for step in steps]
    is_lost = steps[ONCE].status == "failed" and steps[ONCE].error["reason"] == "indeterminate"
    return Ending(
        output=words[-1],
        effects=tuple(f"link {number}" for number in range(STEPS) if number != ONCE or not is_lost),
        perhaps=(f"link {ONCE}",) if is_lost else (),
        args=[{"number": number, "after": before} for number, before in enumerate(["first", *words[:-1]])],
    )


def fanned_out(sink: Sink) -> Handler:
    """Two steps at once depend on one, and the last on both."""

    @tool
    async def link(after: str, branch: str) -> str:
        sink.add(branch)
        return secrets.token_hex(8)

    async def handle() -> str:
        first = await link("first", "root")
        both = await asyncio.gather(link(first, "left"), link(first, "right"))
        return await link(" ".join(both), "top")

    return handle


def fanned_out_ending(steps: list[Step]) -> Ending:
    words = {step.args["branch"]: step.result for step in steps}
    root, left, right = words["root"], words["left"], words["right"]
    afters = {"root": "first", "right": root, "left": root, "top": f"{left} {right}"}
    return Ending(
        output=words["top"],
        effects=("root", "right", "left", "top"),
        args=[{"after": after, "branch": branch} for branch, after in afters.items()],
    )


MODES: dict[Mode, Scenario] = {
    "rides": Scenario(name="rides", handler=partial(chained, waits=False), ending=chained_ending),
    "goes-alone": Scenario(name="goes-alone", handler=partial(chained, waits=True), ending=chained_ending),
    "races": Scenario(name="races", handler=partial(chained, waits=False), ending=chained_ending),
    "fans-out": Scenario(name="fans-out", handler=fanned_out, ending=fanned_out_ending),
}


def live(raw: bytes, listener: socket.socket) -> None:
    order = msgspec.json.decode(raw, type=Order)
    # Never undone: it ends with the process.
    patch = pytest.MonkeyPatch()
    patch.setattr(ExecutionContext, "_perform", telling_steps())
    patch.setattr("stepwell.settling.LINGER_SECONDS", NEVER_SECONDS if order.mode in ("rides", "fans-out") else 0.0)
    folder = Path(order.folder)
    Chronicle(folder / "history.jsonl", order.number).install(patch)
    place_points(Points(folder / "passages.jsonl", order.crashes_at), patch, KeepingBack())
    asyncio.run(_serve(order, listener))


async def _serve(order: Order, listener: socket.socket) -> None:
    """Serve until an execution has come to its end here."""
    agent = Agent(order.mode, secret=SECRET, base_url=order.kernel_url)
    agent.bind(MODES[order.mode].handler(Sink(Path(order.folder) / "effects.jsonl")))
    serving = server(agent.app)
    is_over = asyncio.create_task(_at_the_end(agent, serving))
    await serving.serve(sockets=[listener])
    await is_over
    await agent.close()


async def _at_the_end(agent: Agent, serving: uvicorn.Server) -> None:
    complete, is_complete = ExecutionContext.complete, asyncio.Event()

    async def completing(context: ExecutionContext, output: Any, state: Any) -> None:
        await complete(context, output, state)
        is_complete.set()

    pytest.MonkeyPatch().setattr(ExecutionContext, "complete", completing)
    await is_complete.wait()
    await agent.join()
    serving.should_exit = True


if __name__ == "__main__":
    serve_lives(live)
