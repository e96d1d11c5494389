"""A short run of the simulation. The long one: `python -m tests.fault.simulation --seeds 10000`."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fault.history import Asked, Delivered, History
from tests.fault.simulation.expiries import Ended, expired_though_trying
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


# ---------------------------------------------------------------- agents that kept trying


def _tries(*beats: float, following: float = 9.0) -> History:
    """Attempt 1 is delivered at 1.0 and heartbeats at these times; attempt 2 is delivered later."""
    told: dict[str, Any] = {"who": "agent", "execution_id": "e", "dispatch_id": "d"}
    asked = [Asked(number=0, at=at, action="heartbeat", attempt=1, **told) for at in beats]
    return [Delivered(at=1.0, attempt=1, **told), *asked, Delivered(at=following, attempt=2, **told)]


_STEADY = (2.0, 3.0, 4.0, 5.0)


@pytest.mark.parametrize(
    ("history", "ended", "is_found"),
    [
        (_tries(*_STEADY), [Ended(("d", 1), True, 5.5)], True),
        (_tries(2.0, 3.0, 5.0), [Ended(("d", 1), True, 5.5)], False),
        (_tries(*_STEADY[:3]), [Ended(("d", 1), True, 5.5)], False),
        (_tries(*_STEADY), [], False),
        (_tries(*_STEADY), [Ended(("d", 1), False, 5.5)], False),
        (_tries(*_STEADY), [Ended(("d", 1), False, 5.4), Ended(("d", 1), True, 5.5)], False),
        (_tries(*_STEADY, following=5.4), [Ended(("d", 1), True, 5.5)], False),
        (_tries(*_STEADY), [Ended(("d", 1), True, 4.5)], False),
        (_tries(*_STEADY), [Ended(("d", 1), True, 4.5), Ended(("d", 1), True, 5.5)], True),
        (_tries(*_STEADY), [Ended(("d", 2), True, 9.9)], False),
        (_tries(*_STEADY), [Ended(("d", 1), True, 0.5)], False),
    ],
)
def test_an_agent_is_expired_though_it_kept_trying_where_no_gap_was_too_long(
    history: History, ended: list[Ended], is_found: bool
) -> None:
    findings = list(expired_though_trying(history, ended, gap_seconds_max=1.2, lease_seconds=4.0))

    assert bool(findings) == is_found, findings
