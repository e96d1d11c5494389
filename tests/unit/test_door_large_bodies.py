"""Large bodies are read as small ones are, but never on the event loop."""

import asyncio
import threading

import pytest

from kernel.domain.errors import Invalid, Unavailable
from kernel.domain.json_values import Document
from kernel.door.bodies import ERROR_LENIENT, read_body_object
from kernel.door.exchange import Nobody, Principal, Request
from kernel.door.large_bodies import LARGE_BYTES_MAX, READ_AT_ONCE_BYTES_MAX, read_document, read_into
from kernel.door.routes import ROUTES
from tests.support.wait import loop_turns

LARGE, HUGE = READ_AT_ONCE_BYTES_MAX, LARGE_BYTES_MAX
MANY = 200_000
TURNS_MIN = 10
"""Read on the loop, the body would leave it two: one before and one after."""


def request(body: bytes, *, seconds: float = 10.0, tenant: str = "") -> Request:
    return Request(
        route=ROUTES[0],
        names=(),
        query=b"",
        headers={},
        body=body,
        caller=Principal(tenant=tenant, name="key", scopes=frozenset()) if tenant else Nobody(),
        arrived_at=0,
        deadline=asyncio.get_running_loop().time() + seconds,
    )


@pytest.mark.parametrize("size", [1, LARGE, HUGE])
async def test_a_body_of_any_size_is_read_alike(size: int) -> None:
    body = rb'{"error":{"text":"%s \ud800"},"n":[1.0,-0,1e2]}' % (b"x" * size)

    document = await read_document(request(body), lenient=ERROR_LENIENT)

    assert document == read_body_object(request(body), lenient=ERROR_LENIENT)
    assert (await read_document(request(b""), is_optional=True)).fields == {}


@pytest.mark.parametrize("size", [1, LARGE, HUGE])
async def test_a_fault_is_refused_alike(size: int) -> None:
    with pytest.raises(Invalid) as refused:
        await read_document(request(b'{"a":["%s",1e400]}' % (b"x" * size)))

    assert refused.value.path == "a[1]"


async def test_the_loop_goes_on_while_a_large_body_is_read() -> None:
    turns: list[float] = []
    loop = asyncio.get_running_loop()

    def turn() -> None:
        turns.append(loop.time())
        if not reading.done():
            loop.call_soon(turn)

    reading = loop.create_task(read_document(request(b'{"a":[%s-0]}' % (b"-0," * MANY))))
    loop.call_soon(turn)
    document = await reading

    assert len(document.fields["a"].raw) == len(b"[-0]") + MANY * len(b"-0,")
    assert len(turns) > TURNS_MIN


async def test_a_large_body_that_gets_no_turn_in_time_is_not_read() -> None:
    with pytest.raises(Unavailable):
        await read_document(request(b'{"a":"%s"}' % (b"x" * LARGE), seconds=-1.0))


def padded(size: int, name: str) -> bytes:
    return b'{"name":"%s","pad":"%s"}' % (name.encode(), b"x" * size)


async def test_what_is_made_of_a_large_body_is_made_where_it_was_read() -> None:
    threads = {
        size: await read_into(request(padded(size, "a")), lambda _: threading.get_ident()) for size in (1, LARGE, HUGE)
    }

    assert threads[1] == threading.get_ident()
    assert len(set(threads.values())) == len(threads)


async def test_what_cannot_be_made_of_a_body_is_refused_as_what_cannot_be_read() -> None:
    def refuse(_: Document) -> None:
        raise Invalid("no", path="name")

    for size in (1, LARGE, HUGE):
        with pytest.raises(Invalid):
            await read_into(request(padded(size, "a")), refuse)


@pytest.mark.parametrize("size", [LARGE, HUGE])
async def test_tenants_take_turns_and_one_with_many_bodies_waits_behind_its_own(size: int) -> None:
    read: list[str] = []
    go_on = threading.Event()

    def build(document: Document) -> None:
        name = document.fields["name"].plain
        if name == "first":
            assert go_on.wait(10)
        read.append(str(name))

    names = ("first", "many", "many", "many")
    reading = [asyncio.create_task(read_into(request(padded(size, name), tenant="busy"), build)) for name in names]
    await loop_turns()
    reading.append(asyncio.create_task(read_into(request(padded(size, "other"), tenant="quiet"), build)))
    await loop_turns()
    go_on.set()
    await asyncio.gather(*reading)

    assert read.index("other") <= 2
    assert sorted(read) == ["first", "many", "many", "many", "other"]


async def test_a_large_body_does_not_wait_for_a_huge_one() -> None:
    go_on = threading.Event()
    reading = asyncio.create_task(read_into(request(padded(HUGE, "a")), lambda _: go_on.wait(10)))
    await loop_turns()

    assert await read_into(request(padded(LARGE, "b")), lambda document: document.fields["name"].plain) == "b"

    assert not reading.done()
    go_on.set()
    assert await reading
