"""Which requests are LLM calls, and what of them makes their step."""

import hashlib
import json
from collections.abc import Iterator
from email.message import Message
from typing import Any, cast

import msgspec

PARTS_MAX = 1000
"""Parts of a multipart body; one with more is passed through unrecorded."""


class LlmCall(msgspec.Struct, frozen=True):
    """A request as a step: its model, and its whole body as JSON."""

    target: str
    args: Any
    is_streamed: bool
    """Whether the request itself asks for a stream."""


def call_of(content_type: str, body: bytes) -> LlmCall | None:
    """Return what a request's body makes of it; None where it is neither a JSON object nor a multipart body."""
    # Nearly all are JSON, and to read the header takes longer than their body.
    if content_type.lstrip().lower().startswith("multipart/"):
        kind = _media_type(content_type)
        parts = _parts(kind.get_boundary(), body)
        return None if parts is None else LlmCall(_model_of(parts), [described for described, _ in parts], False)
    try:
        found: object = json.loads(body) if body else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    members = cast("dict[str, Any]", found)
    model = members.get("model")
    return LlmCall(model if isinstance(model, str) else "", members, members.get("stream") is True)


Part = tuple[dict[str, Any], bytes]


def _parts(boundary: str | None, body: bytes) -> list[Part] | None:
    """Return every part, described by what does not depend on the boundary, and its content."""
    if not boundary:
        return None
    found: list[Part] = []
    for raw in _split(b"--" + boundary.encode("latin-1", "replace"), body):
        head, separator, content = raw.partition(b"\r\n\r\n")
        if not separator or len(found) >= PARTS_MAX:
            return None
        disposition, kind = _headers(head)
        described = {
            "name": disposition.get_param("name", header="content-disposition"),
            "filename": disposition.get_filename(),
            "content_type": kind,
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
        }
        found.append((described, content))
    return found or None


def _split(delimiter: bytes, body: bytes) -> Iterator[bytes]:
    """Give what stands between the delimiters. A line break belongs to the delimiter that follows it."""
    pieces = (b"\r\n" + body).split(b"\r\n" + delimiter)
    for piece in pieces[1:]:
        if piece.startswith(b"--"):
            return
        yield piece.lstrip(b" \t").removeprefix(b"\r\n")


def _headers(head: bytes) -> tuple[Message, str | None]:
    message = Message()
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        # As it was sent: file names are UTF-8 more often than not.
        message[name.decode("latin-1").strip()] = value.decode("utf-8", "replace").strip()
    content_type = message.get("content-type")
    return message, content_type


def _model_of(parts: list[Part]) -> str:
    for described, content in parts:
        if described["name"] == "model" and described["filename"] is None:
            return content.decode("utf-8", "replace")
    return ""


def _media_type(content_type: str) -> Message:
    message = Message()
    message["content-type"] = content_type
    return message
