"""Tools of graphs as steps: what they get and answer, how they fail, and who has to allow them."""

import itertools
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
import pytest_asyncio
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import InjectedToolCallId, ToolException
from langchain_core.tools import tool as langchain_tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command

from stepwell import PolicyError, step
from stepwell.adapters.langgraph import durable
from stepwell.testing import LocalKernel
from stepwell.tools import offloaded
from tests.sdk.langgraph_agents import (
    ASK,
    BOTH_WAYS,
    DENY,
    Effects,
    agent,
    granted,
    handler,
    model_of,
    question,
    told,
)
from tests.sdk.loopback_model import LoopbackModel, Slow
from tests.support.openai_wire import Says
from tests.support.provider import calls, providing, turns
from tests.support.wait import wait_until_async


@pytest_asyncio.fixture
async def kernel() -> AsyncIterator[LocalKernel]:
    async with LocalKernel() as running:
        yield running


# ---------------------------------------------------------------- tools


async def test_a_tool_gets_what_the_graph_injects_and_answers_with_artifacts_and_commands(kernel: LocalKernel) -> None:
    drawn, done = itertools.count(), list[Any]()

    @langchain_tool(response_format="content_and_artifact")
    def look(
        where: str, state: Annotated[dict[str, Any], InjectedState], call: Annotated[str, InjectedToolCallId]
    ) -> tuple[str, Any]:
        """Look somewhere."""
        done.append((where, len(state["messages"]), call.startswith("call_")))
        return f"seen {where}", {"photo": [1, 2]}

    @langchain_tool
    def note(call: Annotated[str, InjectedToolCallId]) -> Any:
        """Note something."""
        done.append("note")
        messages = [ToolMessage(f"noted {next(drawn)}", tool_call_id=call), HumanMessage("and go on", id="known")]
        return Command(update={"messages": messages})

    states: list[Any] = []

    async with providing(turns(calls(("look", {"where": "up"}), ("note", {})), Says("done"))) as provider:

        async def handle() -> list[str]:
            graph = agent(model_of(provider), durable([look, note]))
            states.append(await graph.ainvoke(question("go")))
            await step("pause", lambda: None)
            return told(states[-1])

        run = await granted(kernel, handle, "pause")

    assert run.output == ["go", "", "seen up", "noted 0", "and go on", "done"], run.failure_reason
    assert done in ([("up", 2, True), "note"], ["note", ("up", 2, True)])
    assert sorted((each.target, str(each.args)) for each in run.steps if each.kind == "tool_call") == [
        ("look", "{'where': 'up'}"),
        ("note", "{}"),
    ]
    live, replayed = ([each.model_copy(update={"id": None}) for each in state["messages"]] for state in states)
    assert replayed == live
    assert live[2].artifact == {"photo": [1, 2]}


async def test_an_answer_is_that_of_the_call_which_is_made_now(kernel: LocalKernel) -> None:
    tools = {each.name: each for each in Effects().tools()}

    async def handle() -> list[Any]:
        call_id = str(uuid.uuid4())
        call = {"type": "tool_call", "id": call_id, "name": "high", "args": {"mountain": "Eiger"}}
        message = await tools["high"].ainvoke(call)
        return [message.content, message.name, message.tool_call_id == call_id]

    run = await kernel.run(handle, replay="always")

    assert run.output == ["Eiger: 4808 m", "high", True], run.failure_reason


async def test_a_call_that_a_tool_refuses_is_told_to_the_model_and_is_no_step(kernel: LocalKernel) -> None:
    effects = Effects()
    async with providing(turns(calls(("high", {"height": 3})), Says("sorry"))) as provider:
        run = await kernel.run(handler(lambda: agent(model_of(provider), effects.tools())), replay="always")

    assert "Field required" in run.output[2], run.failure_reason
    assert [each.kind for each in run.steps] == ["llm_call", "llm_call"]
    assert effects.done == []


@BOTH_WAYS
@pytest.mark.parametrize("is_handled", [False, True])
async def test_a_failing_tool_fails_once_and_is_told_as_the_tool_or_the_graph_tells_it(
    is_plain: bool, is_handled: bool, kernel: LocalKernel
) -> None:
    tried: list[str] = []

    @langchain_tool
    def fall(depth: int) -> str:
        """Fall."""
        tried.append("fell")
        raise ToolException(f"fell {depth} m")

    fall.handle_tool_error = is_handled
    async with providing(turns(calls(("fall", {"depth": 3})), Says("ouch"))) as provider:

        def graph() -> Any:
            return agent(model_of(provider), durable([fall]), is_plain=is_plain, handle_tool_errors=True)

        run = await kernel.run(handler(graph, is_plain=is_plain), replay="always")

        provider.assert_asked_once_each(2)
    assert "fell 3 m" in run.output[2], run.failure_reason
    assert (run.output[2] == "fell 3 m") is is_handled
    assert run.output[3] == "ouch"
    assert [each.status for each in run.steps if each.target == "fall"] == ["succeeded" if is_handled else "failed"]
    assert tried == ["fell"]


# ---------------------------------------------------------------- policies and approvals


@BOTH_WAYS
async def test_a_denied_tool_is_told_to_the_model(is_plain: bool, kernel: LocalKernel) -> None:
    effects = Effects()
    tools = effects.tools(is_plain=is_plain)
    async with providing(turns(calls(("high", {"mountain": "Eiger"})), Says("then not"))) as provider:
        handle = handler(lambda: agent(model_of(provider), tools, is_plain=is_plain), is_plain=is_plain)

        run = await kernel.run(handle, policy=DENY.replace("TARGET", "high"), replay="always")

    assert run.output[2:] == ["high not allowed. reason: too steep", "then not"], run.failure_reason
    assert effects.done == []


