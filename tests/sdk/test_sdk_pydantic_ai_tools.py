"""What tools of Pydantic AI come to, live and replayed, and what else an agent of it is made of."""

from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    ApprovalRequired,
    BinaryContent,
    CallDeferred,
    DeferredToolRequests,
    FunctionToolset,
    ToolReturn,
)

from stepwell import tool
from stepwell.adapters.pydantic_ai import durable
from stepwell.testing import LocalKernel, Recording
from tests.support.openai_wire import Asked, Says, Turn
from tests.support.provider import calls, turns
from tests.support.pydantic_ai import MODELS, Effects, agent_of, handler, modelled

QUESTION = {"question": "what now?"}
ASKS = "default_action: allow\nrules:\n  - id: ask\n    when: {target: pay}\n    then: {decision: require_approval}\n"


async def test_a_tool_that_is_never_run_twice_is_named() -> None:
    script = turns(calls(("pay", {"amount": 3}), ("weather", {"city": "Rome"})), Says("paid"))
    async with modelled(script) as (_, model), LocalKernel() as kernel:
        agent = agent_of(model, Effects().tools(), capabilities=[durable(at_most_once=["pay"])])
        run = await kernel.run(handler(agent), QUESTION, replay="always")

    found = {step.target: step.idempotency for step in run.steps}
    assert (found["pay"], found["weather"]) == ("at_most_once", "safe_to_retry")


async def test_a_name_that_no_tool_has_is_refused_before_a_model_is_asked() -> None:
    async with modelled(turns(Says("hi"))) as (provider, model), LocalKernel() as kernel:
        agent = agent_of(model, Effects().tools(), capabilities=[durable(at_most_once=["payy", "pay"])])
        run = await kernel.run(handler(agent), QUESTION)

    assert run.failure_reason.endswith("the agent has no tool payy")
    provider.assert_asked_once_each(0)


async def test_a_function_that_says_itself_how_often_it_runs_is_not_named() -> None:
    @tool
    async def pay() -> str:
        raise AssertionError("it must not run")

    async with modelled(turns(calls(("pay", {})))) as (_, model), LocalKernel() as kernel:
        agent = agent_of(model, [pay], capabilities=[durable(at_most_once=["pay"])])
        run = await kernel.run(handler(agent), QUESTION)

    assert "pay is a step already" in run.failure_reason


@pytest.mark.parametrize("prefix", ["", "bank_"])
async def test_a_function_that_is_a_step_already_is_one_step(prefix: str) -> None:
    done: list[int] = []

    @tool("pay", idempotency="at_most_once")
    async def send_money(amount: int) -> str:
        done.append(amount)
        return f"paid {amount}"

    script = turns(calls((f"{prefix}send_money", {"amount": 3})), Says("paid"))
    async with modelled(script) as (provider, model), LocalKernel() as kernel:
        toolset: Any = FunctionToolset([send_money])
        agent = agent_of(model, toolsets=[toolset.prefixed(prefix[:-1]) if prefix else toolset])
        run = await kernel.run(handler(agent), QUESTION, replay="always")

    assert (run.output, done) == ("paid", [3])
    assert [(step.target, step.idempotency) for step in run.steps[1:2]] == [("pay", "at_most_once")]
    assert len(run.steps) == 3
    assert "paid 3" in str(list(provider.hits))


async def test_the_target_of_a_step_is_the_name_that_the_model_calls() -> None:
    effects = Effects()
    script = turns(calls(("bank_pay", {"amount": 3})), Says("paid"))
    async with modelled(script) as (_, model), LocalKernel() as kernel:
        toolset: Any = FunctionToolset(effects.tools())
        run = await kernel.run(handler(agent_of(model, toolsets=[toolset.prefixed("bank")])), QUESTION)

    assert (run.output, effects.done, run.targets[1]) == ("paid", ["pay 3"], "bank_pay")


class Report(BaseModel):
    title: str


