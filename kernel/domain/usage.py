"""Token counts out of the record of an LLM call: what the provider said of it, whole or as a stream.

The shapes are those of OpenAI's chat completions, responses and embeddings, and of Anthropic's messages. What is in no
shape says nothing; nothing here raises, whatever a provider or a proxy sent.
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias, cast

import msgspec

from kernel.domain.canonical import Plain
from schemas.bodies import Usage

TOKENS_MAX = 10**12
"""Per count of one step: the sum over every step of an execution still fits the record."""
EVENTS_MAX = 100_000
"""Events of one stream that are looked at; a longer stream says nothing."""

_WORD = '"usage"'
_Members: TypeAlias = Mapping[str, object]


def recorded_usage(result: Plain) -> Usage | None:
    """Return the counts that the record of an LLM call holds, None where it is no record or names none."""
    if not isinstance(result, dict):
        return None
    body, headers = result.get("body"), result.get("headers")
    if not isinstance(body, str) or not isinstance(headers, dict) or _WORD not in body:
        return None
    content_type = headers.get("content-type")
    is_stream = isinstance(content_type, str) and content_type.lower().startswith("text/event-stream")
    found: dict[str, object] = {}
    for text in _data(body) if is_stream else (body,):
        # Counts come piece by piece, and a later one replaces an earlier one: they are totals so far.
        found |= {name: count for name, count in _usage_of(text).items() if count is not None}
    return _counted(found) if found else None


def _data(stream: str) -> Iterator[str]:
    """Give the data of every event that speaks of usage, its lines joined."""
    lines: list[str] = []
    # Only these end a line here; `splitlines` knows others, which JSON may hold.
    for number, line in enumerate(stream.replace("\r\n", "\n").replace("\r", "\n").split("\n")):
        if number > EVENTS_MAX * 4:
            return
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif not line and lines:
            text = "\n".join(lines)
            lines = []
            if _WORD in text:
                yield text
    if lines:
        yield "\n".join(lines)


def _usage_of(text: str) -> _Members:
    try:
        document: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return {}
    top = _members(document)
    for place in (top, _members(top.get("response")), _members(top.get("message"))):
        usage = _members(place.get("usage"))
        if usage:
            return usage
    return {}


def _counted(usage: _Members) -> Usage:
    read_cached, cache_written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
    # Anthropic counts what was read from its cache, or written to it, beside the input and not within it.
    input_tokens = _count(usage, "input_tokens", "prompt_tokens") + read_cached + cache_written
    output_tokens = _count(usage, "output_tokens", "completion_tokens")
    inputs = _members(usage.get("input_tokens_details") or usage.get("prompt_tokens_details"))
    outputs = _members(usage.get("output_tokens_details") or usage.get("completion_tokens_details"))
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens or _count(usage, "total_tokens"),
        cached_tokens=read_cached or _count(inputs, "cached_tokens"),
        reasoning_tokens=_count(outputs, "reasoning_tokens"),
    )


def _count(usage: _Members, *names: str) -> int:
    for name in names:
        value = usage.get(name)
        # True and False are integers in Python alone.
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= TOKENS_MAX:
            return value
    return 0


def _members(value: object) -> _Members:
    return cast("_Members", value) if isinstance(value, dict) else {}
