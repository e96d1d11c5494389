"""Graphs of LangGraph inside of handlers: models are steps, and what is replayed equals what was answered."""

import asyncio
import itertools
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import RetryPolicy
from pydantic import BaseModel

from stepwell import ToolError, Usage, step
from stepwell.adapters.langgraph import durable
from stepwell.testing import Divergence, LocalKernel, Replay
from tests.sdk.langgraph_agents import BOTH_WAYS, Effects, agent, granted, handler, model_of, question
from tests.sdk.loopback_model import Slow
from tests.support.openai_wire import Says
from tests.support.provider import Script, calls, providing, turns

TRIP: Script = turns(
    calls(("high", {"mountain": "Mont Blanc"}), ("climb", {"mountain": "Mont Blanc", "days": 2})),
    calls(("high", {"mountain": "Eiger"})),
    Says("Both were climbed."),
)


@pytest_asyncio.fixture
async def kernel() -> AsyncIterator[LocalKernel]:
    async with LocalKernel() as running:
        yield running


# ---------------------------------------------------------------- graphs


@BOTH_WAYS
async def test_a_graph_that_is_entered_after_every_step_asks_and_does_everything_once(
    is_plain: bool, kernel: LocalKernel
) -> None:
    effects = Effects()
    tools = effects.tools(is_plain=is_plain)
    async with providing(TRIP) as provider:
        handle = handler(lambda: agent(model_of(provider), tools, is_plain=is_plain), is_plain=is_plain)

        run = await kernel.run(handle, replay="always")

        assert run.status == "completed", run.failure_reason
        provider.assert_asked_once_each(3)
    assert run.output == [
        *("go", "", "Mont Blanc: 4808 m", '{"climbed": "Mont Blanc", "days": 2}'),
        *("", "Eiger: 4808 m", "Both were climbed."),
    ]
    assert sorted(effects.done) == [("climb", "Mont Blanc", 2), ("high", "Eiger"), ("high", "Mont Blanc")]
    assert [each.target for each in run.steps if each.kind == "llm_call"] == ["small"] * 3
    assert [each.args for each in run.steps if each.target == "climb"] == [{"mountain": "Mont Blanc", "days": 2}]


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_the_prebuilt_agent_asks_and_does_everything_once(version: Any, kernel: LocalKernel) -> None:
    effects = Effects()
    async with providing(TRIP) as provider:
        handle = handler(lambda: create_react_agent(model_of(provider), effects.tools(), version=version))

        run = await kernel.run(handle, replay="always")

        assert (run.status, run.output[-1]) == ("completed", "Both were climbed."), run.failure_reason
        provider.assert_asked_once_each(3)
    assert len(effects.done) == 3


@BOTH_WAYS
async def test_parallel_branches_are_steps_beside_each_other(is_plain: bool, kernel: LocalKernel) -> None:
    async with providing(lambda asked: Says(f"about {asked.instructions}")) as provider:
        model = model_of(provider)

        def branch(topic: str) -> Any:
            async def ask(state: MessagesState) -> dict[str, Any]:
                return {"messages": [await model.ainvoke([("system", topic)])]}

            def ask_plainly(state: MessagesState) -> dict[str, Any]:
                return {"messages": [model.invoke([("system", topic)])]}

            return ask_plainly if is_plain else ask

        def graph() -> Any:
            built: Any = StateGraph(MessagesState)
            for topic in ("rain", "snow", "wind"):
                built.add_node(topic, branch(topic))
                built.add_edge(START, topic)
            return built.compile()

        run = await kernel.run(handler(graph, is_plain=is_plain), replay="always")

        assert run.output == ["go", "about rain", "about snow", "about wind"], run.failure_reason
        provider.assert_asked_once_each(3)


