"""The repository keeps its own rules."""

import tomllib
from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.tidy import banned, layers, shape, texts
from tests.tidy.sources import ROOT, Finding, Source, python_sources, text_files

LOCK = "requirements.lock"

CODE_CHECKS = [
    layers.import_directions,
    shape.function_lengths,
    shape.file_lengths,
    shape.nesting,
    shape.module_names,
    banned.sleeps,
    banned.prints,
    banned.clocks_without_zone,
    banned.unsafe_evaluation,
    banned.hidden_imports,
    banned.domain_input,
    banned.unseeded_random,
    banned.mocks,
    banned.silenced_checks,
    banned.unfinished,
]
TEXT_CHECKS = [texts.registry_addresses, texts.machine_paths]


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return python_sources()


def test_the_checkers_see_the_code(sources: list[Source]) -> None:
    paths = {source.path for source in sources}
    assert {"kernel/embedded/servers.py", "tests/tidy/test_tree.py"} <= paths
    assert {path for path, _ in text_files()} >= {"pyproject.toml", "deploy/nats.conf", LOCK}


@pytest.mark.parametrize("check", CODE_CHECKS, ids=lambda check: check.__name__)
def test_the_code_keeps_the_rule(check: Callable[[Source], Iterator[Finding]], sources: list[Source]) -> None:
    _assert_nothing(finding for source in sources for finding in check(source))


@pytest.mark.parametrize("check", TEXT_CHECKS, ids=lambda check: check.__name__)
def test_every_file_keeps_the_rule(check: Callable[[str, str], Iterator[Finding]]) -> None:
    _assert_nothing(finding for path, text in text_files() for finding in check(path, text))


def test_the_lock_pins_every_package_exactly() -> None:
    _assert_nothing(texts.unpinned_lines(LOCK, (ROOT / LOCK).read_text(encoding="utf-8")))


def test_the_lock_meets_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements: list[str] = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        requirements += extra
    _assert_nothing(texts.unlocked_requirements(requirements, (ROOT / LOCK).read_text(encoding="utf-8")))


def _assert_nothing(findings: Iterable[Finding]) -> None:
    lines = [str(finding) for finding in findings]
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)
