"""The links do what they are told, or the faults of a run would meet nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.fault.links import Link
from tests.support.peers import Connection, Peer, peer
from tests.support.wait import wait_until_async

CONNECTIONS = 16
TEXT = b"0123456789" * 10


@pytest.fixture
async def echo() -> AsyncIterator[Peer]:
    async def answer(connection: Connection) -> None:
        while chunk := await connection.reader.read(65536):
            await connection.send(chunk)

    async with peer(answer) as server:
        yield server


@pytest.fixture
async def link(echo: Peer, seed: int) -> AsyncIterator[Link]:
    link = Link(seed)
    await asyncio.to_thread(link.start, echo.port)
    yield link
    await asyncio.to_thread(link.stop)


class Client:
    """One connection through the link, and what has come back on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.received = b""
        self.is_closed = False

    async def read(self) -> None:
        try:
            while chunk := await self.reader.read(65536):
                self.received += chunk
        except ConnectionError:
            # An abort may arrive as a reset: the connection is over either way.
            self.is_closed = True
        self.is_closed = True


async def clients(link: Link, group: asyncio.TaskGroup) -> list[Client]:
    found = [Client(*await asyncio.open_connection("127.0.0.1", link.port)) for _ in range(CONNECTIONS)]
    for client in found:
        group.create_task(client.read())
        client.writer.write(b".")
    await wait_until_async(lambda: all(client.received == b"." for client in found), "all connections to work")
    return found


async def test_a_silent_link_holds_back_some_connections_and_lets_go_what_it_held(link: Link) -> None:
    async with asyncio.TaskGroup() as group:
        found = await clients(link, group)
        link.begin("silent")
        for client in found:
            client.writer.write(TEXT)
        await wait_until_async(lambda: link.harmed, "the link to hold something back")
        await wait_until_async(
            lambda: link.harmed + sum(len(client.received) > 1 for client in found) == CONNECTIONS, "the others to pass"
        )
        held = link.harmed
        link.end(drop=False)
        await wait_until_async(lambda: all(client.received == b"." + TEXT for client in found), "all of it to arrive")
        for client in found:
            client.writer.transport.abort()

    assert 0 < held < CONNECTIONS


async def test_a_cut_link_ends_some_connections_in_the_middle_of_a_piece(link: Link) -> None:
    async with asyncio.TaskGroup() as group:
        found = await clients(link, group)
        link.begin("cut")
        for client in found:
            client.writer.write(TEXT)
        await wait_until_async(
            lambda: sum(client.is_closed or len(client.received) > 1 for client in found) == CONNECTIONS,
            "every connection to be cut or passed",
        )
        link.end(drop=False)
        cut = [client for client in found if client.is_closed]
        passed = [client for client in found if not client.is_closed]
        for client in found:
            client.writer.transport.abort()

    assert cut
    assert all(len(client.received) < len(TEXT) for client in cut)
    assert all(client.received == b"." + TEXT for client in passed)


async def test_an_end_with_a_drop_closes_what_trouble_had_met(link: Link) -> None:
    async with asyncio.TaskGroup() as group:
        found = await clients(link, group)
        link.begin("silent")
        link.end(drop=True)
        await wait_until_async(lambda: any(client.is_closed for client in found), "a connection to be dropped")
        for client in found:
            client.writer.transport.abort()
