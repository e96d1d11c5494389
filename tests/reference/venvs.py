"""One virtual environment per release of the reference client, built once with plain pip and kept in the checkout.

Building is serialised by a lock file, so any number of test workers may ask for the same release at once.
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

from tests.support.wait import wait_until

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "reference"
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
# Another worker that builds the same release is waited for, its whole installation included.
BUILD_SECONDS_MAX = 600.0


def interpreter(version: str) -> Path:
    """The Python that has this release of the client and nothing else of ours; builds it on first use."""
    environment = CACHE / f"rebuno-{version}"
    if not _is_built(environment, version):
        CACHE.mkdir(parents=True, exist_ok=True)
        # Ignored by its own word, wherever the checkout's list of ignored files stands.
        (CACHE / ".gitignore").write_text("*\n")
        with _locked(CACHE / f"rebuno-{version}.lock"):
            if not _is_built(environment, version):
                _build(environment, version)
    return environment / "bin" / "python"


def _is_built(environment: Path, version: str) -> bool:
    recipe = environment / "recipe"
    return recipe.is_file() and recipe.read_text() == _recipe(version)


def _recipe(version: str) -> str:
    """What the environment was made of: a change of any part builds it again."""
    pinned = hashlib.sha256(CONSTRAINTS.read_bytes()).hexdigest()
    return f"rebuno=={version}\nconstraints sha256={pinned}\npython {sys.version}\n{sys.base_prefix}\n"


def _build(environment: Path, version: str) -> None:
    shutil.rmtree(environment, ignore_errors=True)
    venv.create(environment, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    options = ["--no-input", "--disable-pip-version-check", "--constraint", str(CONSTRAINTS)]
    done = subprocess.run(
        [*pip, "install", *options, f"rebuno=={version}"],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_SECONDS_MAX,
    )
    if done.returncode != 0:
        raise RuntimeError(f"pip could not install rebuno {version}:\n{done.stdout[-4000:]}")
    # Written last: an installation that was cut short has no recipe and is built again.
    (environment / "recipe").write_text(_recipe(version))


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
