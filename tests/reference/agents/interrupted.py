"""An agent that is killed in the middle: one run to resume, one whose open effect must not be repeated."""
# The client is installed in the environment this runs in, not in the one that checks types.
# pyright: reportMissingImports=false

import asyncio
import secrets

from rebuno import execution, step, tool
from stage import note, opened, serve, told


@tool
async def record(name: str) -> dict[str, str]:
    """Each run of the body leaves another mark, so a repeated effect shows in the result too."""
    mark = secrets.token_hex(8)
    note("effect", "record", name=name, mark=mark)
    return {"name": name, "mark": mark}


@tool
async def refuse(reason: str) -> None:
    note("effect", "refuse")
    raise ValueError(reason)


@tool
async def hold(gate: str) -> int:
    note("effect", "hold")
    if execution().dispatch_attempt == 1:
        # The first attempt never comes back from here: it is killed.
        await opened("never")
    await opened(gate)
    return execution().dispatch_attempt


@tool(idempotency="at_most_once")
async def charge(amount: int) -> int:
    note("effect", "charge", amount=amount)
    if execution().dispatch_attempt == 1:
        await opened("never")
    return amount


def draw() -> str:
    mark = secrets.token_hex(8)
    note("effect", "draw", mark=mark)
    return mark


async def resume() -> object:
    opening = await record("opening")
    drawn = await step("draw", draw)
    refused = await told(refuse("not today"))
    names = ["left", "right", "twin", "twin"]
    if execution().dispatch_attempt > 1:
        # Recorded effects are found by what they are, not by the order in which they come.
        names.reverse()
    parallel = await asyncio.gather(*(record(name) for name in names))
    held = await hold("resume")
    closing = await record("closing")
    return {
        "opening": opening["mark"],
        "drawn": drawn,
        "refused": refused,
        "parallel": sorted([result["name"], result["mark"]] for result in parallel),
        "held": held,
        "closing": closing["mark"],
    }


async def orphan() -> object:
    return [await told(charge(7)), await told(charge(7)), await told(charge(8))]


async def interrupted(scenario: str) -> object:
    return await (resume() if scenario == "resume" else orphan())


if __name__ == "__main__":
    serve(interrupted)
