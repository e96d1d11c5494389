"""Every check of contract section 14 that is marked [spine] has a test, and nothing keeps that test from running."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONTRACT = HERE.parents[1] / "docs" / "contract.md"
_CHECK = re.compile(r"^- K(?P<number>\d+) \[(?P<mark>\w+)\] ", re.MULTILINE)
_TEST = re.compile(r"test_k(?P<number>\d+)_")
_SILENCE = re.compile(r"\b(skip|skipif|xfail|importorskip|SkipTest|__test__|collect_ignore\w*|deselect)\b")
_SPINE_CHECKS = 72


def _checks(mark: str) -> set[int]:
    """The numbers of the K checks with this mark."""
    _, _, section = CONTRACT.read_text().partition("## 14. Conformance catalogue")
    return {int(check["number"]) for check in _CHECK.finditer(section) if check["mark"] == mark}


def _test_modules() -> list[Path]:
    """The modules that pytest looks into, wherever they are below this folder."""
    return sorted(HERE.rglob("test_*.py"))


def _tested() -> dict[int, list[str]]:
    """The tests by the number of their check: functions of modules, as no class collects them here."""
    found: dict[int, list[str]] = {}
    for path in _test_modules():
        for node in ast.parse(path.read_text()).body:
            name = _TEST.match(node.name) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
            if name is not None:
                found.setdefault(int(name["number"]), []).append(f"{path.name}:{name.string}")
    return found


def test_the_catalogue_is_read_whole() -> None:
    spine = _checks("spine")

    assert len(spine) == _SPINE_CHECKS
    assert {1, 77, 114, 120} <= spine
    assert {21, 34, 59, 62, 80, 130}.isdisjoint(spine)


def test_every_check_of_the_spine_has_a_test() -> None:
    missing = _checks("spine") - _tested().keys()

    assert sorted(f"K{number}" for number in missing) == []


def test_no_two_tests_of_a_module_have_one_name() -> None:
    names = [name for tests in _tested().values() for name in tests]

    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_nothing_keeps_a_test_from_running() -> None:
    found = [
        f"{path.name}:{line}"
        for path in sorted(HERE.rglob("*.py"))
        if path != Path(__file__).resolve()
        for line in _silences(ast.parse(path.read_text()))
    ]

    assert found == []


def _silences(tree: ast.Module) -> Iterator[int]:
    """The lines where the code uses a name that keeps tests from running, as a variable, a member or a keyword."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)) if _SILENCE.search(name):
                yield node.lineno
            case _:
                continue
