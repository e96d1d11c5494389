"""Calls, imports and comments that the code does without."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tests.tidy.layers import imported_names
from tests.tidy.sources import Finding, Source

# Programs that a person runs, and so may write to the terminal.
_MAY_PRINT = ("kernel/cli.py", "examples/", "bench/", "sdk/examples/", "tests/mutants/", "tests/clients.py")
_MAY_SLEEP = ("tests/support/wait.py",)
_SERVER = ("schemas/", "kernel/", "workers/")

_SLEEPS = {"time.sleep", "asyncio.sleep", "anyio.sleep"}
_CLOCKS_WITHOUT_ZONE = {
    "datetime.datetime.utcnow",
    "datetime.datetime.utcfromtimestamp",
    "datetime.datetime.today",
    "datetime.date.today",
}  # fmt: skip - a set of four names reads as one
_ZONE_ARGUMENT = {"datetime.datetime.now": 0, "datetime.datetime.fromtimestamp": 1}
_UNSAFE_MODULES = {"pickle", "cPickle", "dill", "marshal", "shelve"}
_DODGES = {"importlib.import_module", "__import__"}

_DIRECTIVE = re.compile(
    r"#\s*(?P<what>noqa|type:\s*ignore|pyright:\s*(?:ignore|basic|standard|report\w+)|pragma:\s*no\s+(?:cover|branch)|fmt:\s*(?:skip|off)|nosec)"
    r"(?P<codes>:\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*|\[[^\]]*\])?(?P<reason>.*)"
)
_NEEDS_CODES = ("noqa", "type", "pyright: ignore")
_WORDS_MIN = 2
_UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")


def sleeps(source: Source) -> Iterator[Finding]:
    """Tests that guess how long something takes."""
    if source.is_under("tests/") and not source.is_under(*_MAY_SLEEP):
        for call, name in _calls(source):
            if name in _SLEEPS:
                yield Finding(source.path, call.lineno, f"{name} in a test: wait with tests.support.wait")


def prints(source: Source) -> Iterator[Finding]:
    """Output where no person looks."""
    if not source.is_under(*_MAY_PRINT):
        for call, name in _calls(source):
            if name == "print":
                yield Finding(source.path, call.lineno, "print: log it, or return it to who prints")


def clocks_without_zone(source: Source) -> Iterator[Finding]:
    """Times that mean something else on a machine in another country."""
    for call, name in _calls(source):
        place = _ZONE_ARGUMENT.get(name)
        has_zone = place is not None and (
            len(call.args) > place or any(keyword.arg == "tz" for keyword in call.keywords)
        )
        if name in _CLOCKS_WITHOUT_ZONE or (place is not None and not has_zone):
            yield Finding(source.path, call.lineno, f"{name} without a time zone: pass UTC")


def unsafe_evaluation(source: Source) -> Iterator[Finding]:
    """Data that becomes code."""
    for call, name in _calls(source):
        if name in {"eval", "exec"}:
            yield Finding(source.path, call.lineno, f"{name} runs data as code")
    for line, target in imported_names(source):
        if target.partition(".")[0] in _UNSAFE_MODULES:
            yield Finding(source.path, line, f"{target} runs data as code when it reads")


def hidden_imports(source: Source) -> Iterator[Finding]:
    """Imports that the import directions cannot see."""
    if source.is_under(*_SERVER):
        for call, name in _calls(source):
            if name in _DODGES:
                yield Finding(source.path, call.lineno, f"{name}: import by statement, where the layers are checked")


def domain_input(source: Source) -> Iterator[Finding]:
    """The domain reading what was not given to it, by calls that need no forbidden import."""
    if source.is_under("kernel/domain/"):
        for call, name in _calls(source):
            if name in {"open", "input"} or name in {"uuid.uuid1", "uuid.uuid4"} or name in _ZONE_ARGUMENT:
                yield Finding(source.path, call.lineno, f"{name} in the domain: it is given its data")


def unseeded_random(source: Source) -> Iterator[Finding]:
    """Random tests that cannot be run again as they were."""
    if source.is_under("tests/"):
        for call, name in _calls(source):
            module, _, function = name.rpartition(".")
            is_seeded = function == "Random" and bool(call.args or call.keywords)
            if module == "random" and not is_seeded:
                yield Finding(source.path, call.lineno, f"{name} without a seed: random.Random(seed), by the fixture")


def mocks(source: Source) -> Iterator[Finding]:
    """Stand-ins for our own code: there are memory adapters, a fake clock and real servers."""
    if source.is_under("tests/"):
        for line, target in imported_names(source):
            if target.startswith(("unittest.mock", "pytest_mock", "mock.")):
                yield Finding(source.path, line, f"{target}: use a memory adapter or a real server")


def silenced_checks(source: Source) -> Iterator[Finding]:
    """Checks switched off without saying which, or without saying why on the same line.

    Pyright takes nothing else on the line of a directive for the whole file, so its reason is the comment above.
    """
    comments = dict(_comments(source))
    for line, comment in comments.items():
        found = _DIRECTIVE.match(comment)
        if found is None:
            continue
        what = re.sub(r"\s+", " ", found["what"])
        if what.startswith(_NEEDS_CODES) and not found["codes"]:
            yield Finding(source.path, line, f"{what} must name what it silences")
        is_for_the_file = what.startswith("pyright:") and what != "pyright: ignore"
        reason = comments.get(line - 1, "") if is_for_the_file else found["reason"]
        if len(re.findall(r"[A-Za-z]+", reason)) < _WORDS_MIN:
            place = "in a comment above" if is_for_the_file else "on the line"
            yield Finding(source.path, line, f"{what} needs its reason {place}")


def unfinished(source: Source) -> Iterator[Finding]:
    """Notes about work that is not done: do it, or file it."""
    for line, comment in _comments(source):
        if _UNFINISHED.search(comment):
            yield Finding(source.path, line, "a note about unfinished work")


def _calls(source: Source) -> Iterator[tuple[ast.Call, str]]:
    """Every call with the full dotted name of what it calls, as far as the file's imports tell."""
    names = _bindings(source)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            parts = _dotted(node.func)
            # An attribute of what no import brought is one of an object, not of a module of that name.
            if parts and (len(parts) == 1 or parts[0] in names):
                yield node, ".".join([names.get(parts[0], parts[0]), *parts[1:]])


def _bindings(source: Source) -> dict[str, str]:
    bound: dict[str, str] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            # `import a.b` binds `a`; `import a.b as c` binds `c` to `a.b`.
            tops = {alias.name.partition(".")[0] for alias in node.names if not alias.asname}
            bound |= {top: top for top in tops} | {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            bound |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return bound


def _dotted(expression: ast.expr) -> list[str]:
    parts: list[str] = []
    while isinstance(expression, ast.Attribute):
        parts.append(expression.attr)
        expression = expression.value
    return [expression.id, *reversed(parts)] if isinstance(expression, ast.Name) else []


def _comments(source: Source) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
