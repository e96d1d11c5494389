"""A kernel, a provider, and a gateway between them, for agents that use the clients of providers as they are."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI

from stepwell import execution, tool
from stepwell.testing import LocalKernel
from tests.support.gateway import gateway
from tests.support.wait import wait_until_async
from tests.support.wire_provider import NoReply, Reply, WireProvider, wire_provider

KEY = "sk-a-key-that-nobody-may-see"
COMPLETION = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-x-2026",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Grüße 🙂"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    },
    ensure_ascii=False,
).encode()
ERROR = b'{"error":{"message":"no such model","type":"invalid_request_error","param":null,"code":null}}'
ASK = "rules:\n  - id: ask\n    when: {step_kind: llm_call}\n    then: {decision: require_approval}\n"
DENY = "rules:\n  - id: no\n    when: {step_kind: llm_call}\n    then: {decision: deny, reason: too dear}\n"


class Place:
    """A kernel, a provider, and a gateway between them."""

    def __init__(self, kernel: LocalKernel, provider: WireProvider, url: str) -> None:
        self.kernel = kernel
        self.provider = provider
        self.url = url

    async def by_path(self, **options: Any) -> AsyncOpenAI:
        """The provider's client as its users make it, but for the base URL."""
        return AsyncOpenAI(api_key=KEY, base_url=await execution().gateway_url(self.url), **options)

    async def by_headers(self, **options: Any) -> AsyncOpenAI:
        headers = await execution().gateway_headers()
        return AsyncOpenAI(api_key=KEY, base_url=f"{self.url}/v1", default_headers=headers, **options)


@asynccontextmanager
async def place(*replies: Reply | NoReply, **options: Any) -> AsyncIterator[Place]:
    async with (
        wire_provider(*replies) as provider,
        LocalKernel() as kernel,
        gateway(kernel.url, provider.url, **options) as url,
    ):
        yield Place(kernel, provider, url)


async def ask(client: AsyncOpenAI, content: str = "hello") -> dict[str, Any]:
    answer = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": content}])
    return answer.model_dump()


@tool
async def note(answer: Any) -> None:
    """A step after the call, so that the handler is entered again with the call recorded."""


async def recorded(kernel: LocalKernel, execution_id: str) -> None:
    """Return when the one step of an execution has its outcome: until then it may linger with its agent."""

    async def is_recorded() -> bool:
        return [step.status for step in await kernel.client.list_steps(execution_id)] == ["succeeded"]

    await wait_until_async(is_recorded, "the answer to be recorded")
