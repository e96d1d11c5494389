"""A stack whose processes reach NATS and Valkey through links, and whose wall clocks a test may set."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tests.fault.links import Link
from tests.support.stack import Stack

SETTINGS = {"STEPWELL_NO_POLICY": "allow", "STEPWELL_REQUEST_BUDGET": "25s"}
_CLOCK = Path(__file__).resolve().parent / "clock"


class FaultyStack(Stack):
    """Made by `start`, as every stack. Tests themselves talk to the servers directly."""

    def __init__(self, folder: Path, mode: Literal["server", "dev"], settings: Mapping[str, str]) -> None:
        super().__init__(folder, mode, SETTINGS | dict(settings))
        seed = secrets.randbits(32)
        self.links = {"nats": Link(seed), "valkey": Link(seed + 1)}

    def set_clock(self, command: str, offset_seconds: float) -> None:
        """Step the wall clock of all processes of one command (`door`, `projector`, `dispatcher`)."""
        path = self.folder / "clocks" / command
        new = path.with_suffix(".new")
        new.write_text(str(offset_seconds))
        new.replace(path)

    async def _environment(self) -> dict[str, str]:
        environment = await super()._environment()
        (self.folder / "clocks").mkdir()
        for name, server in self._servers.items():
            self.links[name].start(server.port)
        return environment | {
            "STEPWELL_NATS_URL": f"nats://127.0.0.1:{self.links['nats'].port}",
            "STEPWELL_REDIS_URL": f"redis://127.0.0.1:{self.links['valkey'].port}",
            "CLOCK_OFFSETS": str(self.folder / "clocks"),
            "PYTHONPATH": os.pathsep.join([str(_CLOCK), environment["PYTHONPATH"]]),
        }

    async def _stop(self) -> None:
        try:
            await super()._stop()
        finally:
            for link in self.links.values():
                link.stop()
