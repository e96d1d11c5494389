"""What of LangChain goes into steps and comes out of them: messages, chunks, commands and their like, as JSON.

Ids that LangChain draws, or a graph for its own messages, are no part of what is asked.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from langchain_core.language_models import LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage, messages_from_dict
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.utils.function_calling import convert_to_json_schema
from langgraph.types import Command, Send

from stepwell.values import decode, encode

CHUNKS_MAX = 100_000
"""Of one streamed answer."""

_UNASKED = {"id", "artifact", "usage_metadata"}
_SECRET = frozenset({"api_key", "headers", "default_headers", "extra_headers"})
"""Options of calls that may hold credentials, which are never recorded."""


def asked(
    params: LangSmithParams, messages: list[BaseMessage], stop: list[str] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what is asked of a model, without credentials. `params` are those that the model names for tracing."""
    named = {"temperature": params.get("ls_temperature"), "max_tokens": params.get("ls_max_tokens"), "stop": stop}
    given = {name: _plain_option(value) for name, value in options.items() if name not in _SECRET}
    known = {name: value for name, value in named.items() if value is not None}
    return {"messages": _conversation(messages), **known, **given}


def _conversation(messages: list[BaseMessage]) -> list[Any]:
    """Return messages as JSON, the ids of tool calls by their order and those of messages left out."""
    names: dict[str, str] = {}
    for message in messages:
        calls = [*message.tool_calls, *message.invalid_tool_calls] if isinstance(message, AIMessage) else []
        ids = [call["id"] for call in calls]
        if isinstance(message, ToolMessage):
            ids.append(message.tool_call_id)
        for each in ids:
            if each is not None:
                names.setdefault(each, f"call_{len(names)}")
    # Defaults are left out, so that a field which a newer LangChain adds changes no step of a running execution.
    return [
        {"type": each.type, **_renamed(each.model_dump(exclude=_UNASKED, exclude_defaults=True), names)}
        for each in messages
    ]


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_renamed(part, names) for part in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    members = cast("dict[str, Any]", value)
    return {
        name: names.get(part, part) if isinstance(part, str) and name.endswith("id") else _renamed(part, names)
        for name, part in members.items()
    }


def _plain_option(value: Any) -> Any:
    """Return an option of a call as JSON: a class stands for the schema of its objects."""
    if isinstance(value, type):
        return convert_to_json_schema(value)
    if isinstance(value, dict):
        return {name: _plain_option(part) for name, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain_option(part) for part in cast("Sequence[Any]", value)]
    return value


# ---------------------------------------------------------------- answers of models


def whole_answer(answer: LLMResult) -> Any:
    """Return the answer to one conversation as JSON."""
    generations = cast("list[ChatGeneration]", answer.generations[0])
    plain = [{"message": _dumped(each.message), "generation_info": each.generation_info} for each in generations]
    usage = _usage([each["message"] for each in plain])
    return {"generations": plain, "llm_output": answer.llm_output, "usage": usage}


def streamed_answer(chunks: list[Any]) -> Any:
    """Return the same of an answer that came in chunks, as `gather` has gathered them."""
    return {"chunks": chunks, "usage": _usage(chunks)}


def read_answer(record: Any) -> ChatResult:
    """Return what `whole_answer` was made of."""
    generations = [
        ChatGeneration(message=_loaded(each["message"]), generation_info=each["generation_info"])
        for each in record["generations"]
    ]
    return ChatResult(generations=generations, llm_output=record["llm_output"])


def gather(gathered: list[Any], chunk: BaseMessage) -> None:
    """Add a chunk of an answer as JSON: what is read before the record exists equals what is read from it."""
    if len(gathered) >= CHUNKS_MAX:
        raise ValueError(f"the answer has more than {CHUNKS_MAX} chunks")
    if not isinstance(chunk, AIMessageChunk):
        # A model that does not stream gives its whole answer as one.
        chunk = AIMessageChunk(**chunk.model_dump(exclude={"type"}), chunk_position="last")
    gathered.append(decode(encode(_dumped(chunk), what="chunk")))


def read_chunk(plain: Any) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=cast("AIMessageChunk", _loaded(plain)))


def _usage(messages: list[Any]) -> dict[str, Any] | None:
    """Return the tokens of messages in the words that the kernel counts by; None where nothing is known of them."""
    known = [each["data"]["usage_metadata"] for each in messages if each["data"].get("usage_metadata")]
    if not known:
        return None
    return {
        "input_tokens": sum(each["input_tokens"] for each in known),
        "output_tokens": sum(each["output_tokens"] for each in known),
        "input_tokens_details": {
            "cached_tokens": sum(each.get("input_token_details", {}).get("cache_read") or 0 for each in known)
        },
        "output_tokens_details": {
            "reasoning_tokens": sum(each.get("output_token_details", {}).get("reasoning") or 0 for each in known)
        },
    }


def _dumped(message: BaseMessage) -> dict[str, Any]:
    return {"type": message.type, "data": message.model_dump(mode="json", exclude_defaults=True)}


def _loaded(plain: Any) -> BaseMessage:
    return messages_from_dict([plain])[0]


# ---------------------------------------------------------------- results of tools


def packed(output: Any, tool_call_id: str | None) -> Any:
    """Return what a tool gave as JSON: a message, a command, or a plain value, also inside of others.

    The id of the call that is answered is left out: it is that of whichever call the record answers.
    """
    pack = partial(packed, tool_call_id=tool_call_id)
    match output:
        case BaseMessage():
            plain = _dumped(output)
            if plain["data"].get("tool_call_id") == tool_call_id:
                plain["data"].pop("tool_call_id", None)
            return {"lc_message": plain}
        case Command():
            command = cast("Command[Any]", output)
            parts = {"graph": command.graph, "update": command.update, "resume": command.resume, "goto": command.goto}
            return {"lc_command": {name: pack(part) for name, part in parts.items()}}
        case Send():
            return {"lc_send": [output.node, pack(output.arg)]}
        case dict():
            members = {name: pack(part) for name, part in cast("dict[Any, Any]", output).items()}
            return {"lc_object": members} if _tag(members) else members
        case list() | tuple():
            return [pack(part) for part in cast("Sequence[Any]", output)]
        case _:
            return output


def unpacked(plain: Any, tool_call_id: str | None) -> Any:
    """Return what `packed` was given, as the answer to a call."""
    unpack = partial(unpacked, tool_call_id=tool_call_id)
    if isinstance(plain, list):
        return [unpack(part) for part in cast("list[Any]", plain)]
    if not isinstance(plain, dict):
        return plain
    members = cast("dict[str, Any]", plain)
    match _tag(members):
        case "lc_message":
            message = members["lc_message"]
            is_answer = message["type"] == "tool" and "tool_call_id" not in message["data"]
            answers = {"tool_call_id": tool_call_id} if is_answer else {}
            return _loaded({"type": message["type"], "data": message["data"] | answers})
        case "lc_command":
            return Command(**{name: unpack(part) for name, part in members["lc_command"].items()})
        case "lc_send":
            node, arg = members["lc_send"]
            return Send(node, unpack(arg))
        case "lc_object":
            return {name: unpack(part) for name, part in members["lc_object"].items()}
        case _:
            return {name: unpack(part) for name, part in members.items()}


def _tag(members: Mapping[Any, Any]) -> str:
    """Return the tag of an object that stands for something else, empty where it is what it looks like."""
    if len(members) != 1:
        return ""
    (name,) = members
    return name if name in ("lc_message", "lc_command", "lc_send", "lc_object") else ""
