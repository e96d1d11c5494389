"""K103 to K107: live deltas, and the events of an execution as a stream."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, details, envelope
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.side_by_side import side_by_side
from tests.support.event_streams import Frames, Lazy

TAKE_SECONDS = 30.0
KEEP_ALIVE_SECONDS = 15.0
PUBLISH_SECONDS_MAX = 0.1


async def _publish(lease: Lease, step_id: str, seq: object, data: object = "x") -> httpx.Response:
    return await lease.request(f"/steps/{step_id}/stream", {"seq": seq, "data": data})


async def _started(kernel: Kernel) -> tuple[Lease, str]:
    lease = await (await kernel.agent()).acknowledged()
    return lease, await lease.proceed()


async def _next(frames: Frames, count: int) -> list[Any]:
    return [(await frames.next())["data"] for _ in range(count)]


async def test_k103_a_delta_reaches_every_subscriber_of_its_execution_and_nobody_else(kernel: Kernel) -> None:
    (lease, step_id), (other, other_id) = await _started(kernel), await _started(kernel)
    next_id = await lease.proceed("another")
    async with (
        kernel.stream(f"{lease.path}/stream") as first,
        kernel.stream(f"{lease.path}/stream") as second,
        kernel.stream(f"{other.path}/stream") as elsewhere,
    ):
        sent = [(step_id, 7, "a"), (next_id, 0, ""), (step_id, 8, "é\r\n\U0001f642"), (step_id, 2**63 - 1, "last")]
        for step, seq, data in sent:
            accepted(await _publish(lease, step, seq, data), 204)
        accepted(await _publish(other, other_id, 1, "other"), 204)

        expected = [{"step_id": step, "seq": seq, "data": data} for step, seq, data in sent]
        assert await _next(first, len(sent)) == expected
        assert await _next(second, len(sent)) == expected
        assert await _next(elsewhere, 1) == [{"step_id": other_id, "seq": 1, "data": "other"}]


async def test_k103_a_replay_publishes_nothing_and_a_step_that_is_over_neither(kernel: Kernel) -> None:
    lease, step_id = await _started(kernel)
    live = await lease.proceed("another")
    accepted(await lease.complete(step_id, 1))
    async with kernel.stream(f"{lease.path}/stream") as frames:
        accepted(await _publish(lease, step_id, 0), 204)
        accepted(await _publish(lease, live, 1), 204)
        assert [each["seq"] for each in await _next(frames, 1)] == [1]


async def test_k104_a_delta_is_checked(kernel: Kernel) -> None:
    lease, step_id = await _started(kernel)
    accepted(await _publish(lease, step_id, 0, "x" * 65_536), 204)
    assert details(await _publish(lease, step_id, 0, "x" * 65_537), 400, "validation_error") == {"path": "data"}
    for seq in (-1, 2**63, 0.5, "0", None, True):
        assert details(await _publish(lease, step_id, seq), 400, "validation_error") == {"path": "seq"}
    envelope(await _publish(lease, "0" * 64, 0), 404, "not_found")
    other, other_id = await _started(kernel)
    envelope(await _publish(lease, other_id, 0), 404, "not_found")
    accepted(await _publish(lease.but(dispatch_id=None, attempt=None), step_id, 0), 204)
    envelope(await _publish(lease.but(attempt=2), step_id, 0), 409, "lease_superseded")
    envelope(await _publish(lease.but(dispatch_id=other.dispatch_id), step_id, 0), 400, "validation_error")


@side_by_side
async def test_k104_the_lease_of_an_attempt_that_is_over_is_stale(kernel: Kernel) -> None:
    lease, step_id = await _started(kernel)
    newer = await lease.expired()
    envelope(await _publish(lease, step_id, 0), 409, "lease_superseded")
    accepted(await _publish(newer, step_id, 0), 204)


def _seqs(raw: bytes) -> list[int]:
    return [int(each.partition(b",")[0]) for each in raw.split(b'"seq":')[1:]]


def _address(kernel: Kernel) -> int:
    port = urlsplit(kernel.url).port
    assert port is not None
    return port


def _bearer(kernel: Kernel) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {kernel.api_key}"}


@side_by_side
async def test_k105_a_subscriber_that_does_not_read_slows_nobody_and_is_disconnected(kernel: Kernel) -> None:
    lease, step_id = await _started(kernel)
    lazy = await Lazy.ask(_address(kernel), f"{lease.path}/stream", dict(_bearer(kernel)))
    took: list[float] = []
    async with kernel.stream(f"{lease.path}/stream") as frames:
        for seq in range(120):
            began_at = time.perf_counter()
            accepted(await _publish(lease, step_id, seq, "x" * 60_000), 204)
            took.append(time.perf_counter() - began_at)
            await frames.next()
    assert sorted(took)[int(len(took) * 0.99) - 1] < PUBLISH_SECONDS_MAX
    # Nothing more comes, and nothing is read: only being cut off ends it.
    raw = await lazy.after(TAKE_SECONDS + 10)
    assert b"event: end" not in raw
    lazy.close()


async def test_k105_a_slow_subscriber_sees_the_gap(kernel: Kernel) -> None:
    lease, step_id = await _started(kernel)
    slow = await Lazy.ask(_address(kernel), f"{lease.path}/stream", dict(_bearer(kernel)))
    for seq in range(200):
        accepted(await _publish(lease, step_id, seq, "x" * 60_000), 204)
    accepted(await lease.complete_execution(), 204)
    raw = await slow.read_to_the_end()
    slow.close()
    seqs = _seqs(raw)
    assert raw.endswith(b'event: end\ndata: {"status":"completed"}\n\n\r\n0\r\n\r\n')
    assert seqs == sorted(set(seqs))
    assert len(seqs) < 200, "so much does not fit between a publisher and a reader"


@side_by_side
async def test_k106_a_stream_speaks_at_once_and_within_fifteen_seconds(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)
    for target in (f"{lease.path}/stream", f"{lease.path}/events/stream?after_seq=1000"):
        async with kernel.stream(target) as frames:
            assert frames.response.headers["cache-control"] == "no-cache,no-transform"
            assert frames.response.headers["x-accel-buffering"] == "no"
            assert frames.response.headers["content-type"] == "text/event-stream"
            await frames.comment(seconds=KEEP_ALIVE_SECONDS + 3)


async def test_k106_a_stream_ends_with_its_execution_and_at_once_where_that_has_ended(kernel: Kernel) -> None:
    lease, step_id = await _started(kernel)
    async with kernel.stream(f"{lease.path}/stream") as frames:
        accepted(await _publish(lease, step_id, 0), 204)
        await _next(frames, 1)
        accepted(await kernel.cancel(lease.execution_id), 204)
        assert await frames.rest() == [{"event": "end", "data": {"status": "cancelled"}}]
    async with kernel.stream(f"{lease.path}/stream") as frames:
        assert await frames.rest() == [{"event": "end", "data": {"status": "cancelled"}}]
    envelope(await kernel.get("/v0/executions/01a22c00-0000-7000-8000-000000000000/stream"), 404, "not_found")


async def test_k107_the_event_stream_holds_every_event_to_the_end(kernel: Kernel) -> None:
    lease, step_id = await _started(kernel)
    async with kernel.stream(f"{lease.path}/events/stream") as frames:
        for number in range(50):
            await lease.done(args=number)
        await lease.proceed("left open")
        accepted(await lease.fail_execution("over"), 204)
        got = await frames.rest()
    events = await kernel.events(lease.execution_id)
    assert [each["data"] for each in got[:-1]] == events
    assert [each["id"] for each in got[:-1]] == [str(seq) for seq in range(1, len(events) + 1)]
    assert got[-1] == {"event": "end", "data": {"status": "failed"}}
    assert step_id in {event["payload"].get("step_id") for event in events}


async def test_k107_readers_that_come_back_or_are_slow_miss_and_repeat_nothing(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)
    target = f"{lease.path}/events/stream"
    slow = await Lazy.ask(_address(kernel), target, dict(_bearer(kernel)))
    ids: list[int] = []
    for number in range(20):
        await lease.proceed(args=number)
        seen = {"Last-Event-ID": str(ids[-1])} if ids else {}
        # The header wins over the query.
        async with kernel.stream(f"{target}?after_seq=100000" if ids else target, headers=seen) as frames:
            ids += [int((await frames.next())["id"]) for _ in range(3)]
    accepted(await lease.complete_execution("x" * 200_000), 204)
    async with kernel.stream(f"{target}?after_seq={ids[-1]}") as frames:
        ids += [int(each["id"]) for each in await frames.rest() if "id" in each]
    assert ids == list(range(1, len(await kernel.events(lease.execution_id)) + 1))
    raw = await slow.read_to_the_end()
    slow.close()
    assert [int(line[4:]) for line in raw.split(b"\n") if line.startswith(b"id: ")] == ids


async def test_k107_a_start_that_is_no_number_is_refused(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)
    for query, seen in (("?after_seq=x", {}), ("?after_seq=-1", {}), ("", {"Last-Event-ID": "x"})):
        response = await kernel.request("GET", f"{lease.path}/events/stream{query}", headers=seen)
        details(response, 400, "validation_error")


async def test_k107_many_readers_each_get_everything(kernel: Kernel) -> None:
    lease, _ = await _started(kernel)

    async def read() -> int:
        async with kernel.stream(f"{lease.path}/events/stream") as frames:
            return len(await frames.rest())

    reading = [asyncio.create_task(read()) for _ in range(50)]
    for number in range(10):
        await lease.done(args=number)
    accepted(await lease.complete_execution(), 204)
    counts = {await each for each in reading}
    assert counts == {len(await kernel.events(lease.execution_id)) + 1}
