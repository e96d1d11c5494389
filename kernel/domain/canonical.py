"""Writing JSON: the canonical form, which is hashed and compared, and the record form, which is kept and answered.

Both take the trees that `json_values` reads and write every number literal as it was sent. Nothing here judges a value.
"""

import hashlib
import re
from typing import TypeAlias

import msgspec

# A number is an `int` where its literal is exactly what Python would write; every other literal (`1.0`, `1e2`, `-0`)
# stays text in a `Raw`, because a float would lose digits and spelling.
Plain: TypeAlias = "bool | int | str | msgspec.Raw | list[Plain] | dict[str, Plain] | None"

_Piece: TypeAlias = "Plain | bytes"

_AS_SENT = msgspec.json.Encoder()
# Sorts members by the UTF-8 bytes of their names.
_SORTED = msgspec.json.Encoder(order="sorted")

# These characters occur only inside strings, so they can be replaced in the finished text.
_ASCII_ESCAPES = ((b"<", rb"\u003c"), (b">", rb"\u003e"), (b"&", rb"\u0026"))
# U+2028 and U+2029. The pattern begins with one byte alone and looks at the others from there, which the search is
# several times faster for.
_SEPARATOR = re.compile(rb"\xe2(?=\x80[\xa8\xa9])")
_OTHER_ESCAPES = (("\u2028".encode(), rb"\u2028"), ("\u2029".encode(), rb"\u2029"))


def canonical_bytes(tree: Plain) -> bytes:
    """Return the canonical JSON of a tree: equal bytes exactly for equal values with equal number literals."""
    written = _encode(_SORTED, tree)
    for character, escape in _ASCII_ESCAPES:
        written = written.replace(character, escape)
    if b"\xe2" in written and _SEPARATOR.search(written):
        for character, escape in _OTHER_ESCAPES:
            written = written.replace(character, escape)
    return written


def record_bytes(tree: Plain) -> bytes:
    """Return the compact JSON of a tree with its members in the order in which they were sent."""
    return _encode(_AS_SENT, tree)


def args_hash(canonical: bytes) -> str:
    """Return the 64 hex digits that name arguments, from their canonical JSON."""
    return hashlib.sha256(canonical).hexdigest()


def _encode(encoder: msgspec.json.Encoder, tree: Plain) -> bytes:
    try:
        return encoder.encode(tree)
    except RecursionError:
        # The caller stands deep in its own stack; a value within the depth limit is written all the same.
        return _encode_without_stack(encoder, tree)


def _encode_without_stack(encoder: msgspec.json.Encoder, tree: Plain) -> bytes:
    """Write what the encoder writes, holding what is still to be written in a list instead of on the stack."""
    parts: list[bytes] = []
    pending: list[_Piece] = [tree]
    while pending:
        item = pending.pop()
        if isinstance(item, bytes):
            parts.append(item)
        elif isinstance(item, list):
            pending.extend(reversed(_separated(b"[", [(b"", value) for value in item], b"]")))
        elif isinstance(item, dict):
            names = sorted(item) if encoder is _SORTED else list(item)
            pending.extend(reversed(_separated(b"{", [(encoder.encode(n) + b":", item[n]) for n in names], b"}")))
        else:
            parts.append(encoder.encode(item))
    return b"".join(parts)


def _separated(opener: bytes, members: list[tuple[bytes, Plain]], closer: bytes) -> list[_Piece]:
    pieces: list[_Piece] = [opener]
    for index, (prefix, value) in enumerate(members):
        pieces += (b"," + prefix if index else prefix, value)
    pieces.append(closer)
    return pieces
