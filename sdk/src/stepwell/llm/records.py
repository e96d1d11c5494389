"""What is recorded of a provider's answer, and the answer that a record makes again."""

import base64
import binascii
import json
from typing import Any, cast

import msgspec

EVENT_STREAM = "text/event-stream"
JSON = "application/json"
SHOULD_RETRY = {"x-should-retry": "false"}
"""Tells a provider's SDK that this answer is final: what could be tried again has been, within the step."""
BASE64 = "base64"


class Answer(msgspec.Struct, frozen=True):
    """A whole answer of a provider, its content encoding undone."""

    status: int
    content_type: str
    body: bytes

    @property
    def is_stream(self) -> bool:
        return is_event_stream(self.content_type)

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that it is handed on with, live and on replay."""
        return ({"content-type": self.content_type} if self.content_type else {}) | SHOULD_RETRY


def is_event_stream(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == EVENT_STREAM


def record_of(answer: Answer) -> dict[str, Any]:
    """Return the record: the body as text, or base64 where it is none. No other header is kept: they hold secrets."""
    record: dict[str, Any] = {"status": answer.status, "headers": {"content-type": answer.content_type}}
    try:
        return record | {"body": answer.body.decode()}
    except UnicodeDecodeError:
        return record | {"body": base64.b64encode(answer.body).decode(), "body_encoding": BASE64}


def answer_of(record: Any) -> Answer:
    """Return the answer of a record. Raises ValueError for what is none."""
    members = cast("dict[str, Any]", record) if isinstance(record, dict) else {}
    status, headers, body = members.get("status"), members.get("headers"), members.get("body")
    if not isinstance(status, int) or not isinstance(body, str):
        raise ValueError("the recorded result of this step is no answer of a provider")  # noqa: TRY004 - of bad data
    content_type = cast("dict[str, Any]", headers).get("content-type") if isinstance(headers, dict) else ""
    is_text = members.get("body_encoding") != BASE64
    try:
        raw = body.encode() if is_text else base64.b64decode(body, validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise ValueError("the recorded body of this step cannot be read") from error
    return Answer(status, content_type if isinstance(content_type, str) else "", raw)


def failure(message: str) -> Answer:
    """Return the answer of a call that has none: its step failed."""
    return error_answer(502, "provider_unreachable", message)


def error_answer(status: int, kind: str, message: str) -> Answer:
    """Return an error in the shape that every provider's SDK reads."""
    return Answer(status, JSON, json.dumps({"error": {"type": kind, "message": message}}).encode())
