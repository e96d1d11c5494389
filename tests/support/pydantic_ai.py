"""What the tests of the adapter of Pydantic AI start from: models on loopback, tools that count, handlers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent, AgentRunResult
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from stepwell.adapters.pydantic_ai import durable
from tests.support.provider import Provider, Script, providing

KEY = "sk-of-nobody"
MODELS = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}


@asynccontextmanager
async def modelled(script: Script, wire: str = "responses") -> AsyncIterator[tuple[Provider, Model]]:
    async with providing(script) as provider, AsyncOpenAI(base_url=provider.url, api_key=KEY) as client:
        yield provider, MODELS[wire]("gpt-4o", provider=OpenAIProvider(openai_client=client))


class Effects:
    """What tools have done, and tools that do it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def tools(self) -> list[Callable[..., Any]]:
        async def weather(city: str, days: int = 3) -> str:
            self.done.append(f"weather {city}")
            return f"sun in {city} for {days} days"

        def pay(amount: int) -> dict[str, Any]:
            self.done.append(f"pay {amount}")
            return {"paid": amount}

        return [weather, pay]


def agent_of(model: Model, tools: Any = (), **options: Any) -> Agent[None, Any]:
    given: dict[str, Any] = {"capabilities": [durable()]} | options
    return Agent(model, instructions="be nice", tools=tools, **given)


async def result_of(agent: Agent[None, Any], given: str, *, is_streamed: bool = False) -> AgentRunResult[Any]:
    if not is_streamed:
        return await agent.run(given)
    async with agent.run_stream_events(given) as events:
        async for event in events:
            if event.event_kind == "agent_run_result":
                return event.result
    raise AssertionError("a stream without a result")


def handler(agent: Agent[None, Any], *, is_streamed: bool = False) -> Callable[..., Any]:
    async def handle(question: str) -> Any:
        return (await result_of(agent, question, is_streamed=is_streamed)).output

    return handle
