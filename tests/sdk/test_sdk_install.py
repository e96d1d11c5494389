"""`pip install ./sdk` in an environment that has nothing else: the library works alone, and brings little along."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

SDK = Path(__file__).resolve().parents[2] / "sdk"
INSTALL_SECONDS_MAX = 300
# aiohttp, msgspec and uvicorn, and what those need.
PACKAGES = {"aiohappyeyeballs", "aiohttp", "aiosignal", "attrs", "click", "frozenlist", "h11", "idna", "msgspec"}
PACKAGES |= {"multidict", "propcache", "stepwell", "uvicorn", "yarl"}
PACKAGES_OF_OLD_PYTHONS = {"typing_extensions", "typing-extensions"}

ALONE = """
import importlib, pkgutil, stepwell
from stepwell import Agent, tool

@tool
def shout(text: str) -> str:
    return text.upper()

Agent("alone", secret="the secret of its registration").bind(lambda given: shout(given))
apart = ("stepwell.testing", "stepwell.adapters")
for module in pkgutil.walk_packages(stepwell.__path__, "stepwell."):
    if not module.name.startswith(apart):
        importlib.import_module(module.name)
print(sorted(stepwell.__all__))
try:
    importlib.import_module("stepwell.testing")
except ImportError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with the library, installed as its page says."""
    environment = tmp_path_factory.mktemp("alone") / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    done = subprocess.run(
        [*pip(python), "install", str(SDK)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return python


def pip(python: Path) -> list[str]:
    return [sys.executable, "-m", "pip", "--python", str(python), "--no-input", "--disable-pip-version-check"]


def output(*words: str, folder: Path) -> str:
    # Elsewhere than in the checkout, whose modules would be found too.
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_brings_only_what_it_needs(python: Path, tmp_path: Path) -> None:
    listed = json.loads(output(*pip(python), "list", "--format", "json", folder=tmp_path))
    names = {package["name"].lower() for package in listed}
    assert names >= PACKAGES
    assert names <= PACKAGES | PACKAGES_OF_OLD_PYTHONS


def test_it_works_without_the_kernel_and_says_what_its_extra_needs(python: Path, tmp_path: Path) -> None:
    names, told = output(str(python), "-I", "-c", ALONE, folder=tmp_path).splitlines()
    assert "'Agent'" in names
    assert told == "stepwell.testing brings a kernel along: pip install 'stepwell[testing]'"
