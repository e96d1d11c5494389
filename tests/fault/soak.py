"""`python -m tests.fault.soak [seconds] [seed]`: every fault again and again under load, in rounds with fresh stacks.

Exits with 1 at the first round in which a promise was broken, and says which, with the seed that repeats it.
"""

import asyncio
import random
import resource
import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.fault.faulty_stack import FaultyStack
from tests.fault.run import Verdict, fault_names, for_seconds, run

SOAK_SECONDS = 1800.0
ROUND_SECONDS = 300.0
LANES = 8
SLEEPERS = 4
LEASE_SECONDS = 10


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SOAK_SECONDS
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbelow(2**32)
    _say(f"soak of {seconds:g} s, seed {seed}")
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:
        verdict = _round(seed, min(left, ROUND_SECONDS))
        _say(str(verdict))
        # Linux counts in KiB. A round keeps its whole history, and the next one begins with none.
        _say(f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB so far")
        if verdict.findings:
            return 1
        seed += 1
    return 0


def _round(seed: int, seconds: float) -> Verdict:
    with FaultyStack.start(
        processes="apart", lease_seconds=LEASE_SECONDS, doors=2, projectors=2, dispatchers=2
    ) as stack:
        assert isinstance(stack, FaultyStack)
        until = for_seconds(seconds)
        names = fault_names(random.Random(seed))
        verdict = asyncio.run(run(stack, seed, names, lanes=LANES, sleepers=SLEEPERS, until=until, tell=_say))
        if verdict.findings:
            kept = Path(tempfile.mkdtemp(prefix=f"stepwell-soak-{seed}-"))
            for name, log in stack.logs().items():
                (kept / f"{name}.log").write_text(log)
            _say(f"the logs of the processes are in {kept}")
        return verdict


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
