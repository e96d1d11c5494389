"""Copies of the checkout, in which the code is broken: the checkout itself is never touched."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.mutant import Mutant, broken

LIST_SECONDS_MAX = 60


def sources(root: Path) -> list[str]:
    """Return every file that is tracked or about to be, relative to the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True, text=True, timeout=LIST_SECONDS_MAX)
    # A file that is deleted but still tracked is not there to be copied.
    return sorted(path for path in set(listed.stdout.split("\0")) - {""} if (root / path).is_file())


class Copy:
    """One copy. It holds at most one break at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._breaks = 0

    def fill(self, root: Path, paths: list[str]) -> None:
        for path in paths:
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, target)

    @contextmanager
    def holding(self, mutant: Mutant) -> Iterator[None]:
        """Apply a break, and take it back."""
        file = self.folder / mutant.file
        whole = file.read_bytes()
        self._write(file, broken(mutant, whole.decode()).encode())
        try:
            yield
        finally:
            self._write(file, whole)

    def _write(self, file: Path, content: bytes) -> None:
        # Python takes cached bytecode for current by whole seconds and size alone: every write gets a time of its own.
        self._breaks += 1
        file.write_bytes(content)
        os.utime(file, (self._breaks, self._breaks))
