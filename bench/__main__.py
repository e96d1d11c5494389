"""All measures in one run: progress while it goes on, then the table; exits 1 where a ratio is below its bar."""

import asyncio
import gc
import sys
from functools import partial

import uvloop

from bench import machine
from bench.agents import serving
from bench.neighbours import Neighbours
from bench.processes import Processes
from bench.publishing import Publisher, publishing
from bench.ratios import HEAD, Bar, Row, in_turn, say
from bench.rebuilding import Rebuilding
from bench.replaying import replay_rows
from bench.sizes import Sizes
from bench.submissions import CONNECTIONS, LONE_COUNT, SECONDS, WARM_SECONDS, Submissions


async def measure() -> list[Row]:
    rows: list[Row] = []
    async with Processes() as processes, serving(processes) as agents, Rebuilding.open(processes) as rebuilding:
        say(f"started; {machine.load()}")
        sizes = await Sizes.open(processes, rebuilding)
        submissions = await Submissions.ready(processes, agents)
        await sizes.executions_made()
        async with publishing(processes.servers.nats.url) as publisher:
            rows += await many_at_once(submissions, publisher)
            await sizes.steps_made()
            rows += await one_alone(submissions, publisher)
        rows.append(await rebuilding.row(rows[0].values))
        rows.append(await rebuilding.two_projectors_row(submissions))
        rows += await replay_rows(processes, agents, rebuilding)
        rows += await (await Neighbours.ready(processes, agents)).rows()
        submissions.close()
        print()
        for line in (submissions.cost_line(), *await sizes.lines()):
            print(line)
    return rows


async def many_at_once(submissions: Submissions, publisher: Publisher) -> list[Row]:
    found = await in_turn(
        {
            "submissions": submissions.rate,
            "the door by itself": submissions.refusal_rate,
            "bare echo": submissions.echo_rate,
            "bare publishes": partial(
                publisher.rate, in_flight=CONNECTIONS, seconds=SECONDS, warm_seconds=WARM_SECONDS
            ),
            "submissions that settle": submissions.settling_rate,
        },
        unit="/s",
    )
    many, door, echo, bare, settling = found.values()
    return [
        Row(f"submissions at {CONNECTIONS} connections / signed echo by the door", many, door, "/s", Bar(0.15, 0.4)),
        Row("the same / bare publishes to 8 streams", many, bare, "/s", Bar(0.25, 0.55)),
        Row("the same / bare signed echo behind the door's listener", many, echo, "/s"),
        Row("submissions that settle the one before / plain ones", settling, many, "/s"),
    ]


async def one_alone(submissions: Submissions, publisher: Publisher) -> list[Row]:
    found = await in_turn(
        {
            "a lone submission": submissions.lone_milliseconds,
            "a lone durable publish": partial(publisher.lone_milliseconds, LONE_COUNT),
            "create to webhook": submissions.create_to_webhook_milliseconds,
        },
        unit="ms",
        rounds=5,
    )
    lone, publish, webhook = found.values()
    return [
        Row("lone submission / lone durable publish, p50", lone, publish, "ms", Bar(5, 2.5, is_limit=True)),
        Row("create to webhook / the same, p50", webhook, publish, "ms", Bar(15, 6, is_limit=True)),
    ]


def main() -> int:
    for fact in machine.facts():
        print(fact)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(measure())
    print(f"\n{machine.load()}")
    if machine.is_busy():
        print("Something else was running: the rates that need all five processes are too low. Run it alone.")
    print(f"\n{HEAD}")
    for row in rows:
        print(row.line())
    return 1 if any(row.is_below_bar for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
