"""The files of the repository, as the checkers read them."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("schemas", "kernel", "workers", "sdk", "examples", "bench", "tests")

# What a checkout holds beside its files, where git cannot be asked.
_NOT_OURS = {".git", ".venv", ".stepwell", ".cache", ".hypothesis", ".pytest_cache", ".ruff_cache", "__pycache__"}


class Finding(msgspec.Struct, frozen=True):
    """One breach of one rule."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class Source(msgspec.Struct, frozen=True):
    """One Python file; `path` is relative to the repository, with slashes."""

    path: str
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """The dotted name, the package's own for an `__init__.py`."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def package(self) -> str:
        """The dotted name that relative imports start from."""
        return self.module if self.path.endswith("/__init__.py") else self.module.rpartition(".")[0]

    def is_under(self, *prefixes: str) -> bool:
        """Whether it is one of these files, or in one of these folders (which end with a slash)."""
        return any(self.path == prefix or (prefix[-1] == "/" and self.path.startswith(prefix)) for prefix in prefixes)


def parse(path: str, text: str) -> Source:
    return Source(path, text, ast.parse(text, filename=path))


def python_sources() -> list[Source]:
    """Every Python file of the repository's folders."""
    return [parse(path, text) for path, text in text_files() if path.endswith(".py") and path.startswith(FOLDERS)]


def text_files() -> Iterator[tuple[str, str]]:
    """Path and text of every file that is tracked or about to be; a binary file is passed over."""
    for path in _paths():
        file = ROOT / path
        # A file that is deleted but still tracked is not there to be read.
        if file.is_file():
            content = file.read_bytes()
            if b"\0" not in content:
                yield path, content.decode("utf-8")


def _paths() -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True, timeout=30).stdout
    except (OSError, subprocess.CalledProcessError):
        # A source archive without git's own folder, or a machine without git.
        files = (file for file in ROOT.rglob("*") if _NOT_OURS.isdisjoint(file.relative_to(ROOT).parts))
        return sorted(file.relative_to(ROOT).as_posix() for file in files if file.is_file())
    return sorted(set(listed.split("\0")) - {""})
