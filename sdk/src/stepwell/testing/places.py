"""Where in an agent's code a step is made, and on which of its concurrent lanes."""

import asyncio
import sys
import sysconfig
import threading
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

import msgspec

import stepwell

_OURS = str(Path(stepwell.__file__).parent)
_OTHERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
FRAMES_MAX = 200


class Place(msgspec.Struct, frozen=True):
    """A line of code."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{_shortened(self.path)}:{self.line} in {self.function}"


class Lane:
    """A task or a thread of an agent, from its first step on; what it does happens in one order."""

    def __init__(self, parent: "Lane | None" = None, *, is_in_body: bool = False) -> None:
        self.parent = parent
        self.is_in_body = is_in_body or (parent is not None and parent.is_in_body)
        """Whether it makes its steps inside of another step's body, which a replay leaves out."""
        self.owner: object = None
        """The task or the thread; known with its first step."""


class Spot(msgspec.Struct, frozen=True):
    """Where and by whom a step is made."""

    lane: Lane
    place: Place | None
    """None where a framework or the event loop called, and no line of the agent's own is on the stack."""


_lane: ContextVar[Lane] = ContextVar("stepwell_lane")


def on_lane(lane: Lane) -> None:
    """Let what this task does from here on happen on a lane."""
    _lane.set(lane)


def own_lane() -> None:
    """Let the lane be that of this task or thread, whoever makes the first step on it."""
    _lane.get().owner = _caller()


def spot() -> Spot:
    """Return where the caller is. A task or a thread that makes its first step gets a lane of its own."""
    lane, me = _lane.get(), _caller()
    if lane.owner is None:
        lane.owner = me
    elif lane.owner != me:
        lane = Lane(lane)
        lane.owner = me
        _lane.set(lane)
    return Spot(lane, _place())


def _caller() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.get_ident()


def _place() -> Place | None:
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - the stack has no other name
    for _ in range(FRAMES_MAX):
        if frame is None:
            return None
        path = frame.f_code.co_filename
        if not path.startswith((_OURS, *_OTHERS, "<")):
            return Place(path, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def _shortened(path: str) -> str:
    here = str(Path.cwd()) + "/"
    return path.removeprefix(here)
