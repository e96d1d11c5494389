"""The runner of the mutants can fail, and its catalogue fits the code as it is."""

import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.mutants.__main__ import main
from tests.mutants.catalogue import MUTANTS
from tests.mutants.copies import Copy, sources
from tests.mutants.mutant import Mutant
from tests.mutants.runner import check
from tests.tidy.sources import ROOT
from tests.tidy.test_guarantees import GUARANTEES, Catalogue

PROMISES = {*GUARANTEES, *(f"D{number}" for number in range(1, 9))}
MUTANTS_MIN = 24

CODE = "def double(number):\n    return 2 * number\n\n\ndef half(number):\n    return number // 2\n"
TESTS = """
import code_under_test
import pytest

def test_two_and_two():
    assert code_under_test.double(2) == 4

def test_nothing():
    assert code_under_test.double(0) == 0

def test_half():
    assert code_under_test.half(4) == 2

@pytest.fixture
def doubled():
    assert code_under_test.double(2) == 4

def test_that_is_set_up(doubled):
    assert True

def test_that_fails():
    assert False
"""
PLUS = Mutant(
    name="doubling adds",
    promise="G1",
    file="code_under_test.py",
    old="2 * number",
    new="2 + number",
    tests=("test_code.py::test_two_and_two", "test_code.py::test_nothing"),
)
THRICE = Mutant(
    name="doubling is tripling",
    promise="G2",
    file="code_under_test.py",
    old="2 * number",
    new="3 * number",
    tests=("test_code.py::test_two_and_two",),
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny repository with a test that notices much and one that notices little."""
    # Its tests need no plugin, and most of their time would be spent on importing those of ours.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "code_under_test.py").write_text(CODE)
    (tmp_path / "test_code.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / ".gitignore").write_text("ignored\n__pycache__/\n")
    (tmp_path / "ignored").write_text("a secret of this machine")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True, timeout=30)
    return tmp_path


def changed(mutant: Mutant, **parts: object) -> Mutant:
    return msgspec.structs.replace(mutant, **parts)


# ---------------------------------------------------------------- the runner


def test_breaks_that_a_test_notices_are_a_success_and_the_tree_stays_as_it_is(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = changed(THRICE, name="half is all", old="// 2", new="// 1", tests=("test_code.py::test_half",))

    assert main(["--jobs", "2"], root=tree, mutants=[PLUS, THRICE, half]) == 0

    said = capsys.readouterr().out
    assert "3 of 3 breaks make a named test fail" in said
    assert said.count(" killed ") >= 3
    assert (tree / "code_under_test.py").read_text() == CODE


def test_a_break_that_no_named_test_notices_fails_and_is_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unnoticed = changed(THRICE, tests=("test_code.py::test_nothing",))

    assert main(["--jobs", "1"], root=tree, mutants=[PLUS, unnoticed]) == 1

    said = capsys.readouterr().out
    assert "survived" in said
    assert "not noticed by test_code.py::test_nothing" in said
    assert "1 of 2 breaks" in said


@pytest.mark.parametrize(
    ("old", "new", "test"),
    [
        ("return 2 * number", "return (", "test_two_and_two"),
        ("2 * number", "3 * number", "test_that_is_set_up"),
    ],
)
def test_a_break_that_keeps_the_tests_from_running_is_no_proof(
    tree: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, test: str
) -> None:
    broken = changed(PLUS, old=old, new=new, tests=(f"test_code.py::{test}",))

    assert main(["--jobs", "1"], root=tree, mutants=[broken]) == 1

    assert "error " in capsys.readouterr().out


def test_a_test_that_fails_anyway_is_no_proof(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = changed(PLUS, tests=("test_code.py::test_that_fails",))

    assert main(["--jobs", "1"], root=tree, mutants=[broken]) == 1

    assert "do not all pass in the code as it is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ({"old": "5 * number"}, "stands 0 times"),
        ({"old": "return"}, "stands 2 times"),
        ({"new": "2 * number"}, "changes nothing"),
        ({"file": "gone.py"}, "there is no gone.py"),
        ({"tests": ()}, "names no test"),
        ({"name": THRICE.name}, "the same name"),
    ],
)
def test_a_break_that_does_not_fit_the_code_fails(
    tree: Path, capsys: pytest.CaptureFixture[str], parts: dict[str, object], fault: str
) -> None:
    assert main([], root=tree, mutants=[THRICE, changed(PLUS, **parts)]) == 1

    assert fault in capsys.readouterr().err


def test_words_that_mean_no_break_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no such word"]) == 2
    assert main(["--list", "lease"]) == 0
    assert "the lease of a request is not checked" in capsys.readouterr().out


def test_a_copy_holds_what_git_would_and_every_write_is_new_to_python(tree: Path) -> None:
    copy = Copy(tree.parent / f"{tree.name}-copy")
    copy.fill(tree, sources(tree))
    file = copy.folder / "code_under_test.py"
    times = [file.stat().st_mtime]

    with copy.holding(PLUS):
        assert "2 + number" in file.read_text()
        times.append(file.stat().st_mtime)
    times.append(file.stat().st_mtime)

    assert file.read_text() == CODE
    assert len(set(times)) == 3
    assert not (copy.folder / "ignored").exists()


# ---------------------------------------------------------------- the catalogue


def test_every_break_fits_the_code() -> None:
    assert check(ROOT, MUTANTS) == []
    assert len(MUTANTS) >= MUTANTS_MIN


def test_every_break_names_a_promise_and_tests_that_run() -> None:
    catalogue = Catalogue(ROOT)
    assert {mutant.promise for mutant in MUTANTS} <= PROMISES
    faults = {test: catalogue.fault(test) for mutant in MUTANTS for test in mutant.tests}
    assert {test: fault for test, fault in faults.items() if fault} == {}


def test_every_guarantee_is_broken_by_something() -> None:
    assert set(GUARANTEES) <= {mutant.promise for mutant in MUTANTS}