async def test_a_node_that_is_tried_again_makes_a_step_of_every_try(kernel: LocalKernel) -> None:
    async with providing(turns(Says("at last"))) as provider:
        provider.faults = iter([503])
        model = model_of(provider)
        policy = RetryPolicy(initial_interval=0, retry_on=ToolError, jitter=False)

        async def ask(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        def graph() -> Any:
            built: Any = StateGraph(MessagesState)
            built.add_node("ask", ask, retry_policy=policy)
            built.add_edge(START, "ask")
            return built.compile()

        run = await kernel.run(handler(graph), replay="always")

        assert run.output == ["go", "at last"], run.failure_reason
        assert [each.status for each in run.steps] == ["failed", "succeeded"]
        provider.assert_asked_once_each(1)
        assert provider.refused == 1


# ---------------------------------------------------------------- answers


@BOTH_WAYS
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_is_replayed_equals_what_was_answered(
    is_plain: bool, is_streamed: bool, kernel: LocalKernel
) -> None:
    seen: list[list[Any]] = []
    async with providing(turns(calls(("high", {"mountain": "Mönch"}), ("climb", {})))) as provider:
        model = model_of(provider)

        async def handle() -> None:
            seen.append([each async for each in model.astream("hi")] if is_streamed else [await model.ainvoke("hi")])
            await step("pause", lambda: None)

        def plain() -> None:
            seen.append(list(model.stream("hi")) if is_streamed else [model.invoke("hi")])
            step("pause", lambda: None)

        run = await granted(kernel, plain if is_plain else handle, "pause")

        assert run.status == "completed", run.failure_reason
        provider.assert_asked_once_each(1)
    live, replayed = seen
    assert replayed == live
    assert [type(each) for each in replayed] == [type(each) for each in live]
    whole: Any = live[0] if not is_streamed else sum(live[1:], start=live[0])
    assert [(each["name"], each["args"]) for each in whole.tool_calls] == [
        ("high", {"mountain": "Mönch"}),
        ("climb", {}),
    ]
    assert whole.id.startswith("lc_run-")
    assert whole.usage_metadata["total_tokens"] == 18
    assert (len(live) > 5) is is_streamed
    assert run.execution.usage == Usage(11, 7, 18, cached_tokens=3, reasoning_tokens=2)


async def test_words_are_read_before_the_answer_is_whole_and_a_reader_that_leaves_cuts_nothing(
    kernel: LocalKernel,
) -> None:
    async with providing(turns(Says("a long answer"))) as provider:
        slow = Slow(url=provider.url)
        model = durable(slow)

        async def handle() -> str:
            text = ""
            async for chunk in model.astream("hi"):
                text += str(chunk.content)
                if text:
                    break
            slow.may_go_on.set()
            await slow.has_ended.wait()
            await model.ainvoke("something else")
            return text

        run = await kernel.run(handle)

        assert run.output == "a lo", run.failure_reason
        provider.assert_asked_once_each(2)
    assert (
        "".join(chunk["data"]["content"] for chunk in json.loads(run.steps[0].result["body"])["chunks"])
        == "a long answer"
    )


@pytest.mark.parametrize("replay", ["needed", "always"])
async def test_a_graph_that_streams_tells_every_word_once(replay: Replay, kernel: LocalKernel) -> None:
    async with providing(turns(Says("one two three"))) as provider:

        async def handle() -> list[str]:
            graph = agent(model_of(provider), Effects().tools())
            stream = graph.astream(question("count"), stream_mode="messages")
            return [message.content async for message, _ in stream if message.content]

        run = await kernel.run(handle, replay=replay)

        assert "".join(run.output) == "one two three", run.failure_reason
        assert len(run.output) == 4
        provider.assert_asked_once_each(1)


async def test_ids_that_are_drawn_anew_make_no_other_step(kernel: LocalKernel) -> None:
    async with providing(turns(Says("first"), Says("second"))) as provider:
        model = model_of(provider)

        async def handle() -> list[Any]:
            call_id = str(uuid.uuid4())
            messages: list[AnyMessage] = [
                HumanMessage("hi", id=str(uuid.uuid4())),
                AIMessage("", id=f"run-{call_id}", tool_calls=[{"name": "high", "args": {}, "id": call_id}]),
                ToolMessage("4808", tool_call_id=call_id, artifact=object()),
            ]
            return [(await model.ainvoke(messages)).content for _ in range(2)]

        run = await kernel.run(handle, replay="always")

        assert run.output == ["second", "second"], run.failure_reason
        assert sum(provider.hits.values()) == 2
    assert [each.occurrence for each in run.steps] == [0, 1]


async def test_what_a_cache_holds_makes_no_difference(kernel: LocalKernel) -> None:
    set_llm_cache(InMemoryCache())
    try:
        async with providing(turns(Says("yes"))) as provider:

            async def handle() -> list[Any]:
                return [(await model_of(provider).ainvoke("hi")).content for _ in range(2)]

            run = await kernel.run(handle, replay="always")
    finally:
        set_llm_cache(None)

    assert run.output == ["yes", "yes"], run.failure_reason
    assert [each.occurrence for each in run.steps] == [0, 1]


@BOTH_WAYS
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_question_that_differs_when_the_handler_runs_again_is_named(
    is_plain: bool, is_streamed: bool, kernel: LocalKernel
) -> None:
    drawn = itertools.count()
    async with providing(lambda asked: Says("yes")) as provider:
        model = model_of(provider)

        async def handle() -> None:
            text = f"is it {next(drawn)}?"
            _ = [each async for each in model.astream(text)] if is_streamed else await model.ainvoke(text)

        def plain() -> None:
            text = f"is it {next(drawn)}?"
            _ = list(model.stream(text)) if is_streamed else model.invoke(text)

        handler: Any = plain if is_plain else handle
        with pytest.raises(Divergence, match=r"small .*is it \d\?") as caught:
            await kernel.run(handler, replay="always")

    if is_plain or is_streamed:
        assert caught.value.line is not None
        assert caught.value.line.line == handler.__code__.co_firstlineno + 2
    else:
        # LangChain makes the call in a task of its own, which hides the line.
        assert caught.value.line is None


async def test_a_reader_that_is_cancelled_waits_for_no_answer(kernel: LocalKernel) -> None:
    async with providing(turns(Says("a long answer"))) as provider:
        slow = Slow(url=provider.url)
        model = durable(slow)

        async def handle() -> bool:
            async def read() -> None:
                async for _ in model.astream("hi"):
                    pass

            reading = asyncio.create_task(read())
            await slow.has_begun.wait()
            reading.cancel()
            await asyncio.wait((reading,))
            return reading.cancelled() and not slow.has_ended.is_set()

        run = await kernel.run(handle)

    assert run.output is True, run.failure_reason


async def test_a_graph_runs_on_a_loop_of_its_own(kernel: LocalKernel) -> None:
    effects = Effects()
    async with providing(TRIP) as provider:

        async def words() -> list[Any]:
            stream = agent(model_of(provider), effects.tools()).astream(question("go"), stream_mode="messages")
            return [message.content async for message, _ in stream if message.content]

        def handle() -> str:
            return "".join(asyncio.run(words()))

        run = await kernel.run(handle, replay="always")

        assert run.output.endswith("Both were climbed."), run.failure_reason
        provider.assert_asked_once_each(3)
    assert len(effects.done) == 3


async def test_credentials_among_the_options_are_not_recorded(kernel: LocalKernel) -> None:
    async with providing(turns(Says("yes"))) as provider:

        async def handle() -> None:
            model = model_of(provider).bind(extra_headers={"authorization": "secret"}, seed=1)
            await model.ainvoke("hi")

        run = await kernel.run(handle)

    assert run.steps[0].args == {"messages": [{"type": "human", "content": "hi"}], "seed": 1}


class Peak(BaseModel):
    mountain: str


async def test_structured_output_is_a_step_too(kernel: LocalKernel) -> None:
    async with providing(turns(calls(("Peak", {"mountain": "Eiger"})))) as provider:

        async def handle() -> list[Any]:
            model = model_of(provider)
            plain = await model.with_structured_output(Peak).ainvoke("which?")
            raw: Any = await model.with_structured_output(Peak, include_raw=True).ainvoke("and which?")
            assert isinstance(plain, Peak)
            return [plain, raw["parsed"]]

        run = await kernel.run(handle, replay="always")

        assert run.output == [{"mountain": "Eiger"}, {"mountain": "Eiger"}], run.failure_reason
        assert len(run.steps) == 2
        provider.assert_asked_once_each(2)
