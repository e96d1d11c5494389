"""The kernels of the scenarios: the one that the conformance checks share, and one whose processes may be killed."""

from collections.abc import Iterator

import pytest

from tests.conformance.conftest import background, kernel, stack, stacks
from tests.conformance.harness.stacks import SETTINGS
from tests.support.stack import Stack

__all__ = ["apart", "background", "kernel", "stack", "stacks"]


@pytest.fixture(scope="session")
def apart() -> Iterator[Stack]:
    """Two doors, a projector and a dispatcher, each a process. Whoever kills or pauses one brings it back."""
    with Stack.start(settings=SETTINGS, processes="apart", doors=2) as running:
        yield running
