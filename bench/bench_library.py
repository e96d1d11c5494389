"""How fast an agent of ten steps is with our library and with the published client, on the same kernel in one run.

Run it with `python -m bench.bench_library`. It exits 1 where a ratio is below its bar, or could not be measured.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import uvloop

from bench import machine
from bench.library import STEPS, Door, EnteredAgain, Library, LibraryAgent, OneByOne
from bench.processes import Processes
from bench.published import PACKAGE, VERSION, interpreter
from bench.ratios import HEAD, Bar, MeasureFailed, Row, say

OURS, PUBLISHED = "ours", "published"
WARM_EXECUTIONS = 10
ONE_BY_ONE_ROUNDS, ONE_BY_ONE_EXECUTIONS = 7, 20
AGAIN_ROUNDS, AGAIN_EXECUTIONS = 7, 15
AT_ONCE_ROUNDS, AT_ONCE = 3, 128
AT_ONCE_EXECUTIONS = 256

RATE = f"steps of an agent of {STEPS} steps, one execution after another / with the published client"
LATENCY = "one step, as the handler sees it / with the published client, p50"
REPLAY = "a replayed step / a fresh one, p50"
CPU = "CPU time of the agent's process for a step / with the published client"
AT_ONCE_RATE = f"the same steps, {AT_ONCE} executions at once / with the published client"

Agents = Mapping[str, LibraryAgent]


async def measure(door: Door, published: Path, folder: Path) -> list[Row]:
    """Serve the agent with both libraries and measure them in turn."""
    ours = Library(
        name=OURS,
        module="stepwell",
        interpreter=Path(sys.executable),
        # Of this checkout, whichever one is installed.
        environment={"PYTHONPATH": str(machine.ROOT / "sdk" / "src")},
    )
    theirs = Library(name=PUBLISHED, module=PACKAGE, interpreter=published, environment={})
    async with (
        LibraryAgent.serving(ours, door, folder) as our_agent,
        LibraryAgent.serving(theirs, door, folder) as their_agent,
    ):
        agents = {OURS: our_agent, PUBLISHED: their_agent}
        for name, agent in agents.items():
            await agent.one_by_one(WARM_EXECUTIONS)
            say(f"{name} is warm")
        return [*await one_by_one(agents), await entered_again(our_agent), await at_once(agents)]


async def one_by_one(agents: Agents) -> list[Row]:
    found: dict[str, list[OneByOne]] = {name: [] for name in agents}
    for number in range(1, ONE_BY_ONE_ROUNDS + 1):
        for name, agent in agents.items():
            seen = await agent.one_by_one(ONE_BY_ONE_EXECUTIONS)
            found[name].append(seen)
            say(
                f"round {number}: one by one, {name}: {seen.steps_per_second:,.0f} steps/s, "
                f"{seen.step_milliseconds:.2f} ms a step, {seen.cpu_milliseconds:.2f} ms of CPU"
            )

    def each(value: Callable[[OneByOne], float]) -> tuple[list[float], list[float]]:
        return [value(seen) for seen in found[OURS]], [value(seen) for seen in found[PUBLISHED]]

    return [
        Row(RATE, *each(lambda seen: seen.steps_per_second), "steps/s", Bar(1.6, 2)),
        Row(LATENCY, *each(lambda seen: seen.step_milliseconds), "ms", Bar(0.65, 0.5, is_limit=True)),
        Row(CPU, *each(lambda seen: seen.cpu_milliseconds), "ms"),
    ]


async def entered_again(agent: LibraryAgent) -> Row:
    found: list[EnteredAgain] = []
    for number in range(1, AGAIN_ROUNDS + 1):
        seen = await agent.entered_again(AGAIN_EXECUTIONS)
        found.append(seen)
        say(
            f"round {number}: entered again: {seen.replayed_milliseconds:.2f} ms a replayed step, "
            f"{seen.fresh_milliseconds:.2f} ms a fresh one"
        )
    replayed, fresh = [each.replayed_milliseconds for each in found], [each.fresh_milliseconds for each in found]
    return Row(REPLAY, replayed, fresh, "ms", Bar(1, 0.8, is_limit=True))


async def at_once(agents: Agents) -> Row:
    found: dict[str, list[float]] = {name: [] for name in agents}
    for number in range(1, AT_ONCE_ROUNDS + 1):
        for name, agent in agents.items():
            rate = await agent.at_once(AT_ONCE_EXECUTIONS, in_flight=AT_ONCE)
            found[name].append(rate)
            say(f"round {number}: {AT_ONCE} at once, {name}: {rate:,.0f} steps/s")
    return Row(AT_ONCE_RATE, found[OURS], found[PUBLISHED], "steps/s")


async def run(published: Path) -> list[Row]:
    async with Processes() as processes:
        say(f"started; {machine.load()}")
        return await measure(Door(processes.door_port, processes.api_key), published, processes.folder)


def main() -> int:
    for fact in machine.facts():
        print(fact)
    try:
        published = interpreter()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            rows = runner.run(run(published))
    except MeasureFailed as error:
        print(f"\n{HEAD}")
        for name in (RATE, LATENCY, CPU, REPLAY, AT_ONCE_RATE):
            print(f"| {name} | | | | | NOT MEASURED | {str(error).splitlines()[0]} |")
        print(f"\n{error}")
        return 1
    print(f"\n{machine.load()}; the published client is {PACKAGE} {VERSION}\n\n{HEAD}")
    for row in rows:
        print(row.line())
    return 1 if any(row.is_below_bar for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
