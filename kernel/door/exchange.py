"""One request and its response, as the door's handlers see them: plain data, made once from the ASGI scope."""

from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from kernel.door.routes import Route

JSON = b"application/json; charset=utf-8"


class Principal(msgspec.Struct, frozen=True, gc=False):
    """Whoever holds a bearer key, or anybody in dev."""

    tenant: str
    name: str
    scopes: frozenset[str]
    key_id: str = ""
    """Empty where the process is set up with the key, and in dev."""


class Signer(msgspec.Struct, frozen=True, gc=False):
    """An agent whose signature verified, in each of these tenants (more than one only where secrets are equal)."""

    agent_id: str
    tenants: tuple[str, ...]


class Nobody(msgspec.Struct, frozen=True):
    """The caller of an open route."""


Caller = Principal | Signer | Nobody


def tenant_of(caller: Caller) -> str:
    """Return the tenant that a request counts for: the first in which its signature verified; empty for nobody."""
    match caller:
        case Principal():
            return caller.tenant
        case Signer():
            return caller.tenants[0]
        case Nobody():
            return ""


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request whose route, size and caller are settled. Everything else about it is still unchecked."""

    route: Route
    names: tuple[bytes, ...]
    """The segments of the path that stand for `{…}`, as received."""
    query: bytes
    headers: dict[bytes, bytes]
    """By lower-case name; the values of a repeated header are joined by a comma."""
    body: bytes
    caller: Caller
    arrived_at: int
    """Unix microseconds."""
    deadline: float
    """On the event loop's clock: when the answer is due."""


class Response(msgspec.Struct, frozen=True, gc=False):
    """A whole answer. 204 carries no body and no content type."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Streamed(msgspec.Struct, frozen=True):
    """An answer that stays open: server-sent events as they come."""

    chunks: AsyncGenerator[bytes]
    tenant: str
    """Whose share of the open streams it takes."""


Handler = Callable[[Request], Awaitable[Response | Streamed]]

REPLAYED = ((b"idempotent-replayed", b"true"),)
NO_CONTENT = Response(status=204)
NO_CONTENT_REPLAYED = Response(status=204, headers=REPLAYED)
