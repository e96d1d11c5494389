"""Changes to the control stream on behalf of a request."""

import asyncio
import time

from kernel.control.control import Control
from kernel.control.state import Accepted
from kernel.door.exchange import Request
from schemas.control import AnyControlEntry


async def submitted(control: Control, entry: AnyControlEntry, request: Request) -> Accepted:
    """Return the answer to an entry within what the request has left; errors as of Control.submit."""
    return await control.submit(entry, timeout_seconds=seconds_left(request))


def seconds_left(request: Request) -> float:
    return max(0.0, request.deadline - asyncio.get_running_loop().time())


def now_micros() -> int:
    return time.time_ns() // 1000
