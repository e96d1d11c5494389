"""The kernels under test and the access that a test has to them."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.side_by_side import Background, body_of
from tests.conformance.harness.stacks import Stacks
from tests.support.stack import Stack


@pytest.fixture(scope="session")
def stacks() -> Iterator[Stacks]:
    """Kernels of this worker by their settings."""
    with Stacks() as running:
        yield running


@pytest.fixture(scope="session")
def stack(stacks: Stacks) -> Stack:
    """The kernel in server mode that nearly every check of this worker shares."""
    return stacks.get()


@pytest_asyncio.fixture
async def kernel(stack: Stack) -> AsyncIterator[Kernel]:
    """Access to the shared kernel, with agents and executions of the test's own."""
    async with connected(stack.url, stack.api_key, operator_key=stack.operator_key) as access:
        yield access


@pytest.fixture(scope="session")
def background(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Background]:
    """The outcomes of all selected tests that were made by `side_by_side`. The first of them starts their bodies."""
    tests = [item.function for item in request.session.items if isinstance(item, pytest.Function)]
    running = Background(stack.url, stack.api_key, [body for test in tests if (body := body_of(test)) is not None])
    yield running
    running.close()
