"""What the gateway adds to an LLM call, beside nginx in front of the same model; and what a conversation takes.

Run it with `python -m bench.bench_gateway`. It needs nginx (`apt-get install nginx-light`), and exits 1 where a ratio
is below its bar, or could not be measured.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import uvloop

from bench import machine
from bench.agents import created, serving
from bench.connections import Connection, connect
from bench.gateway import APART_SECONDS, Ways, token, ways
from bench.processes import Processes
from bench.ratios import HEAD, Bar, MeasureFailed, Row, in_turn, say
from bench.requests import Held, delegated
from bench.transcript import stored_row
from kernel.domain.canonical import args_hash
from kernel.domain.json_values import read_object

ROUNDS = 5
LONE_COUNT = 100
PIECE_MICROSECONDS = 100.0
MEBIBYTE = 1024 * 1024
HASH_ROUNDS = 9

FIRST = "what the gateway adds to the time to the first piece / what nginx adds and its submission alone, p50"
FIRST_AT_ONCE = "the same, each call straight after the one before"
PIECE = f"CPU time of the gateway for a streamed piece / {PIECE_MICROSECONDS:.0f} us"
PIECE_OF_NGINX = "the same / CPU time of nginx"
HASH = "reading and hashing a request of 1 MiB / json.loads of it"


async def measure() -> list[Row]:
    async with Processes() as processes, serving(processes) as agents:
        held, other, talking = await created(processes, agents, 3)
        connection = (await connect(processes.door_port, 1))[0]
        async with ways(processes, held) as found:
            say(f"started; {machine.load()}")
            lone = Lone(connection, other, processes.api_key)
            apart = await first_pieces(found, lone, apart_seconds=APART_SECONDS)
            at_once = await first_pieces(found, lone, apart_seconds=0.0)
            piece = await in_turn(
                {
                    "a piece, gateway": found.gateway.piece_microseconds,
                    "a piece, nginx": found.nginx.piece_microseconds,
                },
                unit="us",
                rounds=ROUNDS,
            )
        stored = await stored_row(processes, connection, talking)
        connection.close()
    ours, theirs = piece.values()
    return [
        Row(FIRST, *apart, "ms", Bar(1.5, 1.2, is_limit=True)),
        Row(FIRST_AT_ONCE, *at_once, "ms"),
        Row(PIECE, ours, [PIECE_MICROSECONDS] * len(ours), "us", Bar(1, 0.5, is_limit=True)),
        Row(PIECE_OF_NGINX, ours, [max(each, 1.0) for each in theirs], "us"),
        stored,
    ]


async def first_pieces(ways: Ways, lone: "Lone", *, apart_seconds: float) -> tuple[list[float], list[float]]:
    """Return what the gateway adds to the time to the first piece, and what nginx adds and one submission takes."""
    wait = {"apart_seconds": apart_seconds}
    found = await in_turn(
        {
            "first piece, direct": partial(ways.direct.first_milliseconds, **wait),
            "first piece, nginx": partial(ways.nginx.first_milliseconds, **wait),
            "first piece, gateway": partial(ways.gateway.first_milliseconds, **wait),
            "a lone submission": partial(lone.milliseconds, **wait),
        },
        unit=f"ms, calls {apart_seconds * 1000:g} ms apart",
        rounds=ROUNDS,
    )
    rounds = list(zip(*found.values(), strict=True))
    added = [gateway - direct for direct, _, gateway, _ in rounds]
    return added, [nginx - direct + submission for direct, nginx, _, submission in rounds]


class Lone:
    """Submissions while nothing else happens: the very requests that a gateway makes, by a client that only sends."""

    def __init__(self, connection: Connection, held: Held, api_key: str) -> None:
        self._connection = connection
        self._held = held
        self._credentials = {"token": token(held), "api_key": api_key}
        self._number = 0

    async def milliseconds(self, *, apart_seconds: float) -> float:
        spent: list[float] = []
        for _ in range(LONE_COUNT):
            self._number += 1
            request = delegated(self._held, self._number, **self._credentials)
            await asyncio.sleep(apart_seconds)
            started_at = time.perf_counter()
            await self._connection.exchange(request)
            spent.append(time.perf_counter() - started_at)
        return median(spent) * 1000


def hash_row() -> Row:
    """A request of 1 MiB, as a long conversation is: many messages, some of them long."""
    messages = [
        {"role": "user", "content": f"Grüße, {number} — " + "words and more words, " * 40} for number in range(1200)
    ]
    body = json.dumps({"model": "m", "temperature": 0.7, "messages": messages}, ensure_ascii=False).encode()
    wrapped = b'{"args":%b}' % body
    ours = [_milliseconds(lambda: args_hash(read_object(wrapped).fields["args"].canonical)) for _ in range(HASH_ROUNDS)]
    theirs = [_milliseconds(lambda: json.loads(body)) for _ in range(HASH_ROUNDS)]
    say(f"a request of {len(body) / MEBIBYTE:.2f} MiB was read and hashed")
    return Row(HASH, ours, theirs, "ms", Bar(5, 3, is_limit=True))


def _milliseconds(call: Callable[[], object]) -> float:
    started_at = time.perf_counter()
    call()
    return (time.perf_counter() - started_at) * 1000


def main() -> int:
    for fact in machine.facts():
        print(fact)
    rows = [hash_row()]
    trouble = ""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            rows += runner.run(measure())
    except MeasureFailed as error:
        trouble = str(error)
    print(f"\n{machine.load()}\n\n{HEAD}")
    for row in rows:
        print(row.line())
    if trouble:
        for name in (FIRST, FIRST_AT_ONCE, PIECE, PIECE_OF_NGINX):
            print(f"| {name} | | | | | NOT MEASURED | {trouble.splitlines()[0]} |")
    return 1 if trouble or any(row.is_below_bar for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
