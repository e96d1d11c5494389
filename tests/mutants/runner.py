"""Applies the breaks, several at once, each job in a copy of its own, and tells which of them no test notices."""

import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Literal

import msgspec

from tests.mutants.copies import Copy, sources
from tests.mutants.mutant import EXIT_FAILED, Mutant, fault_of

MUTANT_SECONDS_MAX = 60.0
"""For the tests of one break. Longer is a fault of the catalogue: a test has to fail, not to hang."""
UNBROKEN_SECONDS_MAX = 400.0
TOLD_LINES_MAX = 40
"""Lines of pytest's output that a fault is shown with."""

_FAILED = re.compile(r"\b\d+ failed\b")
_WITHOUT = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov")

Verdict = Literal["killed", "survived", "error"]
Tell = Callable[[str], None]


class Outcome(msgspec.Struct, frozen=True):
    """What became of one break. `detail` says more about all that is not killed."""

    mutant: Mutant
    verdict: Verdict
    seconds: float
    detail: str = ""


class Ended(msgspec.Struct, frozen=True):
    """How a run of pytest ended; no code where its time was up."""

    code: int | None
    output: str


class Unusable(Exception):
    """Nothing can be learnt from a run: the catalogue does not fit the code, or the tests fail as it is."""


def check(root: Path, mutants: Sequence[Mutant]) -> list[str]:
    """Return why the catalogue does not fit the tree: texts that are not there once, names that stand twice."""
    faults: list[str] = []
    names: set[str] = set()
    for mutant in mutants:
        file = root / mutant.file
        fault = fault_of(mutant, file.read_text("utf-8")) if file.is_file() else f"there is no {mutant.file}"
        if not mutant.tests:
            fault = "it names no test"
        if mutant.name in names:
            fault = "another one has the same name"
        names.add(mutant.name)
        if fault:
            faults.append(f"{mutant.name}: {fault}")
    return faults


def run(root: Path, mutants: Sequence[Mutant], *, jobs: int, tell: Tell) -> list[Outcome]:
    """Apply every break and return what became of it, in the order of the catalogue.

    Raises Unusable where a break cannot be applied, or a named test fails in the code as it is.
    """
    faults = check(root, mutants)
    if faults:
        raise Unusable("\n".join(faults))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [_copy(root, Path(folder) / str(number)) for number in range(max(1, min(jobs, len(mutants))))]
        _expect_whole(copies, mutants, tell)
        return _apply_all(copies, mutants, tell)


def _copy(root: Path, folder: Path) -> Copy:
    copy = Copy(folder)
    copy.fill(root, sources(root))
    return copy


def _expect_whole(copies: Sequence[Copy], mutants: Iterable[Mutant], tell: Tell) -> None:
    """Run every named test once, spread over the copies: one that fails anyway proves nothing."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    started_at = time.monotonic()
    with ThreadPoolExecutor(len(copies)) as pool:
        shares = [(copy, tests[number :: len(copies)]) for number, copy in enumerate(copies)]
        runs = [
            pool.submit(_pytest, copy.folder, share, seconds=UNBROKEN_SECONDS_MAX) for copy, share in shares if share
        ]
        ended = [each.result() for each in runs]
    bad = [each for each in ended if each.code != 0]
    if bad:
        raise Unusable("the named tests do not all pass in the code as it is:\n" + "\n".join(map(_told, bad)))
    tell(f"{len(tests)} named tests pass in the code as it is ({time.monotonic() - started_at:.0f} s)")


def _apply_all(copies: Sequence[Copy], mutants: Sequence[Mutant], tell: Tell) -> list[Outcome]:
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(len(copies)) as pool:
        started = [pool.submit(_apply, free, mutant) for mutant in mutants]
        try:
            for count, done in enumerate(as_completed(started), 1):
                outcome = done.result()
                outcomes[outcome.mutant.name] = outcome
                tell(f"[{count:>3}/{len(mutants)}] {line_of(outcome)}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [outcomes[mutant.name] for mutant in mutants]


def _apply(free: queue.SimpleQueue[Copy], mutant: Mutant) -> Outcome:
    copy = free.get()
    started_at = time.monotonic()
    try:
        with copy.holding(mutant):
            ended = _pytest(copy.folder, mutant.tests, seconds=MUTANT_SECONDS_MAX)
    finally:
        free.put(copy)
    verdict, detail = _judged(mutant, ended)
    return Outcome(mutant, verdict, time.monotonic() - started_at, detail)


def _judged(mutant: Mutant, ended: Ended) -> tuple[Verdict, str]:
    if ended.code == 0:
        return "survived", ""
    if ended.code != mutant.exit_code:
        return "error", _told(ended)
    # A fixture that breaks ends pytest in the same way, and says nothing about what the test looks at.
    if ended.code == EXIT_FAILED and not _FAILED.search(ended.output):
        return "error", "no test failed, though one could not be set up or torn down\n" + _told(ended)
    return "killed", ""


def _pytest(folder: Path, tests: Sequence[str], *, seconds: float) -> Ended:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", *_WITHOUT, *tests]
    # A session of its own, so that what the tests have started can be ended with them.
    process = subprocess.Popen(
        command,
        cwd=folder,
        # The library is installed from the checkout, and would be imported from there.
        env={**os.environ, "PYTHONPATH": str(folder / "sdk" / "src")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return Ended(process.returncode, output)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return Ended(None, output)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _told(ended: Ended) -> str:
    how = "its time was up" if ended.code is None else f"pytest ended with {ended.code}"
    return "\n".join((how, *ended.output.splitlines()[-TOLD_LINES_MAX:]))


def line_of(outcome: Outcome) -> str:
    """Return one break and what became of it, on one line."""
    mutant = outcome.mutant
    return f"{outcome.verdict:<8} {outcome.seconds:5.1f} s  {mutant.promise:<3} {mutant.name}"
