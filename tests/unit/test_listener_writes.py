"""Answers leave in one piece, and nothing that was written is lost when the connection ends."""

import asyncio
from collections.abc import Iterable

from kernel.listener import JoinedWrites
from tests.support.wait import loop_turns


class Wire(asyncio.Transport):
    """Remembers what was sent, each piece apart, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.is_closed = False

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.pieces.append(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


def joined(wire: Wire) -> JoinedWrites:
    return JoinedWrites(wire, asyncio.get_running_loop())


async def test_what_is_written_in_one_turn_of_the_loop_leaves_in_one_piece() -> None:
    wire = Wire()
    transport = joined(wire)

    transport.write(b"head ")
    transport.write(b"body")
    await loop_turns(2)
    transport.write(b"next")
    await loop_turns(2)

    assert wire.pieces == [b"head body", b"next"]


async def test_what_was_written_before_a_close_leaves_before_it() -> None:
    wire = Wire()
    transport = joined(wire)

    transport.write(b"refusal")
    transport.close()
    await loop_turns(2)

    assert wire.pieces == [b"refusal"]
    assert wire.is_closed


async def test_nothing_is_written_to_a_connection_that_was_aborted_meanwhile() -> None:
    wire = Wire()
    transport = joined(wire)

    transport.write(b"too late")
    wire.abort()
    await loop_turns(2)

    assert wire.pieces == []
