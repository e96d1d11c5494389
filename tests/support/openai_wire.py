"""OpenAI's wire formats, chat completions and responses: what a request asks, and answers, whole or streamed."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import msgspec

PIECE = 4
"""Characters of text or of arguments in one streamed event."""


class Says(msgspec.Struct, frozen=True):
    """The model's word. One that is cut ends in the middle where it is streamed."""

    text: str
    is_cut: bool = False


class Calls(msgspec.Struct, frozen=True):
    """The model wants tools: their names and arguments, text that is no JSON included."""

    tools: tuple[tuple[str, Any], ...]


Turn = Says | Calls


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request, as far as an answer may depend on it."""

    instructions: str
    turn: int
    """How often the model has answered in this conversation."""
    outputs: tuple[str, ...]
    """What the tools returned so far."""
    tools: tuple[str, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: a turn with what a provider makes up for it."""

    turn: Turn
    number: int
    created: int
    model: str

    def calls(self) -> Iterator[tuple[int, str, str, str]]:
        """Yield place, id, name and arguments of each call."""
        if isinstance(self.turn, Calls):
            for at, (name, arguments) in enumerate(self.turn.tools):
                text = arguments if isinstance(arguments, str) else json.dumps(arguments)
                yield at, f"call_{self.number}_{at}", name, text


# ---------------------------------------------------------------- chat completions


def read_chat(body: dict[str, Any]) -> Asked:
    messages = body["messages"]
    system = [message["content"] for message in messages if message["role"] in ("system", "developer")]
    return Asked(
        instructions="\n".join(str(text) for text in system),
        turn=sum(message["role"] == "assistant" for message in messages),
        outputs=tuple(str(message["content"]) for message in messages if message["role"] == "tool"),
        tools=tuple(tool["function"]["name"] for tool in body.get("tools", ())),
    )


def chat_completion(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "annotations": []}
    if isinstance(answer.turn, Says):
        message["content"] = answer.turn.text
    else:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for _, call_id, name, arguments in answer.calls()
        ]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}
    return _chat(answer, "chat.completion") | {"choices": [choice], "usage": _chat_usage()}


def chat_stream(answer: Answer, *, has_usage: bool) -> Iterator[str]:
    """Yield the lines of a stream, its end included unless it is cut."""

    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _data(_chat(answer, "chat.completion.chunk") | {"choices": [choice]})

    yield chunk({"role": "assistant", "content": None, "refusal": None})
    if isinstance(answer.turn, Says):
        yield from (chunk({"content": piece}) for piece in _pieces(answer.turn.text))
        if answer.turn.is_cut:
            return
    for at, call_id, name, arguments in answer.calls():
        begun = {"index": at, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        yield chunk({"tool_calls": [begun]})
        for piece in _pieces(arguments):
            yield chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
    yield chunk({}, _finish(answer))
    if has_usage:
        yield _data(_chat(answer, "chat.completion.chunk") | {"choices": [], "usage": _chat_usage()})
    yield "data: [DONE]\n\n"


def _chat(answer: Answer, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.number}",
        "object": kind,
        "created": answer.created,
        "model": answer.model,
        "service_tier": "default",
        "system_fingerprint": f"fp_{answer.number}",
    }


def _finish(answer: Answer) -> str:
    return "stop" if isinstance(answer.turn, Says) else "tool_calls"


def _chat_usage() -> dict[str, Any]:
    return {
        "prompt_tokens": 11,
        "completion_tokens": 7,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 2,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


# ---------------------------------------------------------------- responses


def read_response(body: dict[str, Any]) -> Asked:
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    # Everything that the model says at once is one turn, whatever number of items it has.
    is_models = [item.get("type") == "function_call" or item.get("role") == "assistant" for item in items]
    return Asked(
        instructions=str(body.get("instructions") or ""),
        turn=sum(is_model for is_model, _ in itertools.groupby(is_models)),
        outputs=tuple(str(item["output"]) for item in items if item.get("type") == "function_call_output"),
        tools=tuple(str(tool.get("name", tool["type"])) for tool in body.get("tools", ())),
    )


def response(answer: Answer) -> dict[str, Any]:
    return _response(answer, "completed", _items(answer))


def response_stream(answer: Answer) -> Iterator[str]:
    """Yield the lines of a stream, its end included unless it is cut."""
    numbers = itertools.count()

    def event(kind: str, **members: Any) -> str:
        body = {"type": kind, "sequence_number": next(numbers), **members}
        return f"event: {kind}\n{_data(body)}"

    begun = _response(answer, "in_progress", [])
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    items = _items(answer)
    for at, item in enumerate(items):
        is_text = item["type"] == "message"
        empty = {"content": []} if is_text else {"arguments": ""}
        yield event("response.output_item.added", output_index=at, item=item | {"status": "in_progress"} | empty)
        place = {"item_id": item["id"], "output_index": at}
        if is_text:
            part, place = item["content"][0], place | {"content_index": 0}
            yield event("response.content_part.added", part=part | {"text": ""}, **place)
            for piece in _pieces(part["text"]):
                yield event("response.output_text.delta", delta=piece, logprobs=[], **place)
            if isinstance(answer.turn, Says) and answer.turn.is_cut:
                return
            yield event("response.output_text.done", text=part["text"], logprobs=[], **place)
            yield event("response.content_part.done", part=part, **place)
        else:
            for piece in _pieces(item["arguments"]):
                yield event("response.function_call_arguments.delta", delta=piece, **place)
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield event("response.function_call_arguments.done", **done, **place)
        yield event("response.output_item.done", output_index=at, item=item)
    yield event("response.completed", response=_response(answer, "completed", items))


def _items(answer: Answer) -> list[dict[str, Any]]:
    if isinstance(answer.turn, Says):
        part = {"type": "output_text", "text": answer.turn.text, "annotations": [], "logprobs": []}
        message = {"id": f"msg_{answer.number}", "type": "message", "status": "completed", "role": "assistant"}
        return [message | {"content": [part]}]
    return [
        {
            "id": f"fc_{answer.number}_{at}",
            "type": "function_call",
            "status": "completed",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
        }
        for at, call_id, name, arguments in answer.calls()
    ]


def _response(answer: Answer, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    usage = {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 18,
    }
    return {
        "id": f"resp_{answer.number}",
        "object": "response",
        "created_at": answer.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "model": answer.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage if status == "completed" else None,
        "user": None,
        "metadata": {},
    }


def _data(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + PIECE] for at in range(0, len(text), PIECE))
