"""Several agents of the OpenAI Agents SDK in one run, and what tools of its may be durable."""

from typing import Any

import pytest
from agents import (
    Agent,
    FunctionTool,
    Handoff,
    LocalShellTool,
    ModelRetrySettings,
    ModelSettings,
    RunContextWrapper,
    Runner,
    Tool,
    ToolOutputImage,
    ToolOutputText,
    function_tool,
    handoff,
)
from pydantic import BaseModel

from stepwell import tool
from stepwell.adapters.openai_agents import durable
from stepwell.testing import LocalKernel
from tests.support.openai_agents import MODELS, Effects, handler, modelled, without_tracing
from tests.support.openai_wire import Asked, Says, Turn
from tests.support.provider import Script, calls, recorded, turns

QUESTION = {"question": "what now?"}
ASKS = "default_action: allow\nrules:\n  - id: ask\n    when: {target: pay}\n    then: {decision: require_approval}\n"

pytestmark = pytest.mark.usefixtures(without_tracing.__name__)


def each(**scripts: Script) -> Script:
    """Answer each agent, known by its instructions, by a script of its own."""

    def script(asked: Asked) -> Turn:
        return scripts[asked.instructions](asked)

    return script


# ---------------------------------------------------------------- several agents


async def test_an_agent_as_a_tool_is_the_steps_that_it_makes() -> None:
    effects = Effects()
    script = each(
        boss=turns(calls(("clerk", {"input": "pay 3"}), ("clerk", {"input": "pay 3"})), Says("both paid")),
        clerk=turns(calls(("pay", {"amount": 3})), Says("paid")),
    )
    async with modelled(script) as (provider, model), LocalKernel() as kernel:
        clerk = Agent(name="clerk", instructions="clerk", tools=effects.tools(), model=model)
        boss = Agent(name="boss", instructions="boss", tools=[clerk.as_tool("clerk", None)], model=model)
        running = await kernel.start(handler(durable(boss)), QUESTION, policy=ASKS, replay="always")
        await kernel.client.grant_approval((await running.approval()).id)
        await recorded(kernel, running.execution_id, "pay")
        await kernel.client.grant_approval((await running.approval()).id)
        run = await running.wait()

    assert (run.status, run.output) == ("completed", "both paid")
    assert effects.done == ["pay 3", "pay 3"]
    assert sorted(run.targets) == ["gpt-4o"] * 6 + ["pay", "pay"]
    assert sum(provider.hits.values()) == 6


@pytest.mark.parametrize("kind", ["agent", "handoff", "by hand"])
async def test_the_agent_that_a_run_is_handed_over_to_makes_steps(kind: str) -> None:
    effects = Effects()
    script = each(
        front=turns(calls(("transfer_to_clerk", {}))),
        clerk=lambda asked: Says("done") if asked.outputs[1:] else calls(("weather", {"city": "Rome"})),
    )
    async with modelled(script) as (provider, model), LocalKernel() as kernel:
        clerk = Agent(name="clerk", instructions="clerk", tools=effects.tools(), model=model)

        async def found(_: RunContextWrapper[Any], __: str) -> Agent[Any]:
            return clerk

        ways: dict[str, Any] = {
            "agent": clerk,
            "handoff": handoff(clerk),
            "by hand": Handoff("transfer_to_clerk", "", {}, found, "clerk"),
        }
        front = Agent(name="front", instructions="front", handoffs=[ways[kind]], model=model)
        # Back again, as in a team where everybody may hand over to everybody.
        clerk.handoffs = [front]
        run = await kernel.run(handler(durable(front)), QUESTION, replay="always")

    assert (run.output, effects.done) == ("done", ["weather Rome"])
    assert run.targets == ["gpt-4o", "gpt-4o", "weather", "gpt-4o"]
    provider.assert_asked_once_each(3)


async def test_an_agent_stays_the_same_when_it_is_made_durable_again() -> None:
    agent = Agent(name="a", tools=Effects().tools())

    assert durable(agent) is agent
    model, tools = agent.model, agent.tools
    assert durable(agent) is agent
    assert (agent.model, agent.tools) == (model, tools)


# ---------------------------------------------------------------- tools


async def test_a_tool_that_is_never_run_twice_is_named() -> None:
    script = turns(calls(("pay", {"amount": 3}), ("weather", {"city": "Rome"})), Says("paid"))
    async with modelled(script) as (_, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", tools=Effects().tools(), model=model), at_most_once=["pay"])
        run = await kernel.run(handler(agent), QUESTION, replay="always")

    found = {step.target: step.idempotency for step in run.steps}
    assert (found["pay"], found["weather"]) == ("at_most_once", "safe_to_retry")


def test_a_name_that_no_tool_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no tool payy"):
        durable(Agent(name="a", tools=Effects().tools()), at_most_once=["payy", "pay"])


async def test_a_function_that_is_a_step_already_is_one_step() -> None:
    done: list[int] = []

    @function_tool
    @tool("pay", idempotency="at_most_once")
    async def send_money(amount: int) -> str:
        done.append(amount)
        return f"paid {amount}"

    script = turns(calls(("send_money", {"amount": 3})), Says("paid"))
    async with modelled(script) as (provider, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", tools=[send_money], model=model))
        run = await kernel.run(handler(agent), QUESTION, replay="always")

    assert (run.output, done) == ("paid", [3])
    assert [(step.target, step.idempotency) for step in run.steps[1:2]] == [("pay", "at_most_once")]
    assert len(run.steps) == 3
    assert "paid 3" in str(list(provider.hits))


class Report(BaseModel):
    title: str


OUTPUTS = {
    "text": "plain",
    "members": {"a": [1, None]},
    "model": Report(title="x"),
    "set": {1},
    "parts": [ToolOutputText(text="seen"), ToolOutputImage(image_url="http://example.com/x.png")],
}


@pytest.mark.parametrize("wire", MODELS)
@pytest.mark.parametrize("name", OUTPUTS)
async def test_the_model_is_told_what_it_would_be_told_without_steps(name: str, wire: str) -> None:
    @function_tool
    async def look() -> Any:
        return OUTPUTS[name]

    async with modelled(turns(calls(("look", {})), Says("seen")), wire) as (provider, model), LocalKernel() as kernel:
        agent = Agent(name="a", tools=[look], model=model)
        await Runner.run(agent, QUESTION["question"])
        plain = provider.told()
        await kernel.run(handler(durable(agent)), QUESTION, replay="always")

    assert len(plain) == 2
    assert provider.told() == plain


async def nothing(_: Any, __: str) -> str:
    return "nothing"


@pytest.mark.parametrize(
    "late", [FunctionTool("late", "", {}, nothing), LocalShellTool(executor=lambda _: "")], ids=["function", "shell"]
)
async def test_a_tool_that_would_run_outside_of_a_step_is_refused(late: Tool) -> None:
    async with modelled(turns(Says("hi"))) as (provider, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", model=model))
        agent.tools.append(late)
        run = await kernel.run(handler(agent), QUESTION)

    assert "is no step" in run.failure_reason
    provider.assert_asked_once_each(0)


@pytest.mark.parametrize("settings", [ModelSettings(timeout=1), ModelSettings(retry=ModelRetrySettings(max_retries=1))])
async def test_repeats_and_timeouts_from_outside_of_a_step_are_refused(settings: ModelSettings) -> None:
    async with modelled(turns(Says("hi"))) as (provider, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", model=model, model_settings=settings))
        run = await kernel.run(handler(agent), QUESTION)

    assert "of the model's client" in run.failure_reason
    provider.assert_asked_once_each(0)
