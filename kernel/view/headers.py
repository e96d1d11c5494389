"""Headers as they come out of the view, with proof that each is the one that was asked for."""

from kernel.domain.errors import InvariantBroken
from schemas.records import Header, decode_header, encode_record

_ARRAY_MARKER_BYTES = 3
"""A header is a msgpack array of more than 15 and less than 65,536 items; id and tenant are the first two."""


def checked_header(raw: bytes, *, tenant: str, execution_id: str) -> Header:
    """Decode a header. Raises InvariantBroken where it is another execution's: no answer may be made from it."""
    check_header(raw, tenant=tenant, execution_id=execution_id)
    return decode_header(raw)


def check_header(raw: bytes, *, tenant: str, execution_id: str) -> None:
    """As `checked_header`, without decoding."""
    if not raw.startswith(encode_record((execution_id, tenant))[1:], _ARRAY_MARKER_BYTES):
        raise InvariantBroken("a read of one execution was answered with another's header")
