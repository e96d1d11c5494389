"""`python -m tests.mutants`: exit code 0 only where every break makes one of its named tests fail."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.runner import Outcome, Unusable, line_of, run
from tests.tidy.sources import ROOT


def main(arguments: Sequence[str], *, root: Path = ROOT, mutants: Sequence[Mutant] = MUTANTS) -> int:
    """Apply the breaks (all, or those whose name, promise or file holds one of the words) and print what became of
    them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=main.__doc__)
    parser.add_argument("words", nargs="*", help="only breaks whose name, promise or file holds one of these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once (default: cores)")
    parser.add_argument("--list", action="store_true", help="name the breaks and apply none")
    options = parser.parse_args(arguments)
    chosen = [mutant for mutant in mutants if _is_meant(mutant, options.words)]
    if not chosen:
        print("no break is meant by that", file=sys.stderr)
        return 2
    if options.list:
        for mutant in chosen:
            print(f"{mutant.promise:<3} {mutant.file}: {mutant.name}")
        return 0
    started_at = time.monotonic()
    try:
        outcomes = run(root, chosen, jobs=options.jobs, tell=_tell)
    except Unusable as error:
        print(error, file=sys.stderr)
        return 1
    return _summed_up(outcomes, seconds=time.monotonic() - started_at)


def _is_meant(mutant: Mutant, words: Sequence[str]) -> bool:
    return not words or any(word in f"{mutant.promise} {mutant.file} {mutant.name}" for word in words)


def _tell(line: str) -> None:
    print(line, flush=True)


def _summed_up(outcomes: Sequence[Outcome], *, seconds: float) -> int:
    """Print a row for each promise, and all about the breaks that no test noticed."""
    print("\npromise   killed  of")
    for promise in sorted({outcome.mutant.promise for outcome in outcomes}):
        about = [outcome for outcome in outcomes if outcome.mutant.promise == promise]
        killed = sum(outcome.verdict == "killed" for outcome in about)
        print(f"{promise:<8} {killed:>7} {len(about):>3}")
    left = [outcome for outcome in outcomes if outcome.verdict != "killed"]
    for outcome in left:
        print(f"\n{line_of(outcome)}\n  {outcome.mutant.file}, not noticed by {', '.join(outcome.mutant.tests)}")
        print(outcome.detail)
    print(f"\n{len(outcomes) - len(left)} of {len(outcomes)} breaks make a named test fail ({seconds:.0f} s)")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