RESULTS = {
    "text": "plain",
    "members": {"a": [1, None]},
    "model": Report(title="x"),
    "image": BinaryContent(data=b"\x00\xff", media_type="image/png"),
    "return": ToolReturn(return_value={"found": 1}, content=["see", BinaryContent(b"\x01", media_type="image/png")]),
}


@pytest.mark.parametrize("wire", MODELS)
@pytest.mark.parametrize("name", RESULTS)
async def test_the_model_is_told_what_it_would_be_told_without_steps(name: str, wire: str) -> None:
    async def look() -> Any:
        return RESULTS[name]

    async with modelled(turns(calls(("look", {})), Says("seen")), wire) as (provider, model), LocalKernel() as kernel:
        await agent_of(model, [look], capabilities=[]).run(QUESTION["question"])
        plain = provider.told()
        await kernel.run(handler(agent_of(model, [look])), QUESTION, replay="always")

    assert len(plain) == 2
    assert provider.told() == plain


@pytest.mark.parametrize("error", [ApprovalRequired({"why": "dear"}), CallDeferred({"to": "queue"}, kind="question")])
async def test_a_call_that_is_put_off_is_put_off_in_every_attempt(error: ApprovalRequired | CallDeferred) -> None:
    begun: list[str] = []
    seen: list[Any] = []

    async def look() -> str:
        begun.append("look")
        raise error

    async with modelled(turns(calls(("look", {})))) as (_, model), LocalKernel() as kernel:
        agent = agent_of(model, [look], output_type=[str, DeferredToolRequests])

        async def handle(question: str) -> int:
            found = (await agent.run(question)).output
            seen.append(found)
            return len(found.approvals) + len(found.calls)

        run = await kernel.run(handle, QUESTION)
        recording = await Recording.of(kernel.client, run.execution.id)
    await recording.replay(handle)

    assert (run.output, begun) == (1, ["look"])
    assert seen[0] == seen[1]
    assert list(seen[0].metadata.values()) == [error.metadata]


async def test_a_result_that_looks_like_a_mark_of_the_adapter_is_refused() -> None:
    async def look() -> dict[str, str]:
        return {"stepwell": "retry"}

    async with modelled(turns(calls(("look", {})))) as (_, model), LocalKernel() as kernel:
        run = await kernel.run(handler(agent_of(model, [look])), QUESTION)

    assert run.failure_reason.startswith("tool_error: look: ")


async def test_an_output_that_is_a_model_is_validated_in_every_attempt() -> None:
    script = turns(calls(("weather", {"city": "Rome"})), calls(("final_result", {"title": "sun"})))
    async with modelled(script) as (provider, model), LocalKernel() as kernel:
        agent = agent_of(model, Effects().tools(), output_type=Report)
        run = await kernel.run(handler(agent), QUESTION, replay="always")

    assert run.output == {"title": "sun"}
    assert run.targets == ["gpt-4o", "weather", "gpt-4o"]
    provider.assert_asked_once_each(2)


async def test_an_agent_within_a_tool_makes_steps_of_its_own() -> None:
    effects = Effects()

    def script(asked: Asked) -> Turn:
        if "pay" in asked.tools:
            return Says("paid") if asked.outputs else calls(("pay", {"amount": 3}))
        return Says("all paid") if asked.outputs else calls(("ask_clerk", {"wish": "pay 3"}))

    async with modelled(script) as (provider, model), LocalKernel() as kernel:
        clerk = agent_of(model, effects.tools())

        async def ask_clerk(wish: str) -> str:
            return (await clerk.run(wish)).output

        running = await kernel.start(handler(agent_of(model, [ask_clerk])), QUESTION, policy=ASKS, replay="always")
        await kernel.client.grant_approval((await running.approval()).id)
        run = await running.wait()

    assert (run.output, effects.done) == ("all paid", ["pay 3"])
    provider.assert_asked_once_each(4)
    assert run.targets == ["gpt-4o", "ask_clerk", "gpt-4o", "pay", "gpt-4o", "gpt-4o"]
