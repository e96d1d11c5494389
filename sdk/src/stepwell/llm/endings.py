"""Whether a stream of a provider has come to its end, or just stopped: each shape says it in its own way."""

import codecs
import json
from typing import Any, Literal, cast

Shape = Literal["chat", "responses", "messages", "other"]

_RESPONSE_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class Ending:
    """Reads a stream as it comes, cut anywhere, and knows whether it is whole."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self._after_return = False
        self._data: list[str] = []
        self._shape: Shape = "other"
        self._is_finished = False
        self._error = ""

    @property
    def is_finished(self) -> bool:
        """Whether the shape's own finish marker has come: for a consumer the answer is whole now."""
        return self._is_finished

    def feed(self, chunk: bytes) -> str:
        """Take what came, and return it as text: a character that was cut comes with its last byte."""
        text = self._decode(chunk)
        self._lines(text)
        return text

    def trouble(self) -> str:
        """Return what is wrong with the stream now that it has ended; empty where it is whole."""
        self._lines("\n\n")
        if self._error:
            return self._error
        if self._shape == "other" or self._is_finished:
            return ""
        return "the stream ended before its end"

    def _lines(self, text: str) -> None:
        if self._after_return and text.startswith("\n"):
            # The other half of a line end that was cut.
            text = text[1:]
        self._after_return = text.endswith("\r")
        *lines, self._rest = (self._rest + text.replace("\r\n", "\n").replace("\r", "\n")).split("\n")
        for line in lines:
            self._line(line)

    def _line(self, line: str) -> None:
        if line.startswith("data:"):
            self._data.append(line[5:].removeprefix(" "))
        elif not line and self._data:
            self._event("\n".join(self._data))
            self._data = []

    def _event(self, data: str) -> None:
        try:
            found: object = json.loads(data)
        except (ValueError, RecursionError):
            return
        if not isinstance(found, dict):
            return
        event = cast("dict[str, Any]", found)
        kind = event.get("type")
        if isinstance(event.get("choices"), list):
            self._shape = "chat"
            choices = cast("list[Any]", event["choices"])
            self._is_finished |= any(_is_finished(each) for each in choices)
        elif isinstance(kind, str) and kind.startswith("response."):
            self._shape = "responses"
            self._is_finished |= kind in _RESPONSE_ENDS
        elif kind in ("message_start", "message_stop"):
            self._shape = "messages"
            self._is_finished |= kind == "message_stop"
        if kind == "error" or (event.get("error") and kind is None):
            self._error = f"the provider ended the stream with an error: {data[:500]}"


def _is_finished(choice: object) -> bool:
    return isinstance(choice, dict) and bool(cast("dict[str, Any]", choice).get("finish_reason"))
