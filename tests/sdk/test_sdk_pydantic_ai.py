"""Agents of Pydantic AI inside of handlers: what they do is done once, however often a handler is entered."""

import asyncio
import json
from typing import Any

import pytest
from pydantic_ai import ModelResponse, ModelRetry, ModelSettings, ToolFailed
from pydantic_ai.capabilities import ModelFallback

from stepwell import Blocked
from stepwell.adapters.pydantic_ai import durable
from stepwell.testing import LocalKernel, Recording
from tests.support.openai_wire import Says
from tests.support.provider import beside, calls, recorded, turns
from tests.support.pydantic_ai import KEY, MODELS, Effects, agent_of, handler, modelled, result_of

QUESTION = {"question": "what now?"}
ASKS = "default_action: allow\nrules:\n  - id: ask\n    when: {target: pay}\n    then: {decision: require_approval}\n"
DENIES = ASKS.replace("require_approval", "deny, reason: not today")
LIMITS = ASKS.replace("require_approval", "allow, rate_limit: {max_calls: 1, window: 1h}")
BUSY = (
    calls(("weather", {"city": "Rome"}), ("weather", {"city": "Rome"}), ("pay", {"amount": 3})),
    calls(("weather", {"city": "Oslo", "days": 1})),
    Says("all is well"),
)


