"""The published client: a virtual environment of its own, made from the package index and kept in the checkout.

It is what ours is measured against, and a dependency of nothing.
"""

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from bench.machine import ROOT
from bench.ratios import MeasureFailed, say

PACKAGE = "rebuno"
VERSION = "0.29.2"
CACHE = ROOT / ".cache" / "bench"
CONSTRAINTS = ROOT / "tests" / "reference" / "constraints.txt"
"""What its dependencies resolve to: the versions that the tests run it with."""
INSTALL_SECONDS_MAX = 300.0


def interpreter() -> Path:
    """Return the Python that has it; makes the environment on first use. Raises MeasureFailed where that cannot be."""
    environment = CACHE / f"{PACKAGE}-{VERSION}"
    recipe = environment / "recipe"
    if not recipe.is_file() or recipe.read_text() != _recipe():
        say(f"installing {PACKAGE} {VERSION} into {environment.relative_to(ROOT)}")
        _install(environment)
        # Written last: an installation that was cut short has no recipe and is made again.
        recipe.write_text(_recipe())
    return environment / "bin" / "python"


def _recipe() -> str:
    pinned = hashlib.sha256(CONSTRAINTS.read_bytes()).hexdigest()
    return f"{PACKAGE}=={VERSION}\nconstraints sha256={pinned}\npython {sys.version}\n{sys.base_prefix}\n"


def _install(environment: Path) -> None:
    shutil.rmtree(environment, ignore_errors=True)
    venv.create(environment, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    options = ["--no-input", "--disable-pip-version-check", "--quiet", "--constraint", str(CONSTRAINTS)]
    try:
        subprocess.run(
            [*pip, "install", *options, f"{PACKAGE}=={VERSION}"],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired as error:
        raise MeasureFailed(f"pip did not install {PACKAGE} {VERSION} within {INSTALL_SECONDS_MAX:g} s") from error
    except subprocess.CalledProcessError as error:
        said = str(error.stdout).strip().splitlines() or ["nothing was said"]
        raise MeasureFailed(f"pip could not install {PACKAGE} {VERSION}: {said[-1]}") from error
