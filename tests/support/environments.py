"""Virtual environments for packages that tests use as their users do: built once with plain pip, kept in the checkout.

Building is serialised by a lock file, so any number of test workers may ask for the same one at once.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.support.wait import wait_until

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "environments"
# Another worker that builds the same one is waited for, its whole installation included.
BUILD_SECONDS_MAX = 600.0


class Environment(msgspec.Struct, frozen=True):
    """What is installed where."""

    name: str
    requirements: tuple[str, ...]
    constraints: Path
    """What the requirements' dependencies resolve to, so that no release of theirs changes what tests show."""

    def interpreter(self) -> Path:
        """The Python that has the requirements and nothing of ours; builds it on first use."""
        place = CACHE / self.name
        if not self._is_built(place):
            CACHE.mkdir(parents=True, exist_ok=True)
            # Ignored by its own word, wherever the checkout's list of ignored files stands.
            (CACHE / ".gitignore").write_text("*\n")
            with _locked(CACHE / f"{self.name}.lock"):
                if not self._is_built(place):
                    self._build(place)
        return place / "bin" / "python"

    def _is_built(self, place: Path) -> bool:
        recipe = place / "recipe"
        return recipe.is_file() and recipe.read_text() == self._recipe()

    def _recipe(self) -> str:
        """What it is made of: a change of any part builds it again."""
        pinned = hashlib.sha256(self.constraints.read_bytes()).hexdigest()
        wanted = " ".join(self.requirements)
        return f"{wanted}\nconstraints sha256={pinned}\npython {sys.version}\n{sys.base_prefix}\n"

    def _build(self, place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=False, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
        options = ["--no-input", "--disable-pip-version-check", "--constraint", str(self.constraints)]
        done = subprocess.run(
            [*pip, "install", *options, *self.requirements],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_SECONDS_MAX,
        )
        if done.returncode != 0:
            raise RuntimeError(f"pip could not install {' '.join(self.requirements)}:\n{done.stdout[-4000:]}")
        # Written last: an installation that was cut short has no recipe and is built again.
        (place / "recipe").write_text(self._recipe())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:

        def taken() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        wait_until(taken, f"the lock {path.name}", deadline_seconds=BUILD_SECONDS_MAX)
        yield
