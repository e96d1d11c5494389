"""What no file of the repository may hold, whatever its kind, and what the lock must be."""

import re
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tidy.sources import ROOT, Finding

# Written in pieces, so that this file does not find itself.
_REGISTRIES = re.compile(
    r"--(extra-)?index-url|--find-"
    r"links|/simple/?[\"' ]|\"resolved\": *\"https?:"
    r"|\b(py"
    r"pi|pythonhosted|npm"
    r"js|crates)\.(org|io|com)\b"
    r"|\bregistry *= *[\"{].*https?:|^ *deb +https?:"
)  # fmt: skip - the pieces read as one pattern
_MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(work|root|home/\w+|Users/\w+|tmp/venv)/")
_PIN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+]+$")


def registry_addresses(path: str, text: str) -> Iterator[Finding]:
    """Where packages come from is the business of the machine that installs them."""
    yield from _matches(path, text, _REGISTRIES, "the address of a package registry")


def machine_paths(path: str, text: str) -> Iterator[Finding]:
    """Paths that exist on one machine only."""
    yield from _matches(path, text, _MACHINE_PATHS, "a path of one machine")
    for number, line in enumerate(text.splitlines(), start=1):
        if f"{ROOT}/" in line:
            yield Finding(path, number, "the path of this checkout")


def unpinned_lines(path: str, text: str) -> Iterator[Finding]:
    """Lines of a lock that are not one exact version of one package."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line and not line.startswith("#") and not _PIN.match(line):
            yield Finding(path, number, f"not of the form name==version: {line}")


def unlocked_requirements(requirements: list[str], lock: str) -> Iterator[Finding]:
    """Direct requirements that the lock does not hold in a version they accept."""
    pins = [line.split("==") for line in lock.splitlines() if "==" in line and not line.startswith("#")]
    locked = {canonicalize_name(name): version for name, version in pins}
    for text in requirements:
        requirement = Requirement(text)
        version = locked.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            yield Finding("requirements.lock", 1, f"{text} is met by {version or 'nothing'}: run `make lock`")


def _matches(path: str, text: str, pattern: re.Pattern[str], what: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), start=1):
        found = pattern.search(line)
        if found is not None:
            yield Finding(path, number, f"{what}: {found.group()}")
