"""The agent that the libraries are measured by: ten steps one after the other, whose tools do nothing.

`BENCH_LIBRARY` names the library; everything else is the same to the letter. After its steps the handler writes one
line to standard output: how long each of them took, and the CPU time of the process so far.
"""

import importlib
import json
import os
import sys
import threading
import time
from collections import Counter
from typing import Any

import uvicorn

library = importlib.import_module(os.environ["BENCH_LIBRARY"])

STEPS = 10
entries: Counter[int] = Counter()


@library.tool
async def look_up(query: str, day: int) -> dict[str, Any]:
    return {"temperature": 17.5, "wind": {"speed": 12, "direction": "NNE"}, "day": day}


@library.tool
async def ask_a_person(question: str) -> str:
    return "yes"


async def ten_steps(number: int, asks: bool = False) -> int:
    entries[number] += 1
    spent_ns: list[int] = []
    for day in range(STEPS):
        started_at = time.perf_counter_ns()
        await look_up("the weather in Zürich, with temperature and wind", day)
        spent_ns.append(time.perf_counter_ns() - started_at)
    line = {"number": number, "entry": entries[number], "spent_ns": spent_ns, "cpu_ns": time.process_time_ns()}
    # One write for one line, shorter than what a pipe takes whole.
    os.write(sys.stdout.fileno(), json.dumps(line).encode() + b"\n")
    if asks:
        await ask_a_person("shall it be told?")
    return STEPS


def leave_with_the_bench() -> None:
    """The bench holds the other end of standard input: no agent outlives it, whatever ended it."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=leave_with_the_bench, daemon=True).start()
    agent = library.Agent(os.environ["BENCH_AGENT_ID"])
    agent.bind(ten_steps)
    port = int(os.environ["BENCH_PORT"])
    # Both are served alike, by the fastest that uvicorn has.
    uvicorn.run(agent.app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", log_level="warning")
