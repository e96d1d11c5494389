"""The reference on the log's side: a bare client that publishes durably to eight streams of the same server."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from statistics import median

import msgspec

from bench.ratios import MeasureFailed
from bench.requests import Held, arguments, call_hash
from kernel.domain.policy import PERMISSIVE
from kernel.log.api import Answer, StreamInfo, call, read_acknowledgement
from kernel.log.connection import Connection
from kernel.log.driver import Delivery
from kernel.log.limits import LogLimits
from kernel.log.naming import entry_headers, message_bytes
from kernel.log.streams import DUPLICATE_WINDOW_SECONDS
from kernel.ports import Acknowledged, Outgoing
from schemas.entries import Lease, StepSubmitted, encode_entry
from schemas.ids import DEFAULT_TENANT, new_uuid7

STREAMS = 8


class Publisher:
    """Publishes what the door publishes for a submission, to streams set up as the shards are."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        execution_id = new_uuid7()
        held = Held(agent_id="agent-0", execution_id=execution_id, lease=Lease(new_uuid7(), 1))
        self._outgoing = Outgoing(
            shard=0,
            tenant=DEFAULT_TENANT,
            execution_id=execution_id,
            entry_id="",
            payload=encode_entry(submission(held, 1, expires=time.time_ns() // 1000)),
            reply_to="door000000000000",
        )

    async def rate(self, *, in_flight: int, seconds: float, warm_seconds: float) -> float:
        """Return the acknowledged publishes per second with so many under way."""
        count = 0
        is_over = False
        ended: list[asyncio.Future[None]] = []

        def keep_publishing(stream: int, done: asyncio.Future[None]) -> None:
            def heard(delivery: Delivery) -> None:
                nonlocal count
                _check(delivery)
                count += 1
                keep_publishing(stream, done)

            if is_over:
                done.set_result(None)
            else:
                self._publish(stream, heard)

        for number in range(in_flight):
            ended.append(asyncio.get_running_loop().create_future())
            keep_publishing(number % STREAMS, ended[-1])
        await asyncio.sleep(warm_seconds)
        before, started_at = count, time.perf_counter()
        await asyncio.sleep(seconds)
        rate = (count - before) / (time.perf_counter() - started_at)
        is_over = True
        await asyncio.gather(*ended)
        return rate

    async def lone_milliseconds(self, count: int) -> float:
        """Return the median time of a publish while nothing else happens."""
        spent: list[float] = []
        for number in range(count):
            heard: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
            started_at = time.perf_counter()
            self._publish(number % STREAMS, heard.set_result)
            _check(await heard)
            spent.append(time.perf_counter() - started_at)
        return median(spent) * 1000

    def _publish(self, stream: int, heard: Callable[[Delivery], None]) -> None:
        outgoing = msgspec.structs.replace(self._outgoing, entry_id=new_uuid7())
        headers = entry_headers(outgoing)
        size = message_bytes(headers, outgoing.payload)
        self._connection.ask(f"bench.{stream}", outgoing.payload, heard, headers=headers, size=size)


def submission(held: Held, number: int, *, expires: int | None) -> StepSubmitted:
    """Return the entry that the door makes of the n-th call."""
    return StepSubmitted(
        id=new_uuid7(),
        tenant=DEFAULT_TENANT,
        execution_id=held.execution_id,
        at=time.time_ns() // 1000,
        expires=expires,
        lease=held.lease,
        kind="tool_call",
        target="weather.lookup",
        args=msgspec.Raw(arguments(number)),
        args_hash=call_hash(number),
        idempotency="safe_to_retry",
        verdict=PERMISSIVE,
    )


@asynccontextmanager
async def publishing(nats_url: str) -> AsyncIterator[Publisher]:
    """Make the streams; delete them in the end."""
    connection = await Connection.open(nats_url, name="bench", limits=LogLimits())
    try:
        for number in range(STREAMS):
            await call(connection, f"STREAM.CREATE.BENCH_{number}", _stream(number), StreamInfo)
        yield Publisher(connection)
        for number in range(STREAMS):
            await call(connection, f"STREAM.DELETE.BENCH_{number}", None, Answer)
    finally:
        await connection.close()


def _stream(number: int) -> dict[str, object]:
    return {
        "name": f"BENCH_{number}",
        "subjects": [f"bench.{number}"],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "duplicate_window": DUPLICATE_WINDOW_SECONDS * 1_000_000_000,
        "num_replicas": 1,
        "allow_direct": True,
    }


def _check(delivery: Delivery) -> None:
    said = read_acknowledgement(delivery)
    if not isinstance(said, Acknowledged):
        raise MeasureFailed(f"a publish was not acknowledged: {delivery.data[:200]!r}")
