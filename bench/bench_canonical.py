"""Time to read arguments, write them canonically and hash them, beside the time `json.loads` takes to read them.

Run it with `python -m bench.bench_canonical`. It measures this process alone and starts nothing.
"""

import json
import time
from collections.abc import Callable
from functools import partial

from kernel.domain.canonical import args_hash
from kernel.domain.json_values import read_exactly, read_object

ROUNDS = 5
ROUND_SECONDS = 0.2


def bodies() -> dict[str, bytes]:
    """Return request bodies whose args have about 100 bytes, 2 KB and 1 MB."""
    small = {"query": "weather in Zürich tomorrow", "limit": 10, "fields": ["temp", "wind"], "units": {"deep": 1.5}}
    turn = {"role": "user", "content": "Tell me, in <one> paragraph & no more, what changed on 2026-01-02. " * 5}
    sizes = {"100 B": small, "2 KB": {"messages": [turn] * 5}, "1 MB": {"messages": [turn] * 2800, "temperature": 0.2}}
    return {
        size: json.dumps({"kind": "tool_call", "target": "t", "args": args}).encode() for size, args in sizes.items()
    }


def microseconds(call: Callable[[], object]) -> float:
    """Return the time of one call in the best of several rounds."""
    best, calls = float("inf"), 1
    for _ in range(ROUNDS):
        spent = 0.0
        while spent < ROUND_SECONDS:
            started = time.perf_counter()
            for _ in range(calls):
                call()
            spent = time.perf_counter() - started
            best = min(best, spent / calls)
            calls = calls * 2 if spent < ROUND_SECONDS else calls
    return best * 1e6


def read_and_hash(body: bytes) -> str:
    """Do what a submit needs for its identity."""
    return args_hash(read_object(body).fields["args"].canonical)


def read_hash_and_record(body: bytes) -> bytes:
    """Do what a submit needs for its identity and its entry."""
    args = read_object(body).fields["args"]
    args_hash(args.canonical)
    return args.raw


def main() -> None:
    """Print one line for each size; the ratio is that of reading, hashing and recording to `json.loads`."""
    calls = {
        "loads": json.loads,
        "read": read_object,
        "+ hash": read_and_hash,
        "+ record": read_hash_and_record,
        "exact": read_exactly,
    }
    print(f"{'args':>6}" + "".join(f"{name:>11}" for name in calls) + "   ratio   (microseconds)")
    for size, body in bodies().items():
        times = {name: microseconds(partial(call, body)) for name, call in calls.items()}
        columns = "".join(f"{spent:11.1f}" for spent in times.values())
        print(f"{size:>6}{columns}   {times['+ record'] / times['loads']:5.2f}")


if __name__ == "__main__":
    main()