@pytest.fixture(params=MODELS)
def wire(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def is_streamed(request: pytest.FixtureRequest) -> bool:
    return request.param


# ---------------------------------------------------------------- steps, and replays


async def test_a_run_is_replayed_whole_wherever_its_handler_is_entered_again(wire: str, is_streamed: bool) -> None:
    effects = Effects()
    async with modelled(turns(*BUSY), wire) as (provider, model), LocalKernel() as kernel:
        agent = agent_of(model, effects.tools())
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
    settings = ModelSettings(temperature=0.5, extra_headers={"x-key": "of-nobody"}, timeout=9.0)
    async with modelled(turns(Says("hi")), wire) as (provider, model), LocalKernel() as kernel:
        run = await kernel.run(handler(agent_of(model, model_settings=settings)), QUESTION)

    assert provider.authorizations == {f"Bearer {KEY}"}
    assert run.steps[0].args["settings"] == {"temperature": 0.5}
    assert "of-nobody" not in json.dumps([step.args for step in run.steps])


async def test_a_replayed_run_gives_the_objects_of_the_live_one(wire: str, is_streamed: bool) -> None:
    seen: list[Any] = []
    async with modelled(turns(*BUSY), wire) as (_, model), LocalKernel() as kernel:
        agent = agent_of(model, Effects().tools())

        async def handle(question: str) -> Any:
            result = await result_of(agent, question, is_streamed=is_streamed)
            responses = [message for message in result.all_messages() if isinstance(message, ModelResponse)]
            for response in responses:
                # They name the run, and each attempt is one.
                response.run_id = response.conversation_id = None
            seen.append((responses, result.usage))
            return result.output

        run = await kernel.run(handle, QUESTION)
        recording = await Recording.of(kernel.client, run.execution.id)
    await recording.replay(handle)

    live, replayed = seen
    assert live == replayed
    assert run.execution.usage.total_tokens == 54
    assert (len(live[0]), live[1].requests, live[1].input_tokens) == (3, 3, 33)


async def test_a_plain_handler_runs_an_agent_on_a_loop_of_its_own() -> None:
    effects = Effects()
    async with modelled(turns(*BUSY)) as (provider, model), LocalKernel() as kernel:
        agent = agent_of(model, effects.tools())

        def handle(question: str) -> Any:
            return asyncio.run(result_of(agent, question)).output

        run = await kernel.run(handle, QUESTION, replay="always")

    assert (run.output, len(effects.done)) == ("all is well", 4)
    provider.assert_asked_once_each(3)


async def test_an_agent_of_a_handler_runs_nowhere_else() -> None:
    async with modelled(turns(Says("hi"))) as (provider, model):
        with pytest.raises(RuntimeError, match="outside of an execution"):
            await agent_of(model).run("hello")
    provider.assert_asked_once_each(0)


# ---------------------------------------------------------------- people and policies


async def test_a_person_is_asked_in_the_middle_of_a_run(wire: str, is_streamed: bool) -> None:
    effects = Effects()
    rome = "weather", {"city": "Rome"}
    script = turns(calls(rome, rome), calls(("pay", {"amount": 3})), Says("all is well"))
    async with modelled(script, wire) as (provider, model), LocalKernel() as kernel:
        handle = handler(agent_of(model, effects.tools()), is_streamed=is_streamed)
        running = await kernel.start(handle, QUESTION, policy=ASKS, replay="always")
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

    async def slow() -> str:
        done.append("begun")
        await go_on.wait()
        done.append("ended")
        return "slow"

    script = turns(calls(("slow", {}), ("pay", {"amount": 3})), Says("both"))
    async with modelled(script) as (_, model), LocalKernel() as kernel:
        handle = handler(agent_of(model, [slow, *Effects().tools()]), is_streamed=is_streamed)
        running, approval = await beside(kernel, lambda: kernel.start(handle, QUESTION, policy=ASKS), "slow")
        go_on.set()
        await recorded(kernel, running.execution_id, "slow")
        await kernel.client.grant_approval(approval.id)
        run = await running.wait()

    assert (run.output, done) == ("both", ["begun", "ended"])


async def test_a_handler_that_swallows_a_pause_does_not_go_on() -> None:
    async with modelled(turns(*BUSY)) as (provider, model), LocalKernel() as kernel:
        agent = agent_of(model, Effects().tools())

        async def handle(question: str) -> Any:
            try:
                return (await agent.run(question)).output
            except Blocked:
                return (await agent.run("something else")).output

        running = await kernel.start(handle, QUESTION, policy=ASKS)
        await kernel.client.grant_approval((await running.approval()).id)
        run = await running.wait()

    assert run.output == "all is well"
    provider.assert_asked_once_each(3)


async def test_a_denied_tool_is_told_to_the_model() -> None:
    effects = Effects()
    script = turns(calls(("pay", {"amount": 3})), Says("no money"))
    async with modelled(script) as (provider, model), LocalKernel() as kernel:
        handle = handler(agent_of(model, effects.tools()))
        run = await kernel.run(handle, QUESTION, policy=DENIES, replay="always")

    assert (run.output, effects.done) == ("no money", [])
    assert "pay not allowed. reason: not today" in str(list(provider.hits))


async def test_a_tool_whose_bucket_is_empty_ends_the_execution_as_any_tool_does() -> None:
    script = turns(calls(("pay", {"amount": 3})), calls(("pay", {"amount": 4})), Says("all"))
    async with modelled(script) as (_, model), LocalKernel() as kernel:
        run = await kernel.run(handler(agent_of(model, Effects().tools())), QUESTION, policy=LIMITS)

    assert (run.status, run.failure_reason) == ("failed", "rate_limit_exceeded")


# ---------------------------------------------------------------- failures


async def test_a_failing_tool_is_a_failed_step_and_ends_the_run() -> None:
    async def broken() -> str:
        raise ValueError("no such city")

    async with modelled(turns(calls(("broken", {})), Says("sorry"))) as (_, model), LocalKernel() as kernel:
        run = await kernel.run(handler(agent_of(model, [broken])), QUESTION, replay="always")

    assert run.failure_reason == "tool_error: broken: no such city"
    assert (run.steps[-1].status, run.steps[-1].error) == ("failed", {"message": "no such city"})


@pytest.mark.parametrize("error", [ModelRetry("look again"), ToolFailed("look elsewhere")])
async def test_what_a_tool_says_by_raising_is_told_to_the_model_in_every_attempt(error: Exception) -> None:
    begun: list[str] = []

    async def look() -> str:
        begun.append("look")
        raise error

    async with modelled(turns(calls(("look", {})), Says("sorry"))) as (provider, model), LocalKernel() as kernel:
        run = await kernel.run(handler(agent_of(model, [look])), QUESTION, replay="always")

    assert (run.output, begun) == ("sorry", ["look"])
    assert str(error) in str(list(provider.hits))
    provider.assert_asked_once_each(2)


async def test_what_a_provider_refuses_for_now_is_tried_again_inside_of_one_step(wire: str, is_streamed: bool) -> None:
    async with modelled(turns(Says("hi")), wire) as (provider, model), LocalKernel() as kernel:
        provider.faults = iter([500, 429])
        run = await kernel.run(handler(agent_of(model), is_streamed=is_streamed), QUESTION, replay="always")

    assert (run.output, run.targets, provider.refused) == ("hi", ["gpt-4o"], 2)


async def test_what_a_provider_refuses_for_good_is_a_failed_step(wire: str, is_streamed: bool) -> None:
    attempts: list[str] = []
    async with modelled(turns(Says("hi")), wire) as (provider, model), LocalKernel() as kernel:
        provider.faults = iter([500] * 100)
        inner = handler(agent_of(model), is_streamed=is_streamed)

        async def handle(question: str) -> Any:
            attempts.append(question)
            return await inner(question)

        run = await kernel.run(handle, QUESTION, replay="always")

    assert run.failure_reason.startswith("tool_error: gpt-4o: ")
    assert "scripted fault 500" in run.failure_reason
    assert (len(attempts), provider.refused, len(run.steps)) == (2, 3, 1)


async def test_another_model_takes_over_in_every_attempt_from_one_that_fails() -> None:
    async with (
        modelled(turns(Says("never"))) as (provider, model),
        modelled(turns(calls(("weather", {"city": "Rome"})), Says("hi")), "chat") as (second, other),
        LocalKernel() as kernel,
    ):
        provider.faults = iter([500] * 100)
        agent = agent_of(model, Effects().tools(), capabilities=[durable(), ModelFallback(model, other)])
        run = await kernel.run(handler(agent), QUESTION, replay="always")

    assert (run.output, provider.refused) == ("hi", 6)
    assert [step.status for step in run.steps] == ["failed", "succeeded", "succeeded", "failed", "succeeded"]
    second.assert_asked_once_each(2)


@pytest.mark.parametrize("name", ["request_timeout", "first_event_timeout"])
async def test_timeouts_from_outside_of_a_step_are_refused(name: str) -> None:
    settings: Any = {name: 1.0}
    async with modelled(turns(Says("hi"))) as (provider, model), LocalKernel() as kernel:
        run = await kernel.run(handler(agent_of(model, model_settings=settings)), QUESTION)

    assert "the client's own" in run.failure_reason
    provider.assert_asked_once_each(0)


async def test_a_stream_that_is_cut_off_is_a_failed_step() -> None:
    async with modelled(turns(Says("half of it", is_cut=True))) as (_, model), LocalKernel() as kernel:
        run = await kernel.run(handler(agent_of(model), is_streamed=True), QUESTION)

    assert run.failure_reason == "tool_error: gpt-4o: the answer was cut off"
