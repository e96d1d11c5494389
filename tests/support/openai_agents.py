"""What the tests of the adapter of the OpenAI Agents SDK start from: models on loopback, tools that count, handlers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import agents
import pytest
from agents import Agent, Model, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI

from tests.support.provider import Provider, Script, providing

KEY = "sk-of-nobody"
MODELS = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}


@pytest.fixture
def without_tracing() -> None:
    """Keep the SDK from sending its traces to the provider."""
    agents.set_tracing_disabled(True)


@asynccontextmanager
async def modelled(script: Script, wire: str = "responses") -> AsyncIterator[tuple[Provider, Model]]:
    async with providing(script) as provider, AsyncOpenAI(base_url=provider.url, api_key=KEY) as client:
        yield provider, MODELS[wire]("gpt-4o", client)


class Effects:
    """What tools have done, and tools that do it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def tools(self) -> list[Any]:
        @function_tool
        async def weather(city: str, days: int = 3) -> str:
            self.done.append(f"weather {city}")
            return f"sun in {city} for {days} days"

        @function_tool
        def pay(amount: int) -> dict[str, Any]:
            self.done.append(f"pay {amount}")
            return {"paid": amount}

        return [weather, pay]


async def final(agent: Agent[Any], given: Any, *, is_streamed: bool = False) -> Any:
    if not is_streamed:
        return (await Runner.run(agent, given)).final_output
    result = Runner.run_streamed(agent, given)
    async for _ in result.stream_events():
        pass
    return result.final_output


def handler(agent: Agent[Any], *, is_streamed: bool = False) -> Callable[..., Any]:
    async def handle(question: str) -> Any:
        return await final(agent, question, is_streamed=is_streamed)

    return handle
