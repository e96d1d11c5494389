"""A chat model of LangChain that asks a provider on loopback over HTTP, whole or streamed, plainly or on a loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    convert_to_openai_messages,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.output_parsers.openai_tools import parse_tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field


class LoopbackModel(BaseChatModel):
    url: str
    model: str = "small"

    @property
    def _llm_type(self) -> str:
        return "loopback"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        return self.bind(tools=[convert_to_openai_tool(each) for each in tools], **kwargs)

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        with httpx.Client(trust_env=False) as http:
            return _result(http.post(f"{self.url}/chat/completions", json=self._body(messages, kwargs)))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        async with httpx.AsyncClient(trust_env=False) as http:
            return _result(await http.post(f"{self.url}/chat/completions", json=self._body(messages, kwargs)))

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        body = self._body(messages, kwargs) | _STREAMED
        with (
            httpx.Client(trust_env=False) as http,
            http.stream("POST", f"{self.url}/chat/completions", json=body) as response,
        ):
            response.raise_for_status()
            for line in response.iter_lines():
                yield from _chunks(line)

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        body = self._body(messages, kwargs) | _STREAMED
        async with (
            httpx.AsyncClient(trust_env=False) as http,
            http.stream("POST", f"{self.url}/chat/completions", json=body) as response,
        ):
            response.raise_for_status()
            async for line in response.aiter_lines():
                for chunk in _chunks(line):
                    yield chunk

    def _body(self, messages: list[BaseMessage], options: dict[str, Any]) -> dict[str, Any]:
        known = {name: value for name, value in options.items() if name in ("tools", "tool_choice")}
        return {"model": self.model, "messages": convert_to_openai_messages(messages), **known}


class Slow(LoopbackModel):
    """Goes on after its beginning only when it may."""

    has_begun: asyncio.Event = Field(default_factory=asyncio.Event)
    may_go_on: asyncio.Event = Field(default_factory=asyncio.Event)
    has_ended: asyncio.Event = Field(default_factory=asyncio.Event)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        self.has_begun.set()
        await self.may_go_on.wait()
        return await super()._agenerate(*args, **kwargs)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk
            if chunk.message.content:
                self.has_begun.set()
                await self.may_go_on.wait()
        self.has_ended.set()


_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def _result(response: httpx.Response) -> ChatResult:
    response.raise_for_status()
    whole = response.json()
    said, reason = whole["choices"][0]["message"], whole["choices"][0]["finish_reason"]
    message = AIMessage(
        content=said["content"] or "",
        tool_calls=[parse_tool_call(call, return_id=True) for call in said.get("tool_calls", ())],
        response_metadata={"id": whole["id"], "system_fingerprint": whole["system_fingerprint"]},
        usage_metadata=_usage(whole["usage"]),
    )
    generation = ChatGeneration(message=message, generation_info={"finish_reason": reason})
    return ChatResult(generations=[generation], llm_output={"model_name": whole["model"]})


def _usage(usage: dict[str, Any]) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
        total_tokens=usage["total_tokens"],
        input_token_details={"cache_read": usage["prompt_tokens_details"]["cached_tokens"]},
        output_token_details={"reasoning": usage["completion_tokens_details"]["reasoning_tokens"]},
    )


def _chunks(line: str) -> Iterator[ChatGenerationChunk]:
    data = line.removeprefix("data: ")
    if not line.startswith("data: ") or data == "[DONE]":
        return
    event = json.loads(data)
    if event.get("usage"):
        yield ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=_usage(event["usage"])))
    for choice in event["choices"]:
        delta = choice["delta"]
        calls = [
            tool_call_chunk(
                name=call["function"].get("name"),
                args=call["function"]["arguments"],
                id=call.get("id"),
                index=call["index"],
            )
            for call in delta.get("tool_calls", ())
        ]
        message = AIMessageChunk(content=delta.get("content") or "", tool_call_chunks=calls)
        yield ChatGenerationChunk(message=message, generation_info={"finish_reason": choice["finish_reason"]})
