"""The seed of a random test: fresh in every run, shown when the test fails, given back to repeat it."""

import os
import secrets

import pytest

SEED_VARIABLE = "STEPWELL_TEST_SEED"


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """For `random.Random(seed)`. A failure shows it; set STEPWELL_TEST_SEED to it to run the same case again."""
    given = os.environ.get(SEED_VARIABLE)
    value = int(given) if given else secrets.randbelow(2**32)
    request.node.add_report_section("setup", "seed", f"{SEED_VARIABLE}={value}")
    return value
