"""Small agents with effects outside of the kernel, and what their recorded steps foretell of the end."""

import asyncio
import secrets
import time
from typing import Any, Literal

import msgspec

from stepwell import Result, Step, ToolError, step, tool
from stepwell.agent import Handler
from tests.sdk.effects import Sink

LARGE_BYTES = 100 * 1024
MANY = 50


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What must be true in the end. `effects` names every step whose body must have run, `perhaps` those that may
    have; `args` are the arguments of the steps, by first submission, None where they do not matter.
    """

    status: Literal["completed", "failed"] = "completed"
    output: Any = None
    failure_reason: str = ""
    effects: tuple[str, ...] = ()
    perhaps: tuple[str, ...] = ()
    args: list[Any] | None = None


def writer(sink: Sink) -> Any:
    """A tool that leaves a mark."""

    @tool
    async def write(what: str) -> str:
        sink.add(what)
        return f"{what} is written"

    return write


# ---------------------------------------------------------------- one after the other


def sequential(sink: Sink) -> Handler:
    """Every step takes the fresh word that the one before it made."""

    @tool
    async def link(number: int, after: str) -> str:
        sink.add(f"link {number}")
        return secrets.token_hex(8)

    async def handle(first: str) -> list[str]:
        words = [first]
        for number in range(4):
            words.append(await link(number, words[-1]))
        return words[1:]

    return handle


def sequential_ending(steps: list[Step]) -> Ending:
    words = [step.result for step in steps]
    befores = ["first", *words[:-1]]
    return Ending(
        output=words,
        effects=tuple(f"link {number}" for number in range(4)),
        args=[{"number": number, "after": before} for number, before in enumerate(befores)],
    )


def many_steps(sink: Sink) -> Handler:
    @tool
    async def add(total: int, number: int) -> int:
        sink.add(f"add {number}")
        return total + number

    async def handle() -> int:
        total = 0
        for number in range(MANY):
            total = await add(total, number)
        return total

    return handle


def large_result(sink: Sink) -> Handler:
    """More than rides along: it goes alone, and the next step waits for it."""
    write = writer(sink)

    @tool
    async def load() -> str:
        sink.add("load")
        return secrets.token_hex(LARGE_BYTES // 2)

    async def handle() -> list[str]:
        text = await load()
        return [text[:16], await write(text[-16:])]

    return handle


def large_ending(steps: list[Step]) -> Ending:
    text = steps[0].result
    last = text[-16:]
    return Ending(output=[text[:16], f"{last} is written"], effects=("load", last), args=[{}, {"what": last}])


# ---------------------------------------------------------------- at once


def identical_calls(sink: Sink) -> Handler:
    @tool
    async def draw(urn: str) -> str:
        sink.add(f"draw from {urn}")
        return secrets.token_hex(8)

    async def handle() -> list[str]:
        return sorted(await asyncio.gather(*(draw("urn") for _ in range(5))))

    return handle


def nested(sink: Sink) -> Handler:
    """A tool whose body makes steps, twice at once."""
    write = writer(sink)

    @tool
    async def chapter(name: str) -> list[str]:
        sink.add(f"chapter {name}")
        return [await write(f"{name} {page}") for page in range(2)]

    async def handle() -> list[list[str]]:
        return list(await asyncio.gather(chapter("one"), chapter("two")))

    return handle


NESTED = [[f"{name} {page} is written" for page in range(2)] for name in ("one", "two")]


# ---------------------------------------------------------------- threads


def plain_handler(sink: Sink) -> Handler:
    @tool
    def write(what: str) -> str:
        sink.add(what)
        return f"{what} is written"

    def handle() -> list[str]:
        return [write("first"), write("second"), step("third", lambda: sink.add("third") or "3")]

    return handle


def threads(sink: Sink) -> Handler:
    """Plain tools at once, called on the loop and from threads."""

    @tool
    def write(what: str) -> str:
        sink.add(what)
        return f"{what} is written"

    async def handle() -> list[str]:
        calls = (write("loop"), asyncio.to_thread(write, "thread"), asyncio.to_thread(write, "other thread"))
        return await asyncio.gather(*calls)

    return handle


# ---------------------------------------------------------------- chance, failures, policy


def chance_and_time(sink: Sink) -> Handler:
    """What is drawn and what time it is decide over the steps that follow."""
    write = writer(sink)

    def toss() -> str:
        sink.add("toss")
        return secrets.choice(["heads", "tails"])

    async def handle() -> list[str]:
        side = await step("coin", toss)
        count = int(await step("clock", time.time_ns)) % 3
        return [await write(f"{side} {number}") for number in range(count)]

    return handle


def chance_ending(steps: list[Step]) -> Ending:
    side, count = steps[0].result, steps[1].result % 3
    names = [f"{side} {number}" for number in range(count)]
    return Ending(output=[f"{name} is written" for name in names], effects=("toss", *names))


def caught_failure(sink: Sink) -> Handler:
    write = writer(sink)

    @tool
    async def explode(reason: str) -> None:
        sink.add("explode")
        raise ValueError(reason)

    async def handle() -> list[str]:
        try:
            await explode("too warm")
        except ToolError as error:
            return [str(error), await write("after")]
        return ["it did not explode"]

    return handle


def failing_handler(sink: Sink) -> Handler:
    write = writer(sink)

    async def handle() -> None:
        await write("before")
        raise LookupError("nothing is there")

    return handle


def at_most_once(sink: Sink) -> Handler:
    @tool(idempotency="at_most_once")
    async def pay(number: int) -> int:
        sink.add(f"pay {number}")
        return number

    async def handle() -> list[Any]:
        paid: list[Any] = []
        for number in range(3):
            try:
                paid.append(await pay(number))
            except ToolError as error:
                paid.append(str(error))
        return paid

    return handle


def at_most_once_ending(steps: list[Step]) -> Ending:
    """A payment that was begun and not reported is told as such, and may have been made."""
    known = [step for step in steps if step.status == "succeeded"]
    lost = [step for step in steps if step.status == "failed" and step.error["reason"] == "indeterminate"]
    return Ending(
        output=[step.result if step.status == "succeeded" else step.error["message"] for step in steps],
        effects=tuple(f"pay {step.args['number']}" for step in known),
        perhaps=tuple(f"pay {step.args['number']}" for step in lost),
        args=[{"number": number} for number in range(3)],
    )


def three_writes(sink: Sink) -> Handler:
    """The one in the middle is what policies speak of."""
    write = writer(sink)

    @tool
    async def publish(what: str) -> str:
        sink.add(f"publish {what}")
        return f"{what} is out"

    async def handle() -> list[str]:
        return [await write("draft"), await publish("book"), await write("note")]

    return handle


def a_denied_step(sink: Sink) -> Handler:
    write = writer(sink)

    async def handle() -> list[str]:
        return [await write("before"), await step("clock", lambda: sink.add("clock") or "now")]

    return handle


def result_with_state(sink: Sink) -> Handler:
    write = writer(sink)

    async def handle() -> Result:
        return Result(output=await write("page"), state={"pages": 1})

    return handle
