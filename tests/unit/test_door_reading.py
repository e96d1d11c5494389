"""Reading a request off the wire: limits, time, headers, query."""

import asyncio
from typing import Any

import pytest

from kernel.domain.errors import Invalid, TooLarge, Unavailable
from kernel.door.reading import COUNTED_FROM_BYTES, Bodies, ClientGone, header_map, query_map
from tests.support.wait import loop_turns

LIMIT = 10
COUNTED = COUNTED_FROM_BYTES


class Wire:
    """The messages that a server hands over, counted."""

    def __init__(self, *messages: dict[str, Any], hangs: bool = False) -> None:
        self.messages = list(messages)
        self.taken = 0
        self.hangs = hangs

    async def receive(self) -> dict[str, Any]:
        if self.taken == len(self.messages) and self.hangs:
            await asyncio.Event().wait()
        self.taken += 1
        return self.messages[self.taken - 1]


def part(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def read(
    wire: Wire, headers: dict[bytes, bytes], *, seconds: float = 60.0, bodies: Bodies | None = None
) -> bytes:
    task = asyncio.current_task()
    assert task is not None
    deadline = asyncio.get_running_loop().time() + seconds
    return await (bodies or Bodies(LIMIT, held_bytes_max=LIMIT)).read(task, headers, wire.receive, deadline=deadline)


@pytest.mark.parametrize("headers", [{}, {b"content-length": b"0"}])
async def test_no_body_is_read_where_none_is_announced(headers: dict[bytes, bytes]) -> None:
    wire = Wire()
    assert await read(wire, headers) == b""
    assert wire.taken == 0


async def test_a_body_at_the_limit_is_returned_whole() -> None:
    wire = Wire(part(b"01234", more=True), part(b"", more=True), part(b"56789"))
    assert await read(wire, {b"content-length": b"10"}) == b"0123456789"


async def test_a_body_announced_above_the_limit_is_refused_before_anything_is_read() -> None:
    wire = Wire(part(b"01234567890"))
    with pytest.raises(TooLarge):
        await read(wire, {b"content-length": b"11"})
    assert wire.taken == 0


@pytest.mark.parametrize("length", [b"9" * 5000, b"-1", b"x", b"1_0"])
async def test_a_length_that_cannot_be_a_small_one_is_refused(length: bytes) -> None:
    with pytest.raises(TooLarge):
        await read(Wire(), {b"content-length": length})


async def test_a_chunked_body_is_refused_as_soon_as_it_passes_the_limit() -> None:
    wire = Wire(part(b"012345", more=True), part(b"678901", more=True), part(b"never"))
    with pytest.raises(TooLarge):
        await read(wire, {b"transfer-encoding": b"chunked"})
    assert wire.taken == 2


async def test_a_body_that_does_not_arrive_in_time_is_invalid_and_one_that_may_still_come_is_not() -> None:
    bodies = Bodies(LIMIT, held_bytes_max=LIMIT)
    wires = [Wire(part(b"012", more=True), hangs=True) for _ in range(2)]
    late = asyncio.create_task(read(wires[0], {b"content-length": b"10"}, seconds=0.0, bodies=bodies))
    slow = asyncio.create_task(read(wires[1], {b"content-length": b"10"}, bodies=bodies))
    await loop_turns()
    bodies.cut_off_late()
    bodies.cut_off_late()
    with pytest.raises(Invalid):
        await late
    assert not slow.done()
    slow.cancel()
    await asyncio.wait((slow,))
    assert slow.cancelled()
    bodies.cut_off_late()


async def test_a_client_that_leaves_has_no_request() -> None:
    with pytest.raises(ClientGone):
        await read(Wire(part(b"0", more=True), {"type": "http.disconnect"}), {b"content-length": b"10"})


def large(size: int) -> tuple[Wire, dict[bytes, bytes]]:
    """A body of so many bytes in two parts, and the headers that announce it."""
    first = COUNTED // 2
    wire = Wire(part(b"x" * first, more=True), part(b"x" * (size - first)))
    return wire, {b"content-length": b"%d" % size}


async def test_large_bodies_have_so_much_room_together_until_their_requests_are_answered() -> None:
    bodies = Bodies(3 * COUNTED, held_bytes_max=3 * COUNTED)

    async def held(size: int, done: asyncio.Event) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            assert len(await read(*large(size), bodies=bodies)) == size
            await done.wait()
        finally:
            bodies.leave(task)

    done = asyncio.Event()
    first = asyncio.create_task(held(2 * COUNTED, done))
    await loop_turns()
    with pytest.raises(Unavailable):
        await read(*large(COUNTED + 1), bodies=bodies)
    small = Wire(part(b"x" * (COUNTED - 1)))
    assert len(await read(small, {b"transfer-encoding": b"chunked"}, bodies=bodies)) == COUNTED - 1
    second = asyncio.create_task(held(COUNTED, done))
    await loop_turns()
    assert not first.done()
    assert not second.done()
    done.set()
    await asyncio.gather(first, second)

    third = asyncio.create_task(held(3 * COUNTED, done))
    await third


async def test_what_is_only_announced_takes_no_room() -> None:
    bodies = Bodies(2 * COUNTED, held_bytes_max=2 * COUNTED)
    announced = {b"content-length": b"%d" % (2 * COUNTED)}
    waiting = asyncio.create_task(read(Wire(part(b"x", more=True), hangs=True), announced, bodies=bodies))
    await loop_turns()

    assert len(await read(*large(2 * COUNTED), bodies=bodies)) == 2 * COUNTED
    waiting.cancel()
    await asyncio.wait((waiting,))


def test_the_values_of_a_repeated_header_are_joined_and_none_is_dropped() -> None:
    headers = header_map([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    assert headers == {b"a": b"1, 3", b"b": b"2"}


def test_headers_that_are_not_repeated_stay_as_they_are() -> None:
    assert header_map([(b"a", b"1"), (b"b", b"\xe9")]) == {b"a": b"1", b"b": b"\xe9"}


def test_empty_query_values_count_as_absent() -> None:
    assert query_map(b"status=&limit=5&x&after=%C3%A9") == {"limit": "5", "after": "é"}
    assert query_map(b"") == {}


@pytest.mark.parametrize("query", [b"a=%ff", b"a=\xff", b"&".join(b"a=1" for _ in range(100))])
def test_a_query_that_cannot_be_read_is_invalid(query: bytes) -> None:
    with pytest.raises(Invalid):
        query_map(query)
