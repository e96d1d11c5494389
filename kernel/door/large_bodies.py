"""Reading the JSON of a body without holding up everybody else: a large one is read beside the event loop.

The exact reader takes seconds for the worst body of the largest size. On the loop those would be everybody's, and in a
process with every role longer than a projector may be silent about its shards.
"""

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from kernel.domain.errors import Unavailable
from kernel.domain.json_values import Document
from kernel.door.admission import Admission
from kernel.door.bodies import NOT_LENIENT, read_body_object
from kernel.door.exchange import Request, tenant_of

READ_AT_ONCE_BYTES_MAX = 32 * 1024
"""Up to here reading takes ten milliseconds at worst, and mostly less than handing it to a thread."""
LARGE_BYTES_MAX = 1024 * 1024
"""Larger ones are read in a line of their own: a large one does not wait for seconds behind a huge one."""

T = TypeVar("T")


class _Line:
    """Bodies that are read one after another, the tenants in turn.

    One thread: two would not read faster, and each one more makes the loop wait longer for its turn.
    """

    def __init__(self, name: str) -> None:
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._turns = Admission(1, share=1)

    async def run(self, work: Callable[[], T], *, tenant: str) -> T:
        owner = (tenant, 0)
        await self._turns.enter(owner)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, _without_collections, work)
        finally:
            self._turns.leave(owner)


# Of the process and not of a door: what is short is its one interpreter.
_LARGE: Final = _Line("large-bodies")
_HUGE: Final = _Line("huge-bodies")


async def read_into(
    request: Request,
    build: Callable[[Document], T],
    *,
    lenient: frozenset[str] = NOT_LENIENT,
    is_optional: bool = False,
) -> T:
    """Return what `build` makes of the body, read as `read_body_object` does; what either raises is raised.

    Writing a large value takes as long as reading it: `build` runs where the body was read, in a thread where that is
    large. Raises Unavailable where the body's turn does not come in time.
    """
    size = len(request.body)
    if size <= READ_AT_ONCE_BYTES_MAX:
        return build(read_body_object(request, lenient=lenient, is_optional=is_optional))
    line = _LARGE if size <= LARGE_BYTES_MAX else _HUGE

    def work() -> T:
        return build(read_body_object(request, lenient=lenient, is_optional=is_optional))

    try:
        async with asyncio.timeout_at(request.deadline):
            return await line.run(work, tenant=tenant_of(request.caller))
    except TimeoutError as error:
        raise Unavailable("too many large bodies wait to be read") from error


async def read_document(
    request: Request, *, lenient: frozenset[str] = NOT_LENIENT, is_optional: bool = False
) -> Document:
    """Return the body as `read_body_object` does, without holding up the loop."""
    return await read_into(request, _itself, lenient=lenient, is_optional=is_optional)


def _itself(document: Document) -> Document:
    return document


class _Collections:
    """The collector, which is off while any large body is read.

    A million new containers make it walk over them again and again, and all wait for it; none is garbage.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers = 0

    def suspend(self) -> None:
        with self._lock:
            self._readers += 1
            gc.disable()

    def resume(self) -> None:
        with self._lock:
            self._readers -= 1
            if self._readers == 0:
                gc.enable()


_COLLECTIONS: Final = _Collections()


def _without_collections(work: Callable[[], T]) -> T:
    _COLLECTIONS.suspend()
    try:
        return work()
    finally:
        _COLLECTIONS.resume()
