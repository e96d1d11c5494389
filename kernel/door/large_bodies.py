"""Reading the JSON of a body without holding up everybody else: a large one is read beside the event loop.

The exact reader takes a second for the worst body of the largest size. On the loop that second would be everybody's,
and in a process with every role longer than a projector may be silent about its shards.
"""

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from kernel.domain.errors import Unavailable
from kernel.domain.json_values import Document
from kernel.door.bodies import NOT_LENIENT, read_body_object
from kernel.door.exchange import Request

READ_AT_ONCE_BYTES_MAX = 32 * 1024
"""Up to here reading takes ten milliseconds at worst, and mostly less than handing it to a thread."""

# One thread for the process: two would not read faster, and each one more makes the loop wait longer for its turn.
_READER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-bodies")


async def read_document(
    request: Request, *, lenient: frozenset[str] = NOT_LENIENT, is_optional: bool = False
) -> Document:
    """Return what `read_body_object` returns, or raise what it raises; Unavailable where no turn comes in time."""
    read = partial(read_body_object, request, lenient=lenient, is_optional=is_optional)
    if len(request.body) <= READ_AT_ONCE_BYTES_MAX:
        return read()
    try:
        async with asyncio.timeout_at(request.deadline):
            return await asyncio.get_running_loop().run_in_executor(_READER, _without_collections, read)
    except TimeoutError as error:
        raise Unavailable("too many large bodies wait to be read") from error


def _without_collections(read: Callable[[], Document]) -> Document:
    # A million new containers make the collector walk over them again and again, and all wait for it; none is garbage.
    gc.disable()
    try:
        return read()
    finally:
        gc.enable()
