"""Names of streams, subjects and headers. A subject without a tenant cannot be built."""

import hashlib
from functools import lru_cache

from kernel.domain.errors import InvariantBroken
from kernel.domain.framing import checksum
from kernel.domain.identity import bucket_of
from kernel.ports import Outgoing, Piece
from schemas.ids import TENANT_ID

CONTROL_STREAM = "STEPWELL_CONTROL"
CONTROL_SUBJECTS = "stepwell.control.>"
CONTROL_SUBJECT = "stepwell.control.entries"

MARKS_STREAM = "STEPWELL_MARKS"
MARKS_SUBJECTS = "stepwell.marks.*"

ENTRY_ID_HEADER = "Nats-Msg-Id"
EXECUTION_HEADER = "Stepwell-Execution"
CHECKSUM_HEADER = "Stepwell-Checksum"
REPLY_HEADER = "Stepwell-Reply"

_PREFIXES_MAX = 4096
_SUBJECT_TOKENS = 4
_PREFIX, _BODIES_PREFIX = "stepwell.", "stepwell.bodies."
_HEADER_LINE_BYTES = len(": \r\n")
_HEADER_FRAME_BYTES = len("NATS/1.0\r\n\r\n")


def stream_name(shard: int) -> str:
    return f"STEPWELL_{shard}"


def stream_subjects(shard: int) -> str:
    """All subjects of a shard: one for every tenant and bucket."""
    return f"stepwell.{shard}.*.*"


def bodies_stream(shard: int) -> str:
    return f"STEPWELL_BODIES_{shard}"


def bodies_subjects(shard: int) -> str:
    """All subjects of the bodies beside a shard: one for every tenant and bucket, as of its entries."""
    return f"stepwell.bodies.{shard}.*.*"


def piece_subject(shard: int, tenant: str, execution_id: str) -> str:
    """Return the subject of a piece of a body. Raises InvariantBroken where the tenant is missing or is none."""
    return _BODIES_PREFIX + entry_subject(shard, tenant, execution_id).removeprefix(_PREFIX)


def mark_subject(shard: int) -> str:
    return f"stepwell.marks.{shard}"


def entry_subject(shard: int, tenant: str, execution_id: str) -> str:
    """Return the subject of an entry. Raises InvariantBroken where the tenant is missing or is none."""
    return f"{_subject_prefix(shard, tenant)}{bucket_of(execution_id)}"


def tenant_of(subject: str) -> str:
    """Return the tenant that the subject of an entry or of a piece names, the empty string where it is neither's."""
    if subject.startswith(_BODIES_PREFIX):
        subject = _PREFIX + subject.removeprefix(_BODIES_PREFIX)
    tokens = subject.split(".")
    return tokens[2] if len(tokens) == _SUBJECT_TOKENS else ""


def entry_headers(outgoing: Outgoing) -> dict[str, str]:
    """Return the headers of an entry; the checksum covers them, save for the process that waits."""
    headers = {
        ENTRY_ID_HEADER: _header_text(outgoing.entry_id),
        EXECUTION_HEADER: _header_text(outgoing.execution_id),
        CHECKSUM_HEADER: checksum(
            tenant=outgoing.tenant,
            execution_id=outgoing.execution_id,
            entry_id=outgoing.entry_id,
            payload=outgoing.payload,
        ),
    }
    if outgoing.reply_to:
        headers[REPLY_HEADER] = _header_text(outgoing.reply_to)
    return headers


def as_message(piece: Piece) -> Outgoing:
    """Return a piece as a message. Its id is its entry's and what it holds: put twice for that, it is stored once.

    An entry never finds what was put for another one, which may be about to be removed because nothing refers to it.
    """
    digest = hashlib.sha256(piece.payload).hexdigest()
    return Outgoing(
        shard=piece.shard,
        tenant=piece.tenant,
        execution_id=piece.execution_id,
        entry_id=f"{piece.entry_id}.{digest}",
        payload=piece.payload,
        reply_to="",
    )


def message_bytes(headers: dict[str, str], payload: bytes) -> int:
    """Return the size of a message as the broker counts it, with its headers."""
    lines = sum(len(name) + len(value) + _HEADER_LINE_BYTES for name, value in headers.items())
    return _HEADER_FRAME_BYTES + lines + len(payload)


@lru_cache(maxsize=_PREFIXES_MAX)
def _subject_prefix(shard: int, tenant: str) -> str:
    if TENANT_ID.fullmatch(tenant) is None:
        raise InvariantBroken(f"no subject can be built for the tenant {tenant!r}")
    return f"stepwell.{shard}.{tenant}."


def _header_text(value: str) -> str:
    # The driver would trim and replace in silence, and the checksum would cover what was never written.
    if value == "" or not value.isascii() or not value.isprintable() or " " in value:
        raise InvariantBroken(f"the header value {value!r} cannot be carried unchanged")
    return value
