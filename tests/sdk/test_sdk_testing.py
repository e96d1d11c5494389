"""The kernel inside of a test, handlers that are entered again after every step, and recordings."""

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import stepwell.testing
from stepwell import Result, ToolError, execution, step, tool
from stepwell.testing import Divergence, LocalKernel, Recording
from tests.support.wait import loop_turns, wait_until_async


def test_the_public_names_are_these() -> None:
    names = ["Divergence", "LocalKernel", "Recording", "Replay", "Run", "Running"]
    assert sorted(stepwell.testing.__all__) == names


class Calls:
    """What happened outside of the kernel."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def add(self, what: Any) -> Any:
        self.made.append(what)
        return what


def counted(calls: Calls) -> Any:
    @tool("note")
    async def note(what: Any) -> Any:
        return calls.add(what)

    return note


def counted_plainly(calls: Calls) -> Any:
    @tool("note")
    def note(what: Any) -> Any:
        return calls.add(what)

    return note


async def test_a_handler_runs_on_a_kernel_in_the_test() -> None:
    calls = Calls()
    note = counted(calls)

    async def handle(first: str, second: str) -> Result:
        return Result(output=[await note(first), await note(second)], state={"left": 1})

    async with LocalKernel() as kernel:
        run = await kernel.run(handle, {"first": "a", "second": "b"})

    assert (run.status, run.output, run.targets) == ("completed", ["a", "b"], ["note", "note"])
    assert [step.args for step in run.steps] == [{"what": "a"}, {"what": "b"}]
    assert run.events[-1].type == "execution.completed"
    assert calls.made == ["a", "b"]


async def test_a_policy_denies_and_asks_a_person_as_it_does_in_production() -> None:
    calls = Calls()
    note = counted(calls)
    bundle = "rules:\n  - id: ask\n    when: {target: note}\n    then: {decision: require_approval}\n"

    async def handle(given: Any) -> Any:
        return await note(given)

    async with LocalKernel() as kernel:
        running = await kernel.start(handle, "x", policy=bundle)
        approval = await running.approval()
        assert calls.made == []
        await kernel.client.grant_approval(approval.id)
        run = await running.wait()

    assert (run.output, calls.made) == ("x", ["x"])


async def test_a_bundle_that_cannot_be_loaded_is_named() -> None:
    async def handle() -> None: ...

    async with LocalKernel() as kernel:
        with pytest.raises(ValueError, match="the kernel refuses it"):
            await kernel.run(handle, policy="rules: 1")


async def test_an_approval_that_never_comes_is_told_with_how_the_execution_ended() -> None:
    async def handle() -> str:
        return "no step at all"

    async with LocalKernel() as kernel:
        running = await kernel.start(handle)
        with pytest.raises(AssertionError, match="ended without an approval: completed"):
            await running.approval()


@pytest.mark.parametrize("idempotency", ["safe_to_retry", "at_most_once"])
async def test_a_tool_beside_one_that_waits_for_a_person_comes_to_its_end(idempotency: Any) -> None:
    """A group of tasks cancels all of them when one raises, as a step that waits does."""
    calls, asked = Calls(), asyncio.Event()
    bundle = "default_action: allow\nrules: [{id: ask, when: {target: ask}, then: {decision: require_approval}}]\n"

    @tool(idempotency=idempotency)
    async def pay() -> str:
        calls.add("begun")
        await asked.wait()
        await loop_turns()
        return calls.add("paid")

    @tool
    async def ask() -> str:
        return calls.add("asked")

    async def handle() -> list[str]:
        async with asyncio.TaskGroup() as group:
            paying = group.create_task(pay())
            while not calls.made:
                await loop_turns()
            asking = group.create_task(ask())
        return [paying.result(), asking.result()]

    async with LocalKernel() as kernel:
        running = await kernel.start(handle, policy=bundle)
        approval = await running.approval()
        asked.set()

        async def is_paid() -> bool:
            return "succeeded" in [step.status for step in await kernel.client.list_steps(running.execution_id)]

        await wait_until_async(is_paid, "the payment to be recorded")
        await kernel.client.grant_approval(approval.id)
        run = await running.wait()

    assert run.output == ["paid", "asked"], run.failure_reason
    assert calls.made == ["begun", "paid", "asked"]


# ---------------------------------------------------------------- replay always


async def test_replaying_always_enters_the_handler_after_every_step_and_repeats_no_effect() -> None:
    calls, attempts = Calls(), []
    note = counted(calls)

    async def handle() -> list[Any]:
        attempts.append(execution().attempt)
        return [await note(number) for number in range(5)]

    async with LocalKernel() as kernel:
        run = await kernel.run(handle, replay="always")

    assert run.output == [0, 1, 2, 3, 4]
    assert calls.made == [0, 1, 2, 3, 4]
    assert attempts == [1, 2, 3, 4, 5, 6]


async def test_replaying_always_takes_concurrent_nested_failing_and_threaded_steps() -> None:
    calls = Calls()
    note, plain = counted(calls), counted_plainly(calls)

    @tool
    async def outer(name: str) -> list[Any]:
        return [await note(f"{name} {number}") for number in range(2)]

    @tool
    async def broken() -> None:
        calls.add("broken")
        raise ValueError("broken")

    async def handle() -> list[Any]:
        both = await asyncio.gather(outer("left"), outer("right"), note("same"), note("same"))
        with pytest.raises(ToolError):
            await broken()
        return [*both, await asyncio.to_thread(plain, "thread"), await step("dice", itertools.count().__next__)]

    async with LocalKernel() as kernel:
        run = await kernel.run(handle, replay="always")

    assert run.status == "completed", run.failure_reason
    expected = ["left 0", "left 1", "right 0", "right 1", "same", "same", "broken", "thread"]
    assert sorted(calls.made) == sorted(expected)


def line_of(function: Any, text: str) -> int:
    """The line of a function's source that holds a text."""
    lines = Path(function.__code__.co_filename).read_text().splitlines()
    first = function.__code__.co_firstlineno
    return next(number for number in range(first, first + 40) if text in lines[number - 1])


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_step_that_differs_when_the_handler_runs_again_is_named_by_its_line(is_plain: bool) -> None:
    note = (counted_plainly if is_plain else counted)(Calls())
    drawn = itertools.count()

    async def handle() -> None:
        await note("first")
        await note(next(drawn))  # differs
        await note("last")

    def plain() -> None:
        note("first")
        note(next(drawn))  # differs
        note("last")

    handler = plain if is_plain else handle
    async with LocalKernel() as kernel:
        with pytest.raises(Divergence) as caught:
            await kernel.run(handler, replay="always")

    assert caught.value.line is not None
    assert caught.value.line.line == line_of(handler, "# differs")
    assert "step(name, function)" in str(caught.value)


