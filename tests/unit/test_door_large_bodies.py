"""Large bodies are read as small ones are, but never on the event loop."""

import asyncio

import pytest

from kernel.domain.errors import Invalid, Unavailable
from kernel.door.bodies import ERROR_LENIENT, read_body_object
from kernel.door.exchange import Nobody, Request
from kernel.door.large_bodies import READ_AT_ONCE_BYTES_MAX, read_document
from kernel.door.routes import ROUTES

LARGE = READ_AT_ONCE_BYTES_MAX
MANY = 200_000
TURNS_MIN = 10
"""Read on the loop, the body would leave it two: one before and one after."""


def request(body: bytes, *, seconds: float = 10.0) -> Request:
    return Request(
        route=ROUTES[0],
        names=(),
        query=b"",
        headers={},
        body=body,
        caller=Nobody(),
        arrived_at=0,
        deadline=asyncio.get_running_loop().time() + seconds,
    )


@pytest.mark.parametrize("size", [1, LARGE])
async def test_a_body_of_any_size_is_read_alike(size: int) -> None:
    body = rb'{"error":{"text":"%s \ud800"},"n":[1.0,-0,1e2]}' % (b"x" * size)

    document = await read_document(request(body), lenient=ERROR_LENIENT)

    assert document == read_body_object(request(body), lenient=ERROR_LENIENT)
    assert (await read_document(request(b""), is_optional=True)).fields == {}


@pytest.mark.parametrize("size", [1, LARGE])
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
