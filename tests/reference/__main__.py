"""Build the environments of all releases before any test runs.

Installing is heavy work for processor and disk. Beside it, tests that say within how many milliseconds something
happens would measure the installer.
"""

from concurrent.futures import ThreadPoolExecutor

from tests.reference.deployment import RELEASES
from tests.reference.venvs import interpreter

INSTALLERS = 2


def main() -> None:
    with ThreadPoolExecutor(INSTALLERS) as pool:
        versions = [release.version for release in RELEASES]
        for version, _ in zip(versions, pool.map(interpreter, versions), strict=True):
            print(f"reference client {version} is installed", flush=True)


if __name__ == "__main__":
    main()