async def test_a_step_that_is_left_out_when_the_handler_runs_again_is_named_by_its_line() -> None:
    calls, memory = Calls(), set[str]()
    note = counted(calls)

    async def handle() -> None:
        if "done" not in memory:
            memory.add("done")
            await note("once")  # only once
        await asyncio.gather(note("a"), note("b"))

    async with LocalKernel() as kernel:
        with pytest.raises(Divergence) as caught:
            await kernel.run(handle, replay="always")

    assert caught.value.line is not None
    assert caught.value.line.line == line_of(handle, "# only once")


async def test_concurrent_steps_that_never_settle_are_named() -> None:
    note, drawn = counted(Calls()), itertools.count()

    async def handle() -> None:
        await asyncio.gather(note(next(drawn)), note(next(drawn)))

    async with LocalKernel() as kernel:
        with pytest.raises(Divergence, match="note"):
            await kernel.run(handle, replay="always", timeout=20)


async def test_tasks_that_come_to_their_steps_in_another_order_do_not_differ() -> None:
    calls = Calls()
    note = counted(calls)
    turn = iter(range(1000))

    async def one(name: str, gate: asyncio.Event, opens: asyncio.Event) -> list[Any]:
        await gate.wait()
        opens.set()
        return [await note(f"{name} {number}") for number in range(3)]

    async def handle() -> Any:
        first, second = asyncio.Event(), asyncio.Event()
        if next(turn) % 2:
            first.set()
            return await asyncio.gather(one("a", first, second), one("b", second, first))
        second.set()
        return await asyncio.gather(one("a", first, second), one("b", second, first))

    async with LocalKernel() as kernel:
        run = await kernel.run(handle, replay="always")

    assert run.status == "completed", run.failure_reason
    assert len(calls.made) == 6


