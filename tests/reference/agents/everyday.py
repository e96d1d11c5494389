"""An agent for what happens every day: plain runs, parallel and identical calls, local steps, errors, long bodies."""
# The client is installed in the environment this runs in, not in the one that checks types.
# pyright: reportMissingImports=false

import asyncio
import itertools
import secrets
from collections import defaultdict
from collections.abc import Iterator

from rebuno import execution, step, tool
from stage import note, opened, serve, told

SEATS = 8
MEETING_SECONDS_MAX = 20.0

meetings: dict[str, asyncio.Barrier] = {}
tickets: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


@tool
async def meet(seat: int, table: str = "round") -> dict[str, object]:
    """Returns only when every seat is taken: calls that were let in one after another would never end."""
    note("effect", "meet", seat=seat)
    async with asyncio.timeout(MEETING_SECONDS_MAX):
        await meetings[execution().id].wait()
    return {"seat": seat, "table": table}


@tool("take.ticket")
async def take_ticket(queue: str) -> int:
    note("effect", "take_ticket", queue=queue)
    return next(tickets[execution().id])


@tool
async def record(name: str) -> str:
    note("effect", "record", name=name)
    return name


@tool
async def hold(gate: str) -> str:
    note("effect", "hold", gate=gate)
    try:
        await opened(gate)
    except asyncio.CancelledError:
        note("stopped", "hold", gate=gate)
        raise
    return gate


@tool
async def explode(message: str) -> None:
    raise ValueError(message)


@tool
async def explode_oddly() -> None:
    raise ValueError("half a pair: \ud800")


def draw(sides: int = 6) -> str:
    return f"{sides}:{secrets.token_hex(8)}"


async def in_parallel() -> object:
    meetings[execution().id] = asyncio.Barrier(SEATS)
    return await asyncio.gather(*(meet(seat) for seat in range(SEATS)))


async def identical() -> object:
    together = await asyncio.gather(*(take_ticket("a") for _ in range(5)))
    return [*together, await take_ticket("a")]


async def local() -> object:
    return {"plain": await step("draw", draw), "with_args": await step("draw", draw, {"sides": 20})}


async def errors() -> object:
    # The odd text itself could not be part of an output.
    outcome, _ = await told(explode_oddly())
    return {"plain": await told(explode("boom")), "odd": outcome}


async def long_body(gate: str) -> object:
    try:
        return [await record("before"), await hold(gate), await record("after")]
    finally:
        note("left", "handler", gate=gate)


async def everyday(scenario: str, gate: str = "", name: str = "") -> object:
    match scenario:
        case "hello":
            return {"greeting": f"hello {name}"}
        case "parallel":
            return await in_parallel()
        case "identical":
            return await identical()
        case "local":
            return await local()
        case "errors":
            return await errors()
        case "fatal":
            return await explode("fatal")
        case "broken":
            raise RuntimeError("broken: beyond repair")
        case "long":
            return await long_body(gate)
        case _:
            raise LookupError(scenario)


if __name__ == "__main__":
    serve(everyday)
