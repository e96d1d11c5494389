"""The reference for submissions: the door's listener, reading and signature check, and an answer at once.

Run as a process of its own, as `python -m bench.echo`. It has no log, no view and no routes.
"""

import asyncio
import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvloop

from bench.requests import SECRET
from kernel.domain.signatures import timestamp_ok, verify
from kernel.door.auth import ATTEMPT, DISPATCH_ID, SIGNATURE, TIMESTAMP
from kernel.door.exchange import JSON
from kernel.door.reading import Bodies, header_map
from kernel.listener import Listener
from kernel.main import GC_THRESHOLDS
from kernel.settings import Settings

READ_SECONDS_MAX = 25.0


class Echo:
    """An ASGI application that answers what it was sent where the signature is good, else 401."""

    def __init__(self) -> None:
        settings = Settings()
        self._bodies = Bodies(settings.body_bytes_max, held_bytes_max=settings.bodies_held_bytes_max)
        self._window_seconds = settings.signature_window_seconds

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is answered in a task")
        headers = header_map(scope["headers"])
        deadline = asyncio.get_running_loop().time() + READ_SECONDS_MAX
        body = await self._bodies.read(task, headers, receive, deadline=deadline)
        timestamp = headers.get(TIMESTAMP, b"")
        is_good = timestamp_ok(timestamp.decode("latin-1"), int(time.time()), self._window_seconds) and verify(
            (SECRET,),
            headers.get(SIGNATURE, b""),
            method=scope["method"],
            target=scope["raw_path"],
            timestamp=timestamp,
            dispatch_id=headers.get(DISPATCH_ID, b""),
            attempt=headers.get(ATTEMPT, b""),
            body=body,
        )
        answer = ((b"content-type", JSON), (b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": 200 if is_good else 401, "headers": answer})
        await send({"type": "http.response.body", "body": body})


async def serve() -> None:
    host, _, port = os.environ["STEPWELL_LISTEN_ADDR"].rpartition(":")
    with Listener(host=host, port=int(port)) as listener:
        print(f"echo ready: {listener.url}", flush=True)
        await listener.run(Echo())


def main() -> None:
    """Serve until ended by a signal, under the same settings of the collector as the door."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    sys.exit(main())