async def test_a_denied_model_raises(kernel: LocalKernel) -> None:
    async with providing(turns(Says("never"))) as provider:

        async def handle() -> str:
            with pytest.raises(PolicyError, match="too steep"):
                await model_of(provider).ainvoke("hi")
            return "denied"

        run = await kernel.run(handle, policy=DENY.replace("TARGET", "small"))

        assert run.output == "denied", run.failure_reason
        assert not provider.hits


@BOTH_WAYS
@pytest.mark.parametrize(("target", "asked"), [("climb", 1), ("small", 2)])
async def test_what_a_person_has_to_allow_waits_although_the_handler_swallows_every_exception(
    target: str, asked: int, is_plain: bool, kernel: LocalKernel
) -> None:
    effects, swallowed, decided = Effects(), list[Exception](), list[str]()
    tools = effects.tools(is_plain=is_plain)
    async with providing(turns(calls(("climb", {"mountain": "Eiger"})), Says("up there"))) as provider:
        graph = handler(lambda: agent(model_of(provider), tools, is_plain=is_plain), is_plain=is_plain)

        async def handle() -> list[str]:
            try:
                return await offloaded(graph)
            except Exception as error:
                swallowed.append(error)
                raise

        running = await kernel.start(handle, policy=ASK.replace("TARGET", target), replay="always")

        async def is_over() -> bool:
            for approval in await kernel.client.list_approvals():
                if approval.id not in decided:
                    await kernel.client.grant_approval(approval.id)
                    decided.append(approval.id)
            return (await kernel.client.get(running.execution_id)).is_terminal

        await wait_until_async(is_over, "the execution to end", deadline_seconds=30)
        run = await running.wait()

        assert run.output[-1] == "up there", run.failure_reason
        provider.assert_asked_once_each(2)
    assert (len(decided), len(effects.done)) == (asked, 1)
    assert swallowed == []


@pytest.mark.parametrize("beside", ["a tool", "a model", "a streamed model"])
async def test_what_runs_beside_a_step_that_waits_for_a_person_comes_to_its_end_and_is_not_done_again(
    beside: str, kernel: LocalKernel
) -> None:
    done = list[str]()

    async with providing(turns(Says("a deep hole"))) as provider:
        slow = Slow(url=provider.url, disable_streaming=beside == "a model")
        model = durable(slow)

        @langchain_tool
        async def dig() -> str:
            """Dig a hole."""
            done.append("begun")
            return str((await slow.ainvoke("dig")).content)

        @langchain_tool
        async def blast() -> str:
            """Blast a rock."""
            done.append("blast")
            return "no rock"

        tools = {each.name: each for each in durable([dig, blast])}

        async def digs(state: MessagesState) -> dict[str, Any]:
            if beside == "a tool":
                return {"messages": [HumanMessage(await tools["dig"].ainvoke({}))]}
            return {"messages": [HumanMessage("".join([str(each.content) async for each in model.astream("dig")]))]}

        async def blasts(state: MessagesState) -> dict[str, Any]:
            await slow.has_begun.wait()
            return {"messages": [HumanMessage(await tools["blast"].ainvoke({}))]}

        def graph() -> Any:
            built: Any = StateGraph(MessagesState)
            for name, node in (("digs", digs), ("blasts", blasts)):
                built.add_node(name, node)
                built.add_edge(START, name)
            return built.compile()

        running = await kernel.start(handler(graph), policy=ASK.replace("TARGET", "blast"))
        approval = await running.approval()
        slow.may_go_on.set()

        async def is_dug() -> bool:
            steps = await kernel.client.list_steps(running.execution_id)
            return any(each.target != "blast" and each.status == "succeeded" for each in steps)

        await wait_until_async(is_dug, "the hole to be recorded")
        await kernel.client.grant_approval(approval.id)
        run = await running.wait()

        assert sorted(run.output) == ["a deep hole", "go", "no rock"], run.failure_reason
        provider.assert_asked_once_each(1)
    assert done == ["begun"] * (beside == "a tool") + ["blast"]


# ---------------------------------------------------------------- mistakes


async def test_a_model_that_is_called_plainly_on_the_loop_says_so(kernel: LocalKernel) -> None:
    async def handle() -> None:
        with pytest.raises(RuntimeError, match="await ainvoke"):
            durable(LoopbackModel(url="http://127.0.0.1:1")).invoke("hi")

    run = await kernel.run(handle)

    assert run.status == "completed", run.failure_reason


async def test_outside_of_a_handler_nothing_is_called() -> None:
    with pytest.raises(RuntimeError, match="outside of an execution"):
        await durable(LoopbackModel(url="http://127.0.0.1:1")).ainvoke("hi")


def test_what_cannot_be_made_durable_is_refused() -> None:
    model: Any = LoopbackModel(url="http://127.0.0.1:1")

    with pytest.raises(TypeError, match="is no chat model"):
        durable(model.bind_tools([]))
    assert durable(durable(model)).inner is model


def test_a_model_that_hides_in_what_is_made_of_it_is_refused() -> None:
    class Hidden(LoopbackModel):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return RunnableLambda(self.invoke)

    with pytest.raises(TypeError, match="cannot be made durable"):
        durable(Hidden(url="http://127.0.0.1:1")).bind_tools([])
