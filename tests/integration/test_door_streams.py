"""Server-sent events of a door over real sockets: live deltas, and the events of an execution."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio

from kernel.door import deltas, events, streams
from kernel.listener import Listener
from tests.support.door import API_KEY, OPERATOR_KEY, MemoryRig, Run, rig_in_memory
from tests.support.event_streams import Frames, Lazy, opened
from tests.support.tenancy import make_key
from tests.support.wait import wait_until_async

BEARER = {"authorization": f"Bearer {API_KEY}"}


class Served:
    """A door on memory adapters that listens on a port."""

    def __init__(self, rig: MemoryRig, listener: Listener, http: httpx.AsyncClient) -> None:
        self.rig = rig
        self.port = listener.port
        self.http = http

    def deltas(self, run: Run) -> Any:
        return opened(self.http, f"{run.path}/stream", BEARER)

    def events(self, run: Run, *, query: str = "", seen: str = "") -> Any:
        headers = BEARER | ({"last-event-id": seen} if seen else {})
        return opened(self.http, f"{run.path}/events/stream{query}", headers)

    async def open_streams(self) -> int:
        text = (await self.rig.call("GET", "/metrics", key=OPERATOR_KEY)).text
        found = re.search(r"^stepwell_streams_open (\d+)", text, re.MULTILINE)
        assert found is not None
        return int(found[1])

    async def has_streams(self, count: int) -> None:
        async def reached() -> bool:
            return await self.open_streams() == count

        await wait_until_async(reached, f"{count} open streams")


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Served]:
    async with AsyncExitStack() as ending:
        rig = await ending.enter_async_context(rig_in_memory(**settings))
        await rig.register()
        listener = Listener(host="127.0.0.1", port=0)
        serving = asyncio.create_task(listener.run(rig.door))
        limits = httpx.Limits(max_connections=None)
        http = httpx.AsyncClient(base_url=listener.url, timeout=40, trust_env=False, limits=limits)
        try:
            yield Served(rig, listener, http)
        finally:
            await http.aclose()
            serving.cancel()
            await asyncio.wait((serving,))


@pytest_asyncio.fixture
async def door() -> AsyncIterator[Served]:
    async with served() as running:
        yield running


async def publish(run: Run, step_id: str, seq: Any, data: Any = "x", **options: Any) -> httpx.Response:
    return await run.send("POST", f"{run.path}/steps/{step_id}/stream", {"seq": seq, "data": data}, **options)


# ---------------------------------------------------------------- deltas


async def test_a_delta_reaches_everybody_who_watches_its_execution_and_nobody_else(door: Served) -> None:
    run, other = await door.rig.started(), await door.rig.started()
    step_id = await run.proceed()
    async with door.deltas(run) as first, door.deltas(run) as second, door.deltas(other) as elsewhere:
        for seq, data in enumerate(["one", "two\n\ndata: not a frame", "drei ✓ 𝄞"]):
            assert (await publish(run, step_id, seq, data)).status_code == 204
        for frames in (first, second):
            got = [(await frames.next())["data"] for _ in range(3)]
            assert [each["seq"] for each in got] == [0, 1, 2]
            assert {each["step_id"] for each in got} == {step_id}
            assert [each["data"] for each in got] == ["one", "two\n\ndata: not a frame", "drei ✓ 𝄞"]
        await other.complete()
        assert await elsewhere.rest() == [{"event": "end", "data": {"status": "completed"}}]


async def test_a_delta_is_bounded_and_belongs_to_a_step_and_to_the_current_lease(door: Served) -> None:
    run = await door.rig.started()
    step_id = await run.proceed()
    assert (await publish(run, step_id, 0, "x" * 65_536)).status_code == 204
    bad: list[tuple[Any, Any, str]] = [
        (0, "x" * 65_537, "data"),
        (0, "é" * 32_769, "data"),
        (0, 1, "data"),
        (-1, "x", "seq"),
        (2**63, "x", "seq"),
        (1.5, "x", "seq"),
        (None, "x", "seq"),
    ]
    for seq, data, path in bad:
        response = await publish(run, step_id, seq, data)
        assert (response.status_code, response.json()["details"]["path"]) == (400, path)
    assert (await publish(run, "f" * 64, 0)).status_code == 404
    assert (await publish(run, "nonsense", 0)).status_code == 404
    stale = run.lease
    await door.rig.expire(run)
    await door.rig.claim(run.execution_id)
    assert (await publish(run, step_id, 0, lease=stale)).json()["code"] == "lease_superseded"


async def test_a_delta_needs_no_lease_and_is_dropped_once_its_step_has_ended(door: Served) -> None:
    run = await door.rig.started()
    step_id, next_id = await run.proceed(args=1), await run.proceed(args=2)
    path = f"{run.path}/steps/{step_id}/stream"
    async with door.deltas(run) as frames:
        headers = run.headers("POST", path, b'{"seq":0,"data":"x"}', scheme="sha256")
        without = {name: value for name, value in headers.items() if "dispatch" not in name}
        response = await door.rig.client.post(path, content=b'{"seq":0,"data":"x"}', headers=without)
        assert response.status_code == 204
        await run.complete_step(step_id)
        assert (await publish(run, step_id, 1)).status_code == 204
        assert (await publish(run, next_id, 2)).status_code == 204
        got = [(await frames.next())["data"]["seq"] for _ in range(2)]
    assert got == [0, 2]


async def test_streams_of_deltas_end_with_the_execution_and_at_once_where_it_has_ended(door: Served) -> None:
    run = await door.rig.started()
    step_id = await run.proceed()
    async with door.deltas(run) as frames:
        await publish(run, step_id, 0)
        assert (await frames.next())["data"]["seq"] == 0
        await run.fail("broken")
        assert await frames.rest() == [{"event": "end", "data": {"status": "failed"}}]
    async with door.deltas(run) as frames:
        assert await frames.rest() == [{"event": "end", "data": {"status": "failed"}}]
    await door.has_streams(0)


async def test_a_stream_says_that_it_must_not_be_buffered_and_speaks_while_nothing_happens(
    door: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (deltas, events):
        monkeypatch.setattr(module, "KEEP_ALIVE_SECONDS", 0.05)
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    run = await door.rig.started()
    for stream in (door.deltas(run), door.events(run, query="?after_seq=1000")):
        async with stream as frames:
            headers = frames.response.headers
            assert headers["content-type"] == "text/event-stream"
            assert headers["cache-control"] == "no-cache,no-transform"
            assert headers["x-accel-buffering"] == "no"
            await frames.comment()
            await frames.comment()
    assert streams.KEEP_ALIVE_SECONDS <= 15


async def test_an_observer_that_takes_nothing_delays_nobody_and_is_disconnected(
    door: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "TAKE_SECONDS_MAX", 0.3)
    run = await door.rig.started()
    step_id = await run.proceed()
    lazy = await Lazy.ask(door.port, f"{run.path}/stream", BEARER)
    seen: list[int] = []
    async with door.deltas(run) as frames:
        slowest = 0.0
        for seq in range(400):
            began_at = time.perf_counter()
            assert (await publish(run, step_id, seq, "x" * 60_000)).status_code == 204
            slowest = max(slowest, time.perf_counter() - began_at)
            seen.append((await frames.next())["data"]["seq"])
            if seq > 50 and await door.open_streams() == 1:
                break
        assert seen == list(range(len(seen)))
        await door.has_streams(1)
    # It was dropped, not waited for: also by the system, which would offer what it holds for minutes.
    assert b"event: end" not in await lazy.after(5)
    lazy.close()


def test_a_slow_observer_sees_a_gap() -> None:
    observer = deltas._Observer()
    for seq in range(deltas.QUEUED_MAX + 10):
        observer.offer(b"%d," % seq)
    assert observer.take() == b"".join(b"%d," % seq for seq in range(deltas.QUEUED_MAX))
    observer.offer(b"later")
    assert observer.take() == b"later"
    for _ in range(20):
        observer.offer(b"x" * (deltas.QUEUED_BYTES_MAX // 10))
    assert len(observer.take()) <= deltas.QUEUED_BYTES_MAX


# ---------------------------------------------------------------- events


async def test_the_event_stream_gives_every_event_once_in_order_to_the_end(door: Served) -> None:
    run = await door.rig.started()
    async with door.events(run) as frames:
        step_id = await run.proceed()
        await run.complete_step(step_id, {"a": [1]})
        await run.complete({"done": True})
        got = await frames.rest()
    recorded = await door.rig.events(run.execution_id)
    assert [each["data"] for each in got[:-1]] == recorded
    assert [int(each["id"]) for each in got[:-1]] == list(range(1, len(recorded) + 1))
    assert all(set(each) == {"id", "data"} for each in got[:-1])
    assert got[-1] == {"event": "end", "data": {"status": "completed"}}


async def test_a_reader_that_comes_back_misses_and_repeats_nothing(door: Served) -> None:
    run = await door.rig.started()
    ids: list[int] = []
    seen = ""
    for number in range(6):
        async with door.events(run, query="?after_seq=1000", seen=seen or "0") as frames:
            await run.proceed(args=number)
            for _ in range(3):
                ids.append(int((await frames.next())["id"]))
            seen = str(ids[-1])
    await run.fail("over")
    async with door.events(run, query=f"?after_seq={ids[-1]}") as frames:
        ids += [int(each["id"]) for each in await frames.rest() if "id" in each]
    assert ids == list(range(1, len(ids) + 1))
    assert ids[-1] == len(await door.rig.events(run.execution_id))


@pytest.mark.parametrize(("query", "seen"), [("?after_seq=x", ""), ("?after_seq=-1", ""), ("", "x"), ("", "1.5")])
async def test_a_start_that_is_no_number_is_refused(door: Served, query: str, seen: str) -> None:
    run = await door.rig.started()
    headers = BEARER | ({"last-event-id": seen} if seen else {})
    response = await door.http.get(f"{run.path}/events/stream{query}", headers=headers)
    assert (response.status_code, response.json()["code"]) == (400, "validation_error")


# ---------------------------------------------------------------- comings and goings


async def test_five_hundred_observers_get_everything_and_leave_nothing_behind(door: Served) -> None:
    run = await door.rig.started()
    step_id = await run.proceed()

    async def watched(frames: Frames) -> list[int]:
        return [(await frames.next(seconds=60))["data"]["seq"] for _ in range(5)]

    async with AsyncExitStack() as leaving:
        observers = [await leaving.enter_async_context(door.deltas(run)) for _ in range(500)]
        assert await door.open_streams() == 500
        watching = [asyncio.create_task(watched(frames)) for frames in observers]
        for seq in range(5):
            assert (await publish(run, step_id, seq)).status_code == 204
        assert [await each for each in watching] == [[0, 1, 2, 3, 4]] * 500
    await door.has_streams(0)
    # Nobody hears the execution's deltas any more, and nobody waits for its changes.
    assert door.rig.memory_wakes.channels("deltas.") == []
    assert door.rig.door._changes._waiting == [{} for _ in range(door.rig.settings.shards)]


async def test_a_door_that_closes_ends_its_streams_at_once_and_without_an_end(door: Served) -> None:
    run = await door.rig.started()
    async with AsyncExitStack() as leaving:
        observers = [await leaving.enter_async_context(door.deltas(run)) for _ in range(50)]
        observers += [await leaving.enter_async_context(door.events(run, query="?after_seq=999")) for _ in range(50)]
        async with asyncio.timeout(5):
            await door.rig.door.drain()
        assert [await frames.rest() for frames in observers] == [[]] * 100
    response = await door.http.get(f"{run.path}/stream", headers=BEARER)
    assert response.status_code == 503


async def test_a_stream_ends_with_the_key_that_it_was_asked_for_with(door: Served) -> None:
    key = await make_key(door.rig)
    run = await door.rig.started()
    bearer = {"authorization": f"Bearer {key['key']}"}
    async with (
        opened(door.http, f"{run.path}/stream", bearer) as deltas_of_it,
        opened(door.http, f"{run.path}/events/stream?after_seq=1000", bearer) as events_of_it,
    ):
        revoked = await door.rig.call("DELETE", f"/v0/keys/{key['id']}", key=OPERATOR_KEY)
        assert revoked.status_code == 204
        # The next change, or the next look, finds the key to be over.
        await run.proceed()
        assert [await frames.rest() for frames in (deltas_of_it, events_of_it)] == [[], []]


async def test_more_streams_than_a_tenant_may_have_are_refused(door: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STREAMS_MAX", 2)
    run = await door.rig.started()
    async with door.deltas(run), door.events(run):
        response = await door.http.get(f"{run.path}/stream", headers=BEARER)
        assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    async with door.deltas(run):
        pass
