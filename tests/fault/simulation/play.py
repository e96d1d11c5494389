"""What a worker process does with one seed of many."""

import gc

from tests.fault.simulation.run import run_seed

COLLECT_EVERY = 25
"""Runs between two collections of what they left; each is a heap of cycles."""


def play(seed: int) -> tuple[int, tuple[str, ...], int, float]:
    outcome = run_seed(seed)
    if seed % COLLECT_EVERY == 0:
        gc.collect()
    return seed, outcome.findings, outcome.steps, outcome.virtual_seconds
