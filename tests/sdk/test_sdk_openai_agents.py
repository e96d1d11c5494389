"""Agents of the OpenAI Agents SDK inside of handlers: what they do is done once, however often a handler is entered."""

import asyncio
import json
from typing import Any

import pytest
from agents import Agent, ModelSettings, OpenAIProvider, RunContextWrapper, Runner, function_tool

from stepwell import Blocked
from stepwell.adapters.openai_agents import durable
from stepwell.testing import LocalKernel, Recording
from tests.support.openai_agents import KEY, MODELS, Effects, final, handler, modelled, without_tracing
from tests.support.openai_wire import Says
from tests.support.provider import beside, calls, providing, recorded, turns

ASKS = "default_action: allow\nrules:\n  - id: ask\n    when: {target: pay}\n    then: {decision: require_approval}\n"
DENIES = ASKS.replace("require_approval", "deny, reason: not today")
LIMITS = ASKS.replace("require_approval", "allow, rate_limit: {max_calls: 1, window: 1h}")

pytestmark = pytest.mark.usefixtures(without_tracing.__name__)


@pytest.fixture(params=MODELS)
def wire(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def is_streamed(request: pytest.FixtureRequest) -> bool:
    return request.param


BUSY = (
    calls(("weather", {"city": "Rome"}), ("weather", {"city": "Rome"}), ("pay", {"amount": 3})),
    calls(("weather", {"city": "Oslo", "days": 1})),
    Says("all is well"),
)
QUESTION = {"question": "what now?"}


# ---------------------------------------------------------------- steps, and replays


async def test_a_run_is_replayed_whole_wherever_its_handler_is_entered_again(wire: str, is_streamed: bool) -> None:
    effects = Effects()
    async with modelled(turns(*BUSY), wire) as (provider, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", instructions="be nice", tools=effects.tools(), model=model))
        run = await kernel.run(handler(agent, is_streamed=is_streamed), QUESTION, replay="always")

    assert (run.status, run.output) == ("completed", "all is well")
    assert sorted(effects.done) == ["pay 3", "weather Oslo", "weather Rome", "weather Rome"]
    provider.assert_asked_once_each(3)
    assert sorted(run.targets) == ["gpt-4o"] * 3 + ["pay"] + ["weather"] * 3
    kinds = {step.target: step.kind for step in run.steps}
    assert kinds == {"gpt-4o": "llm_call", "pay": "tool_call", "weather": "tool_call"}
    paid = next(step for step in run.steps if step.target == "pay")
    assert (paid.args, paid.result, paid.idempotency) == ({"amount": 3}, {"paid": 3}, "safe_to_retry")


async def test_no_credential_is_recorded(wire: str) -> None:
    settings = ModelSettings(temperature=0.5, extra_headers={"x-key": "of-nobody"}, extra_query={"k": "of-nobody"})
    async with modelled(turns(Says("hi")), wire) as (provider, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", model=model, model_settings=settings))
        run = await kernel.run(handler(agent), QUESTION)

    assert provider.authorizations == {f"Bearer {KEY}"}
    assert run.steps[0].args["settings"] == {"temperature": 0.5}
    assert "of-nobody" not in json.dumps([step.args for step in run.steps])


async def test_a_replayed_run_gives_the_objects_of_the_live_one(wire: str, is_streamed: bool) -> None:
    seen: list[Any] = []
    async with modelled(turns(*BUSY), wire) as (_, model), LocalKernel() as kernel:
        settings = ModelSettings(include_usage=True)
        agent = durable(Agent(name="a", tools=Effects().tools(), model=model, model_settings=settings))

        async def handle(question: str) -> Any:
            if is_streamed:
                result = Runner.run_streamed(agent, question)
                events = [e.data async for e in result.stream_events() if e.type == "raw_response_event"]
            else:
                result, events = await Runner.run(agent, question), []
            seen.append((result.raw_responses, result.to_input_list(), result.context_wrapper.usage, events))
            return result.final_output

        run = await kernel.run(handle, QUESTION)
        recording = await Recording.of(kernel.client, run.execution.id)
    await recording.replay(handle)

    live, replayed = seen
    assert live == replayed
    assert run.execution.usage.total_tokens == 54
    assert live[2].total_tokens == 54
    assert bool(live[3]) is is_streamed


async def test_a_replay_needs_no_key_of_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    async with providing(turns(Says("hi"))) as provider, LocalKernel() as kernel:
        known = OpenAIProvider(base_url=provider.url, api_key=KEY)
        run = await kernel.run(handler(durable(Agent(name="a", model="gpt-4o"), provider=known)), QUESTION)
        recording = await Recording.of(kernel.client, run.execution.id)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    await recording.replay(handler(durable(Agent(name="a", model="gpt-4o"))))


async def test_a_plain_handler_runs_an_agent_on_a_loop_of_its_own() -> None:
    effects = Effects()
    async with modelled(turns(*BUSY)) as (provider, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", tools=effects.tools(), model=model))

        def handle(question: str) -> Any:
            return asyncio.run(final(agent, question))

        run = await kernel.run(handle, QUESTION, replay="always")

    assert run.output == "all is well"
    assert len(effects.done) == 4
    provider.assert_asked_once_each(3)


async def test_an_agent_of_a_handler_runs_nowhere_else() -> None:
    async with modelled(turns(Says("hi"))) as (provider, model):
        with pytest.raises(RuntimeError, match="outside of an execution"):
            await Runner.run(durable(Agent(name="a", model=model)), "hello")
    provider.assert_asked_once_each(0)


# ---------------------------------------------------------------- people and policies


async def test_a_person_is_asked_in_the_middle_of_a_run(wire: str, is_streamed: bool) -> None:
    effects = Effects()
    rome = "weather", {"city": "Rome"}
    script = turns(calls(rome, rome), calls(("pay", {"amount": 3})), Says("all is well"))
    async with modelled(script, wire) as (provider, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", tools=effects.tools(), model=model))
        running = await kernel.start(handler(agent, is_streamed=is_streamed), QUESTION, policy=ASKS, replay="always")
        approval = await running.approval()
        assert effects.done == ["weather Rome", "weather Rome"]
        await kernel.client.grant_approval(approval.id)
        run = await running.wait()

    assert (run.status, run.output) == ("completed", "all is well")
    assert effects.done == ["weather Rome", "weather Rome", "pay 3"]
    provider.assert_asked_once_each(3)


async def test_a_tool_that_runs_beside_one_that_waits_for_a_person_is_not_cut_off(is_streamed: bool) -> None:
    go_on = asyncio.Event()
    done: list[str] = []

    @function_tool
    async def slow() -> str:
        done.append("begun")
        await go_on.wait()
        done.append("ended")
        return "slow"

    script = turns(calls(("slow", {}), ("pay", {"amount": 3})), Says("both"))
    async with modelled(script) as (_, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", tools=[slow, *Effects().tools()], model=model))
        handle = handler(agent, is_streamed=is_streamed)
        running, approval = await beside(kernel, lambda: kernel.start(handle, QUESTION, policy=ASKS), "slow")
        go_on.set()
        await recorded(kernel, running.execution_id, "slow")
        await kernel.client.grant_approval(approval.id)
        run = await running.wait()

    assert (run.output, done) == ("both", ["begun", "ended"])


async def test_agents_side_by_side_in_a_task_group_wait_for_a_person() -> None:
    effects = Effects()
    script = turns(calls(("pay", {"amount": 3})), Says("paid"))
    # An attempt that ends without a word would come back with its lease alone.
    async with modelled(script) as (provider, model), LocalKernel(lease_seconds=600) as kernel:
        agent = durable(Agent(name="a", tools=effects.tools(), model=model))

        async def handle(question: str) -> list[Any]:
            async with asyncio.TaskGroup() as group:
                runs = [group.create_task(final(agent, f"{question} {number}")) for number in range(2)]
            return [run.result() for run in runs]

        running = await kernel.start(handle, QUESTION, policy=ASKS, replay="always")
        await kernel.client.grant_approval((await running.approval()).id)
        # A grant supersedes an attempt that still waits for what runs in it.
        await recorded(kernel, running.execution_id, "pay")
        await kernel.client.grant_approval((await running.approval()).id)
        run = await running.wait()

    assert (run.output, effects.done) == (["paid", "paid"], ["pay 3", "pay 3"])
    provider.assert_asked_once_each(4)


async def test_a_run_that_is_cancelled_takes_the_bodies_of_its_steps_along() -> None:
    begun = asyncio.Event()
    done: list[str] = []

    @function_tool
    async def endless() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            done.append("cut off")
        return "never"

    async with modelled(turns(calls(("endless", {})))) as (_, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", tools=[endless], model=model))

        async def handle(question: str) -> list[str]:
            task = asyncio.create_task(final(agent, question))
            await begun.wait()
            task.cancel()
            await asyncio.wait((task,))
            return list(done)

        run = await kernel.run(handle, QUESTION)

    assert run.output == ["cut off"]


async def test_a_handler_that_swallows_a_pause_does_not_go_on() -> None:
    async with modelled(turns(*BUSY)) as (provider, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", tools=Effects().tools(), model=model))

        async def handle(question: str) -> Any:
            try:
                return await final(agent, question)
            except Blocked:
                return await final(agent, "something else")

        running = await kernel.start(handle, QUESTION, policy=ASKS)
        await kernel.client.grant_approval((await running.approval()).id)
        run = await running.wait()

    assert run.output == "all is well"
    provider.assert_asked_once_each(3)


async def test_a_denied_tool_is_told_to_the_model() -> None:
    effects = Effects()
    script = turns(calls(("pay", {"amount": 3})), Says("no money"))
    async with modelled(script) as (provider, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", tools=effects.tools(), model=model))
        run = await kernel.run(handler(agent), QUESTION, policy=DENIES, replay="always")

    assert (run.output, effects.done) == ("no money", [])
    assert "pay not allowed. reason: not today" in str(list(provider.hits))


async def test_a_tool_whose_bucket_is_empty_ends_the_execution_as_any_tool_does() -> None:
    script = turns(calls(("pay", {"amount": 3})), calls(("pay", {"amount": 4})), Says("all"))
    async with modelled(script) as (_, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", tools=Effects().tools(), model=model))
        run = await kernel.run(handler(agent), QUESTION, policy=LIMITS)

    assert (run.status, run.failure_reason) == ("failed", "rate_limit_exceeded")


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize("policy", ["default", "text", "raise"])
async def test_a_failing_tool_is_a_failed_step_and_told_as_the_tool_says(policy: str) -> None:
    def told(_: RunContextWrapper[Any], error: Exception) -> str:
        return f"told: {error}"

    options: dict[str, Any] = {"text": {"failure_error_function": told}, "raise": {"failure_error_function": None}}

    async def broken() -> str:
        raise ValueError("no such city")

    failing: Any = function_tool(**options.get(policy, {}))(broken)

    async with modelled(turns(calls(("broken", {})), Says("sorry"))) as (provider, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", tools=[failing], model=model))
        run = await kernel.run(handler(agent), QUESTION, replay="always")

    step = next(step for step in run.steps if step.target == "broken")
    assert (step.status, step.error) == ("failed", {"message": "no such city"})
    if policy == "raise":
        assert run.failure_reason == "tool_error: broken: no such city"
        return
    assert run.output == "sorry"
    assert ("told: no such city" if policy == "text" else "An error occurred") in str(list(provider.hits))


async def test_arguments_that_are_no_json_are_refused_by_the_tool() -> None:
    script = turns(calls(("weather", "{broken")), Says("sorry"))
    effects = Effects()
    async with modelled(script) as (_, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", tools=effects.tools(), model=model))
        run = await kernel.run(handler(agent), QUESTION, replay="always")

    assert (run.output, effects.done) == ("sorry", [])
    assert next(step for step in run.steps if step.target == "weather").args == "{broken"


async def test_a_tool_that_takes_too_long_is_told_in_every_attempt() -> None:
    begun: list[str] = []

    @function_tool(timeout=0.01)
    async def endless() -> str:
        begun.append("endless")
        await asyncio.Event().wait()
        return "never"

    async with modelled(turns(calls(("endless", {})), Says("sorry"))) as (_, model), LocalKernel() as kernel:
        agent = durable(Agent(name="a", tools=[endless], model=model))
        run = await kernel.run(handler(agent), QUESTION, replay="always")

    assert (run.output, begun) == ("sorry", ["endless"])
    assert "timed out" in next(step for step in run.steps if step.target == "endless").result


async def test_what_a_provider_refuses_for_now_is_tried_again_inside_of_one_step(wire: str, is_streamed: bool) -> None:
    async with modelled(turns(Says("hi")), wire) as (provider, model), LocalKernel() as kernel:
        provider.faults = iter([500, 429])
        agent = durable(Agent(name="a", model=model))
        run = await kernel.run(handler(agent, is_streamed=is_streamed), QUESTION, replay="always")

    assert (run.output, run.targets, provider.refused) == ("hi", ["gpt-4o"], 2)


async def test_what_a_provider_refuses_for_good_is_a_failed_step(wire: str, is_streamed: bool) -> None:
    attempts: list[str] = []
    async with modelled(turns(Says("hi")), wire) as (provider, model), LocalKernel() as kernel:
        provider.faults = iter([500] * 100)
        inner = handler(durable(Agent(name="a", model=model)), is_streamed=is_streamed)

        async def handle(question: str) -> Any:
            attempts.append(question)
            return await inner(question)

        run = await kernel.run(handle, QUESTION, replay="always")

    assert run.failure_reason.startswith("tool_error: gpt-4o: ")
    assert "scripted fault 500" in run.failure_reason
    assert (len(attempts), provider.refused, len(run.steps)) == (2, 3, 1)


async def test_a_stream_that_is_cut_off_is_a_failed_step() -> None:
    async with modelled(turns(Says("half of it", is_cut=True))) as (_, model), LocalKernel() as kernel:
        run = await kernel.run(handler(durable(Agent(name="a", model=model)), is_streamed=True), QUESTION)

    assert run.failure_reason == "tool_error: gpt-4o: the answer was cut off"
