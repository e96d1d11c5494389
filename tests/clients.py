"""Build the environments of the packages that tests use as their users do, before any test runs: `make clients`.

Installing is heavy work for processor and disk. Beside it, tests that say within how many milliseconds something
happens would measure the installer.
"""

from concurrent.futures import ThreadPoolExecutor

from tests.reference.deployment import RELEASES
from tests.sdk.litellm_place import LITELLM
from tests.support.environments import Environment

INSTALLERS = 2


def main() -> None:
    environments = [LITELLM, *(release.environment for release in RELEASES)]
    with ThreadPoolExecutor(INSTALLERS) as pool:
        for environment, _ in zip(environments, pool.map(Environment.interpreter, environments), strict=True):
            print(f"{environment.name} is installed", flush=True)


if __name__ == "__main__":
    main()
