"""The kernels that the checks run against: one for nearly all of them, others where a check needs other settings."""

from typing import Any, Literal, Self, TypeAlias

from tests.support.stack import Stack

LEASE_SECONDS = 10
"""The shortest that the kernel takes: many checks wait for the end of a lease."""
SETTINGS = {"STEPWELL_NO_POLICY": "allow", "STEPWELL_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8"}


Mode: TypeAlias = Literal["server", "dev"]


class Stacks:
    """Running kernels by their settings; each is started when it is first asked for, and all end together."""

    def __init__(self) -> None:
        self._running: dict[tuple[Any, ...], Stack] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._running:
            _, stack = self._running.popitem()
            stack.stop()

    def get(
        self, *, mode: Literal["server", "dev"] = "server", lease_seconds: int = LEASE_SECONDS, **settings: str
    ) -> Stack:
        """The kernel with these settings, such as `STEPWELL_DEADLINE_TIMEOUT="3s"`."""
        key = (mode, lease_seconds, *sorted(settings.items()))
        if key not in self._running:
            together = SETTINGS | settings
            self._running[key] = Stack.start(mode=mode, lease_seconds=lease_seconds, settings=together)
        return self._running[key]
