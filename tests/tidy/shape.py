"""How long, how deep and under what name code may be."""

import ast
from collections.abc import Iterator

from tests.tidy.sources import Finding, Source

FUNCTION_LINES_MAX = 69
FILE_LINES_MAX = 400
NESTING_MAX = 4
NESTING_IN_DOMAIN_MAX = 3

_EMPTY_WORDS = frozenset({"base", "common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"})
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.Match)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def function_lengths(source: Source) -> Iterator[Finding]:
    """Functions that cannot be read at one glance. Decorators do not count, what is defined inside does."""
    for function in _functions(source):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            message = f"{function.name} has {lines} lines; {FUNCTION_LINES_MAX} are allowed"
            yield Finding(source.path, function.lineno, message)


def file_lengths(source: Source) -> Iterator[Finding]:
    """Files that hold more than one subject."""
    lines = len(source.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield Finding(source.path, lines, f"the file has {lines} lines; {FILE_LINES_MAX} are allowed")


def nesting(source: Source) -> Iterator[Finding]:
    """Branches and loops too deep inside each other. `with` changes no path through the code and does not count."""
    allowed = NESTING_IN_DOMAIN_MAX if source.is_under("kernel/domain/") else NESTING_MAX
    for function in _functions(source):
        depth, line = _deepest(function.body, 0, function.lineno)
        if depth > allowed:
            yield Finding(source.path, line, f"{function.name} nests {depth} deep; {allowed} are allowed")


def module_names(source: Source) -> Iterator[Finding]:
    """Modules and folders named for nothing in particular, which collect everything."""
    parts = source.path.removesuffix(".py").split("/")
    for part in parts:
        empty = _EMPTY_WORDS.intersection(part.lower().split("_"))
        if empty:
            yield Finding(
                source.path, 1, f"the name {part} says nothing ({', '.join(sorted(empty))}): name the subject"
            )


def _functions(source: Source) -> Iterator[Function]:
    for node in ast.walk(source.tree):
        if isinstance(node, Function):
            yield node


def _deepest(body: list[ast.stmt], depth: int, line: int) -> tuple[int, int]:
    """The greatest depth reached from here, and the line where it is first reached."""
    deepest = (depth, line)
    for statement in body:
        # A function inside a function is looked at by itself.
        if isinstance(statement, Function | ast.ClassDef):
            continue
        inner = depth + isinstance(statement, _BRANCHES)
        for block in _blocks(statement):
            # `elif` is an `if` alone in the `else` of another, and no deeper than that one.
            is_elif = isinstance(statement, ast.If) and block is statement.orelse and _is_lone_if(block)
            found = _deepest(block, depth if is_elif else inner, statement.lineno)
            deepest = max(deepest, found, key=lambda place: place[0])
    return deepest


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if block:
            yield block
    for part in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
        yield part.body


def _is_lone_if(block: list[ast.stmt]) -> bool:
    return len(block) == 1 and isinstance(block[0], ast.If)
