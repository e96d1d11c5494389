"""Play many seeds: `python -m tests.fault.simulation --seeds 10000 [--seed N] [--verbose]`."""

import argparse
import multiprocessing
import os
import sys
import time

from tests.fault.history import Answered, Asked
from tests.fault.simulation.play import play
from tests.fault.simulation.run import Outcome, run_seed

TOLD_EVERY_SECONDS = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds to play")
    parser.add_argument("--first", type=int, default=None, help="the first of them; drawn where it is not given")
    parser.add_argument("--seed", type=int, default=None, help="play this one alone and show what happened")
    parser.add_argument("--verbose", action="store_true", help="show the whole history of the one seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at work")
    parser.add_argument("--failures", type=int, default=10, help="end after so many failing seeds")
    chosen = parser.parse_args()
    if chosen.seed is not None:
        return show(run_seed(chosen.seed), is_verbose=chosen.verbose)
    first = int.from_bytes(os.urandom(4), "big") if chosen.first is None else chosen.first
    return play_many(first, chosen.seeds, jobs=chosen.jobs, failures_max=chosen.failures)


def play_many(first: int, count: int, *, jobs: int, failures_max: int) -> int:
    tell(f"seeds {first} to {first + count - 1}, {jobs} at once")
    begun_at = told_at = time.monotonic()
    failed = done = steps = 0
    virtual_seconds = 0.0
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for seed, findings, taken, seconds in pool.imap_unordered(play, range(first, first + count), chunksize=8):
            done, steps, virtual_seconds = done + 1, steps + taken, virtual_seconds + seconds
            if findings:
                failed += 1
                tell(f"seed {seed} FAILED ({len(findings)} findings): {findings[0]}")
            now = time.monotonic()
            if now - told_at > TOLD_EVERY_SECONDS:
                told_at = now
                tell(f"{done} seeds, {done / (now - begun_at):.0f} seeds/s, {failed} failed")
            if failed >= failures_max:
                break
    elapsed = time.monotonic() - begun_at
    tell(
        f"{done} seeds from {first} in {elapsed:.1f} s: {done / elapsed:.0f} seeds/s, {steps / elapsed:,.0f} steps/s, "
        f"{virtual_seconds / done:.1f} virtual seconds a seed; {failed} failed"
    )
    return 1 if failed else 0


def show(outcome: Outcome, *, is_verbose: bool) -> int:
    tell(f"seed {outcome.seed}: {outcome.steps} steps, {outcome.virtual_seconds:.3f} s, digest {outcome.digest}")
    for fault in outcome.faults:
        tell(f"  fault {fault}")
    if is_verbose:
        for line in outcome.history:
            tell(f"  {_line(line)}")
        for line in outcome.lines:
            tell(f"  log {line}")
    for finding in outcome.findings:
        tell(f"  FINDING {finding}")
    return 1 if outcome.findings else 0


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _line(line: object) -> str:
    match line:
        case Asked():
            what = " ".join(part for part in (line.target, line.args, line.key, *line.marks) if part)
            return f"{line.at:.4f} #{line.number} {line.who} {line.action} {line.execution_id[-6:]} {what}"
        case Answered():
            return f"{line.at:.4f} #{line.number} -> {line.status} {line.body}"
        case _:
            return str(line)


if __name__ == "__main__":
    sys.exit(main())
