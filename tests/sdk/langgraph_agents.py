"""Graphs for tests: a model on loopback, tools that note what they do, and handlers that run a graph either way."""

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as langchain_tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from stepwell.adapters.langgraph import durable
from stepwell.testing import LocalKernel, Run
from tests.sdk.loopback_model import LoopbackModel
from tests.support.provider import Provider

ASK = """
rules:
  - {id: ask, priority: 1, when: {target: TARGET}, then: {decision: require_approval}}
  - {id: rest, priority: 2, when: {target: "*"}, then: {decision: allow}}
"""
DENY = ASK.replace("decision: require_approval", "decision: deny, reason: too steep")

BOTH_WAYS = pytest.mark.parametrize("is_plain", [False, True], ids=["on the loop", "in a thread"])


class Effects:
    """What the tools did."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def tools(self, *, is_plain: bool = False) -> list[BaseTool]:
        @langchain_tool
        def high(mountain: str) -> str:
            """Return how high a mountain is."""
            self.done.append(("high", mountain))
            return f"{mountain}: 4808 m"

        def climb(mountain: str, days: int = 1) -> dict[str, Any]:
            """Climb a mountain."""
            self.done.append(("climb", mountain, days))
            return {"climbed": mountain, "days": days}

        async def aclimb(mountain: str, days: int = 1) -> dict[str, Any]:
            """Climb a mountain."""
            return climb(mountain, days)

        return durable([high, langchain_tool("climb")(climb if is_plain else aclimb)])


def model_of(provider: Provider) -> Any:
    return durable(LoopbackModel(url=provider.url))


def agent(model: Any, tools: list[BaseTool], *, is_plain: bool = False, **options: Any) -> Any:
    """Compile a graph of a model and its tools."""
    bound = model.bind_tools(tools)

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    def ask_plainly(state: MessagesState) -> dict[str, Any]:
        return {"messages": [bound.invoke(state["messages"])]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", ask_plainly if is_plain else ask)
    graph.add_node("tools", ToolNode(tools, **options))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def handler(graph: Callable[[], Any], *, is_plain: bool = False) -> Callable[[], Any]:
    """Return a handler that runs a graph, new in every attempt, and returns what its messages say."""

    async def handle() -> list[str]:
        return told(await graph().ainvoke(question("go")))

    def plain() -> list[str]:
        return told(graph().invoke(question("go")))

    return plain if is_plain else handle


def question(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def told(state: dict[str, Any]) -> list[str]:
    return [str(message.content) for message in state["messages"]]


async def granted(kernel: LocalKernel, handler: Any, target: str) -> Run:
    """Run a handler, and let a person allow what it asks about."""
    running = await kernel.start(handler, policy=ASK.replace("TARGET", target))
    approval = await running.approval()
    await kernel.client.grant_approval(approval.id)
    return await running.wait()
