"""Servers on loopback that behave as a test says: what a webhook may meet."""

import asyncio
import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.wait import loop_turns

Handler = Callable[["Connection"], Awaitable[None]]


class Connection:
    """One accepted connection, as its handler sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sent_bytes = 0
        self.request = b""

    async def read_request(self) -> bytes:
        """Read and keep one request; without a Content-Length it has no body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        lengths = (int(line.partition(b":")[2]) for line in lines if line.lower().startswith(b"content-length:"))
        length = next(lengths, 0)
        self.request = head + await self.reader.readexactly(length)
        return self.request

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.sent_bytes += len(data)

    async def hang_up(self, *, wait_seconds: float | None = None) -> bool:
        """Wait until the other side has gone, or the time is up; return whether it has gone."""
        try:
            async with asyncio.timeout(wait_seconds):
                while await self.reader.read(65536):
                    continue
        except TimeoutError:
            return False
        return True


class Peer:
    """A running server: its port, and every connection it accepted."""

    def __init__(self) -> None:
        self.port = 0
        self.connections: list[Connection] = []
        self.ended = 0
        """Connections whose handler has returned, by itself or because the other side went."""

    @property
    def requests(self) -> list[bytes]:
        return [each.request for each in self.connections if each.request]


@asynccontextmanager
async def peer(
    handler: Handler, *, tls: ssl.SSLContext | None = None, bound: socket.socket | None = None
) -> AsyncIterator[Peer]:
    """Serve connections with `handler`; those still open at the end are dropped.

    `bound` is a socket that has an address and does not listen yet: until now it refused connections.
    """
    found = Peer()
    running: set[asyncio.Task[None]] = set()

    async def serve(connection: Connection) -> None:
        try:
            await handler(connection)
        except (OSError, asyncio.IncompleteReadError):
            # The sender went away, which is what many handlers wait for.
            return
        finally:
            connection.writer.transport.abort()
            found.ended += 1

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        found.connections.append(connection)
        task = asyncio.get_running_loop().create_task(serve(connection))
        running.add(task)
        task.add_done_callback(running.discard)

    bound = bound or refusing()
    server = await asyncio.start_server(accepted, sock=bound, ssl=tls)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        # A connection accepted in the very turn that closes the server would be left without an owner.
        for listener in server.sockets:
            server.get_loop().remove_reader(listener.fileno())
        await loop_turns()
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()


def refusing() -> socket.socket:
    """A socket with an address of its own that refuses connections, until a `peer` serves it."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound


def answering(response: bytes) -> Handler:
    """Return a handler that reads the request, answers with these bytes and waits for the other side to go."""

    async def handler(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(response)
        await connection.hang_up()

    return handler


def self_signed(folder: Path, host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of a server with a fresh certificate for a host, and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain = folder / "certificate.pem"
    secret = folder / "key.pem"
    chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(chain, secret)
    return server, ssl.create_default_context(cafile=str(chain))


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
