"""The stacks of the fault tests that leave them whole: every process apart, two of each that may take over."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.conformance.harness.kernel import Kernel, connected
from tests.fault.faulty_stack import FaultyStack

LEASE_SECONDS = 10


@pytest.fixture(scope="module")
def stack() -> Iterator[FaultyStack]:
    """Whoever kills, pauses or fills something of it brings it back."""
    with FaultyStack.start(
        processes="apart", lease_seconds=LEASE_SECONDS, doors=2, projectors=2, dispatchers=2
    ) as running:
        assert isinstance(running, FaultyStack)
        yield running


@pytest_asyncio.fixture
async def kernel(stack: FaultyStack) -> AsyncIterator[Kernel]:
    async with connected(stack.url, stack.api_key) as access:
        yield access
