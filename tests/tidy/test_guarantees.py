"""`docs/guarantees.md` promises nothing that no test shows: it is read here, and every test it names is looked up."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.tidy.sources import ROOT

PAGE = "docs/guarantees.md"
GUARANTEES = [f"G{number}" for number in range(1, 10)]
PARTS = ("**Promise.**", "**Rests on.**", "**Limits.**")

_HEADING = re.compile(r"^## ([GS]\d+) .+$", re.MULTILINE)
_TEST = re.compile(r"^- `(tests/[^`]+)`$")
FILE = re.compile(r"`((?:schemas|kernel|workers|sdk|deploy|tests)/[\w./-]+)`")
_SILENCING = {"skip", "skipif", "xfail", "importorskip", "SkipTest", "__test__"}
_BASES_DEEP_MAX = 10

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Promise(msgspec.Struct, frozen=True):
    """One section of the page."""

    name: str
    text: str
    tests: tuple[str, ...]
    """Node ids, as pytest takes them."""


def promises(page: str) -> list[Promise]:
    """Return the sections of the page; the tests are the list below the line `Tests:`."""
    starts = [*_HEADING.finditer(page)]
    ends = [*(start.start() for start in starts[1:]), len(page)]
    return [_promise(start[1], page[start.end() : end]) for start, end in zip(starts, ends, strict=True)]


def _promise(name: str, text: str) -> Promise:
    _, _, listed = text.partition("\nTests:\n")
    lines = listed.strip().splitlines()
    found = [_TEST.match(line) for line in lines]
    odd = [line for line, match in zip(lines, found, strict=True) if match is None]
    assert not odd, f"{name}: {odd[0]!r} names no test"
    return Promise(name, text, tuple(match[1] for match in found if match is not None))


class Catalogue:
    """The tests below a folder, found by reading their files. Nothing is imported or run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._trees: dict[str, ast.Module] = {}

    def fault(self, node_id: str) -> str:
        """Return why a node id names no test that runs, the empty string where it does."""
        path, *names = node_id.split("::")
        if not Path(path).name.startswith("test_") or not (self.root / path).is_file():
            return "pytest collects no such file"
        silenced = [*_module_level(self._tree(path))]
        match names:
            case [name]:
                found = _function(self._tree(path).body, name)
            case [name, method]:
                scopes = [*self._classes(path, name, 0)]
                silenced += [part for scope in scopes for part in _class_level(scope)]
                found = next((each for scope in scopes if (each := _function(scope.body, method))), None)
                if not name.startswith("Test"):
                    return "pytest collects no such class"
                if found is None and method == "runTest":
                    found = self._state_machine(path, name)
            case _:
                return "it is not of the form file::test or file::Class::test"
        if found is None:
            return "there is no such test"
        return "it is skipped, or may fail" if any(_is_silencing(part) for part in (*silenced, found)) else ""

    def _classes(self, path: str, name: str, depth: int) -> Iterator[ast.ClassDef]:
        """Yield a class and what it inherits from, as far as the files of the tests tell."""
        if depth > _BASES_DEEP_MAX or not (self.root / path).is_file():
            return
        for node in self._tree(path).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                yield node
                for base in node.bases:
                    if isinstance(base, ast.Name):
                        yield from self._classes(path, base.id, depth + 1)
            elif isinstance(node, ast.ImportFrom) and node.module and any(each.name == name for each in node.names):
                yield from self._classes(node.module.replace(".", "/") + ".py", name, depth + 1)

    def _state_machine(self, path: str, name: str) -> ast.stmt | None:
        """Return the assignment `TestName = Machine.TestCase` of a Hypothesis state machine."""
        for node in self._tree(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                return node if ast.unparse(node.value).endswith(".TestCase") else None
        return None

    def _tree(self, path: str) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = ast.parse((self.root / path).read_text("utf-8"), filename=path)
        return self._trees[path]


def _function(body: list[ast.stmt], name: str) -> Function | None:
    """Return a test of this name. Of two the later one counts, as it does for Python."""
    found = [node for node in body if isinstance(node, Function) and node.name == name]
    return found[-1] if found and name.startswith("test_") else None


def _module_level(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield what is run when the file is collected."""
    return (node for node in tree.body if not isinstance(node, Function | ast.ClassDef | ast.Import | ast.ImportFrom))


def _class_level(scope: ast.ClassDef) -> Iterator[ast.AST]:
    yield from scope.decorator_list
    yield from (node for node in scope.body if not isinstance(node, Function))


def _is_silencing(part: ast.AST) -> bool:
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(part)}
    return not _SILENCING.isdisjoint(names)


# ---------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def page() -> list[Promise]:
    return promises((ROOT / PAGE).read_text("utf-8"))


def test_every_guarantee_of_the_design_is_promised(page: list[Promise]) -> None:
    assert [promise.name for promise in page] == GUARANTEES


def test_every_promise_says_what_it_rests_on_and_where_it_ends(page: list[Promise]) -> None:
    missing = [f"{promise.name}: {part}" for promise in page for part in PARTS if part not in promise.text]
    assert missing == []
    nameless = [promise.name for promise in page if not FILE.search(promise.text.partition("Tests:")[0])]
    assert nameless == []


def test_every_file_that_is_named_exists(page: list[Promise]) -> None:
    named = {name for promise in page for name in FILE.findall(promise.text)}
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_every_promise_has_tests_that_run(page: list[Promise]) -> None:
    assert [promise.name for promise in page if not promise.tests] == []
    catalogue = Catalogue(ROOT)
    faults = {f"{promise.name}: {test}": catalogue.fault(test) for promise in page for test in promise.tests}
    assert {name: fault for name, fault in faults.items() if fault} == {}


# ---------------------------------------------------------------- the reading itself

EXAMPLE = """
import pytest
from tests.suite import Suite

pytestmark = pytest.mark.slow

def test_runs(): assert True
async def test_runs_too(): assert True
@pytest.mark.parametrize("a", [1])
def test_runs_thrice(a): assert a
def helper(): ...
@pytest.mark.skip
def test_skipped(): ...
@pytest.mark.skipif(True, reason="never")
def test_skipped_maybe(): ...
@pytest.mark.xfail
def test_may_fail(): ...
@pytest.mark.parametrize("a", [pytest.param(1, marks=pytest.mark.skip)])
def test_skipped_in_part(a): ...
def test_skips_itself(): pytest.skip("no")
class TestHere(Suite):
    def test_own(self): assert True
class TestSilent(Suite):
    pytestmark = pytest.mark.skip
class Hidden:
    def test_hidden(self): assert True
TestMachine = Machine.TestCase
"""
SUITE = """
class Suite:
    def test_inherited(self): assert True
    @pytest.mark.xfail(strict=True)
    def test_inherited_and_failing(self): ...
"""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    root = tmp_path_factory.mktemp("example")
    (root / "tests").mkdir()
    (root / "tests/test_a.py").write_text(EXAMPLE, "utf-8")
    (root / "tests/suite.py").write_text(SUITE, "utf-8")
    (root / "tests/test_off.py").write_text('import pytest\npytest.importorskip("x")\ndef test_a(): ...\n', "utf-8")
    return Catalogue(root)


@pytest.mark.parametrize(
    "name",
    [
        "test_runs",
        "test_runs_too",
        "test_runs_thrice",
        "TestHere::test_own",
        "TestHere::test_inherited",
        "TestMachine::runTest",
    ],
)
def test_a_test_that_runs_is_found(example: Catalogue, name: str) -> None:
    assert example.fault(f"tests/test_a.py::{name}") == ""


@pytest.mark.parametrize(
    ("node_id", "fault"),
    [
        ("tests/test_b.py::test_runs", "no such file"),
        ("tests/suite.py::Suite::test_inherited", "no such file"),
        ("tests/test_a.py::test_nowhere", "no such test"),
        ("tests/test_a.py::helper", "no such test"),
        ("tests/test_a.py::TestHere::test_nowhere", "no such test"),
        ("tests/test_a.py::TestNowhere::runTest", "no such test"),
        ("tests/test_a.py::Hidden::test_hidden", "no such class"),
        ("tests/test_a.py", "not of the form"),
        ("tests/test_a.py::test_skipped", "skipped"),
        ("tests/test_a.py::test_skipped_maybe", "skipped"),
        ("tests/test_a.py::test_may_fail", "may fail"),
        ("tests/test_a.py::test_skipped_in_part", "skipped"),
        ("tests/test_a.py::test_skips_itself", "skipped"),
        ("tests/test_a.py::TestSilent::test_inherited", "skipped"),
        ("tests/test_a.py::TestHere::test_inherited_and_failing", "may fail"),
        ("tests/test_off.py::test_a", "skipped"),
    ],
)
def test_every_other_name_is_told_apart(example: Catalogue, node_id: str, fault: str) -> None:
    assert fault in example.fault(node_id)


def test_a_page_is_read_by_its_headings_and_lists() -> None:
    read = promises("# T\n\n## G1 One\n\ntext\n\nTests:\n- `tests/test_a.py::test_b`\n\n## G2 Two\n\nnone\n")
    assert [(promise.name, promise.tests) for promise in read] == [("G1", ("tests/test_a.py::test_b",)), ("G2", ())]
    with pytest.raises(AssertionError, match="names no test"):
        promises("## G1 One\n\nTests:\n- some test\n")
