"""A short run of the simulation. The long one: `python -m tests.fault.simulation --seeds 10000`."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.fault.simulation.run import run_seed

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 10.0
SEEDS_MIN = 20
REPLAY_SECONDS_MAX = 60


def test_no_seed_breaks_a_promise(seed: int) -> None:
    ends_at = time.monotonic() + SECONDS_MAX
    played = 0

    while played < SEEDS_MIN or time.monotonic() < ends_at:
        outcome = run_seed(seed + played)
        assert not outcome.findings, f"python -m tests.fault.simulation --seed {outcome.seed} --verbose\n" + "\n".join(
            outcome.findings
        )
        played += 1


def test_a_seed_replays_step_by_step(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)

    assert first.steps > 100
    assert first.history == second.history
    assert (first.digest, first.lines) == (second.digest, second.lines)


def test_a_seed_replays_in_another_process(seed: int) -> None:
    """Nothing depends on addresses or on the hashes of texts, which differ from process to process."""
    expected = run_seed(seed)

    finished = subprocess.run(
        [sys.executable, "-m", "tests.fault.simulation", "--seed", str(seed)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        check=False,
        text=True,
        timeout=REPLAY_SECONDS_MAX,
    )

    assert f"digest {expected.digest}\n" in finished.stdout, finished.stdout + finished.stderr


def test_seeds_differ(seed: int) -> None:
    assert run_seed(seed).digest != run_seed(seed + 1).digest