async def test_threads_that_come_to_their_steps_in_another_order_do_not_differ() -> None:
    calls, turn = Calls(), itertools.count()
    note = counted_plainly(calls)

    def handle() -> list[Any]:
        names = ["a", "b"] if next(turn) % 2 else ["b", "a"]
        with ThreadPoolExecutor(1) as pool:
            return sorted(pool.submit(copy_context().run, note, name).result() for name in names)

    async with LocalKernel() as kernel:
        run = await kernel.run(handle, replay="always")

    assert run.output == ["a", "b"], run.failure_reason
    assert sorted(calls.made) == ["a", "b"]


# ---------------------------------------------------------------- recordings


async def test_an_execution_becomes_a_test_that_a_changed_handler_fails(tmp_path: Path) -> None:
    calls = Calls()
    note = counted(calls)

    @tool
    async def broken() -> None:
        raise ValueError("broken")

    async def handle(given: str) -> list[Any]:
        with pytest.raises(ToolError, match="broken"):
            await broken()
        return await asyncio.gather(note(given), note(given), note("other"))

    async def changed(given: str) -> list[Any]:
        with pytest.raises(ToolError):
            await broken()
        return await asyncio.gather(note(given), note("new"), note("other"))  # changed

    async def shorter(given: str) -> list[Any]:
        with pytest.raises(ToolError):
            await broken()
        return await asyncio.gather(note(given), note("other"))

    async def other_end(given: str) -> Any:
        await handle(given)
        return "something else"

    async with LocalKernel() as kernel:
        run = await kernel.run(handle, {"given": "x"})
        recording = await Recording.of(kernel.client, run.execution.id)
    recording.save(tmp_path / "run.json")
    loaded = Recording.load(tmp_path / "run.json")
    assert loaded == recording
    before = list(calls.made)

    await loaded.replay(handle)
    for handler, text in ((changed, "not in the recording"), (shorter, "was not made"), (other_end, "output differs")):
        with pytest.raises(Divergence, match=text):
            await loaded.replay(handler)

    assert calls.made == before, "a replay makes nothing happen"


async def test_a_recording_replays_denials_and_failures() -> None:
    note = counted(Calls())
    bundle = "rules:\n  - id: no\n    when: {target: note}\n    then: {decision: deny, reason: not today}\n"

    async def handle() -> Any:
        told = await note("x")
        raise RuntimeError(told)

    async with LocalKernel() as kernel:
        run = await kernel.run(handle, policy=bundle)
        recording = await Recording.of(kernel.client, run.execution.id)

    assert "not today" in run.failure_reason
    await recording.replay(handle)


async def test_a_recording_takes_tools_within_tools() -> None:
    note = counted(Calls())

    @tool
    async def outer() -> list[Any]:
        return [await note(1), await note(2)]

    async def handle() -> Any:
        return [await outer(), await note(3)]

    async with LocalKernel() as kernel:
        run = await kernel.run(handle)
        recording = await Recording.of(kernel.client, run.execution.id)

    assert run.targets == ["outer", "note", "note", "note"]
    await recording.replay(handle)


async def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    for content in ("", "[]", "{}", '{"format": 99}', '{"format": 1, "execution": 3, "steps": [], "events": []}'):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(ValueError, match=r"x\.json"):
            Recording.load(tmp_path / "x.json")


async def test_an_execution_that_runs_cannot_be_recorded() -> None:
    async def handle() -> None:
        await asyncio.Event().wait()

    async with LocalKernel() as kernel:
        running = await kernel.start(handle)
        with pytest.raises(ValueError, match="once it has ended"):
            await Recording.of(kernel.client, running.execution_id)


async def test_a_kernel_in_the_test_leaves_nothing_behind() -> None:
    async def handle() -> None: ...

    async with LocalKernel() as kernel:
        await kernel.run(handle)

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stepwell")]
