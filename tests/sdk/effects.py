"""Effects of agents in tests: lines in a file that outlives every process."""

import os
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec

from stepwell import execution
from stepwell.context import ExecutionContext

running_step: ContextVar[str] = ContextVar("running_step", default="")
"""The step whose body runs, where `telling_steps` is in force."""


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """One effect. `process` is that of the agent, `at` what the clock of the machine said."""

    at: float
    name: str
    execution_id: str
    step_id: str
    attempt: int
    process: int


class Sink:
    """Where effects happen: a file that outlives every process. Each is one write at its end."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, name: str) -> None:
        context = execution()
        happened = Happened(
            at=time.time(),
            name=name,
            execution_id=context.execution_id,
            step_id=running_step.get(),
            attempt=context.attempt,
            process=os.getpid(),
        )
        append(self._path, happened)

    def effects(self) -> list[Happened]:
        return read_lines(self._path, Happened)


_BEGIN, _END = b"\x1e", b"\n"


def append(path: Path, line: Any) -> None:
    """Add a line to a file that several processes write to.

    One that is killed meanwhile may leave a part of its line behind. It is no line: what it tells of had not happened.
    """
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, _BEGIN + msgspec.json.encode(line) + _END)
    finally:
        os.close(file)


def read_lines(path: Path, kind: Any) -> list[Any]:
    """Return the whole lines of a file, in the order in which they were written."""
    parts = path.read_bytes().split(_BEGIN) if path.exists() else []
    return [msgspec.json.decode(part, type=kind) for part in parts if part.endswith(_END)]


def telling_steps() -> Callable[..., Awaitable[Any]]:
    """Return what has to stand for `ExecutionContext._perform`, so that effects know the step they belong to."""
    perform = ExecutionContext._perform

    async def told(self: ExecutionContext, step_id: str, *given: Any) -> Any:
        token = running_step.set(step_id)
        try:
            return await perform(self, step_id, *given)
        finally:
            running_step.reset(token)

    return told
