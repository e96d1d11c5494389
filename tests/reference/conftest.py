"""The kernels, the deployments and the runs in the background that the reference tests look at."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from tests.reference.deployment import RELEASES, Deployment, Kernel, Release
from tests.reference.governance import Governed, run_governed
from tests.reference.llm import Asked, run_llm
from tests.reference.runs import (
    Cancelled,
    Interrupted,
    LongBody,
    Superseded,
    run_cancelled,
    run_interrupted,
    run_long_body,
    run_superseded,
)
from tests.support.stack import Stack

LEASE_SECONDS = 10
# For the release that heartbeats every 30 seconds, whatever the lease.
PATIENT_LEASE_SECONDS = 45
OUTCOME_SECONDS_MAX = 280.0
THREADS_MAX = 32

Outcome = TypeVar("Outcome")
Run = Callable[[Deployment], Outcome]

# The long runs first: they bound the whole suite.
RUNS: dict[str, Run[object]] = {
    "long_body": run_long_body,
    "interrupted": run_interrupted,
    "superseded": run_superseded,
    "cancelled": run_cancelled,
    "governed": run_governed,
    "asked": run_llm,
}


class Background:
    """Runs that wait for leases, all at once, each in a thread: together they take as long as the longest."""

    def __init__(self, kernel: Kernel, patient_kernel: Callable[[], Kernel], folder: Path) -> None:
        self._kernel = kernel
        self._patient_kernel = patient_kernel
        self._folder = folder
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="reference")
        self._deployments: dict[tuple[str, int], Future[Deployment]] = {}
        self._outcomes: dict[tuple[str, str], Future[object]] = {}

    def deployment(self, release: Release) -> Future[Deployment]:
        return self._deployed(release, self._kernel)

    def start(self, name: str, release: Release) -> Future[object]:
        if (name, release.version) not in self._outcomes:
            is_patient = name == "long_body" and not release.heartbeats_by_the_lease
            deployment = self._deployed(release, self._patient_kernel() if is_patient else self._kernel)
            self._outcomes[name, release.version] = self._pool.submit(lambda: RUNS[name](deployment.result()))
        return self._outcomes[name, release.version]

    def close(self) -> None:
        """End every process; runs that nobody waited for see that and end too."""
        with ExitStack() as closing:
            for deployment in self._deployments.values():
                if deployment.exception() is None:
                    closing.enter_context(deployment.result())
        self._pool.shutdown()

    def _deployed(self, release: Release, kernel: Kernel) -> Future[Deployment]:
        key = (release.version, kernel.lease_seconds)
        if key not in self._deployments:
            folder = self._folder / f"{release.version}-{kernel.lease_seconds}"
            self._deployments[key] = self._pool.submit(Deployment, release, kernel, folder)
        return self._deployments[key]


@pytest.fixture(scope="session")
def kernel() -> Iterator[Kernel]:
    yield from _running(LEASE_SECONDS)


@pytest.fixture(scope="session")
def patient_kernel() -> Iterator[Kernel]:
    """A server of its own, whose leases outlast the heartbeat of the oldest release."""
    yield from _running(PATIENT_LEASE_SECONDS)


@pytest.fixture(scope="module")
def background(
    request: pytest.FixtureRequest, kernel: Kernel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Background]:
    """Starts, at once, every run that a selected test of the file looks at: other files may run in other processes."""

    def patient() -> Kernel:
        return request.getfixturevalue("patient_kernel")

    background = Background(kernel, patient, tmp_path_factory.mktemp("reference"))
    try:
        for name in RUNS:
            for release in _wanting(request.session, request.path, name):
                background.start(name, release)
        yield background
    finally:
        background.close()


@pytest.fixture(params=RELEASES, ids=lambda release: release.version)
def release(request: pytest.FixtureRequest) -> Release:
    return request.param


@pytest.fixture
def deployment(background: Background, release: Release) -> Deployment:
    return background.deployment(release).result(OUTCOME_SECONDS_MAX)


@pytest.fixture
def interrupted(background: Background, release: Release) -> Interrupted:
    return _outcome(background, "interrupted", release, Interrupted)


@pytest.fixture
def superseded(background: Background, release: Release) -> Superseded:
    return _outcome(background, "superseded", release, Superseded)


@pytest.fixture
def cancelled(background: Background, release: Release) -> Cancelled:
    return _outcome(background, "cancelled", release, Cancelled)


@pytest.fixture
def asked(background: Background, release: Release) -> Asked:
    return _outcome(background, "asked", release, Asked)


@pytest.fixture
def governed(background: Background, release: Release) -> Governed:
    return _outcome(background, "governed", release, Governed)


@pytest.fixture
def long_body(background: Background, release: Release) -> LongBody:
    return _outcome(background, "long_body", release, LongBody)


def _outcome(background: Background, name: str, release: Release, returns: type[Outcome]) -> Outcome:
    outcome = background.start(name, release).result(OUTCOME_SECONDS_MAX)
    assert isinstance(outcome, returns)
    return outcome


def _wanting(session: pytest.Session, file: Path, name: str) -> list[Release]:
    """The releases for which a selected test of this file looks at this run."""
    functions = [item for item in session.items if isinstance(item, pytest.Function) and item.path == file]
    items = [item for item in functions if name in item.fixturenames]
    wanted = {item.callspec.params["release"] for item in items if "release" in item.callspec.params}
    return [release for release in RELEASES if release in wanted]


def _running(lease_seconds: int) -> Iterator[Kernel]:
    settings = {"STEPWELL_NO_POLICY": "allow", "STEPWELL_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8"}
    stack = Stack.start(mode="server", lease_seconds=lease_seconds, settings=settings)
    try:
        yield Kernel(stack.url, stack.api_key, lease_seconds)
    finally:
        stack.stop()
