"""The kernels under test and the access that a test has to them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.side_by_side import Background, Elsewhere, Outcomes, body_of, is_first
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


@pytest.fixture(scope="session", autouse=True)
def background(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes | None]:
    """The outcomes of all selected tests that were made by `side_by_side`. Their bodies start with the first test."""
    tests = [item.function for item in request.session.items if isinstance(item, pytest.Function)]
    bodies = [body for test in tests if (body := body_of(test)) is not None]
    if not bodies:
        yield None
        return
    folder = _shared_folder(request.config, tmp_path_factory) / "side-by-side"
    if not is_first(folder):
        yield Elsewhere(folder)
        return
    stack = request.getfixturevalue("stack")
    running = Background(stack.url, stack.api_key, bodies, folder=folder)
    yield running
    running.close(is_interrupted=bool(request.session.shouldstop or request.session.shouldfail))


def _shared_folder(config: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run: one for all of its workers, each of which has its own below it."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if hasattr(config, "workerinput") else own
