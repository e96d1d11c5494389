"""Agents of the library against a real kernel: what they record, what is replayed, and how they end."""

import asyncio
import dataclasses
import importlib.util
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stepwell import (
    Agent,
    Blocked,
    PolicyError,
    RateLimited,
    Result,
    ToolError,
    execution,
    step,
    tool,
    wrap_tool,
)
from stepwell.types import Webhook
from tests.sdk.conftest import Serve, Served
from tests.support.stack import ROOT


@dataclasses.dataclass
class Page:
    title: str
    words: int = 0


@tool
async def search(query: str, limit: int = 2) -> list[str]:
    return [f"{query} {number}" for number in range(limit)]


@tool("pages.read", idempotency="at_most_once")
def read(title: str) -> Page:
    return Page(title, len(title))


@tool
def broken(number: int) -> int:
    raise ValueError(f"no {number}")


async def steps_of(served: Served, execution_id: str) -> list[tuple[str, str, Any, str, str]]:
    steps = await served.client.list_steps(execution_id)
    return [(each.kind, each.target, each.args, each.idempotency, each.status) for each in steps]


async def test_a9_primitives_submit_kind_target_and_arguments_with_defaults(serve: Serve) -> None:
    fetch = wrap_tool("web.fetch", lambda args: {"got": args["url"]}, transform_args=lambda args: args | {"n": 1})

    async def handler(topic: str) -> Any:
        return [await search(topic), await read(title="A"), await fetch(url="u"), await step("now", time.time)]

    served = await serve(handler)
    ended = await served.run({"topic": "cats"})

    assert ended.status == "completed", ended.failure_reason
    assert ended.output[:3] == [["cats 0", "cats 1"], {"title": "A", "words": 1}, {"got": "u"}]
    assert await steps_of(served, ended.id) == [
        ("tool_call", "search", {"query": "cats", "limit": 2}, "safe_to_retry", "succeeded"),
        ("tool_call", "pages.read", {"title": "A"}, "at_most_once", "succeeded"),
        ("tool_call", "web.fetch", {"url": "u", "n": 1}, "safe_to_retry", "succeeded"),
        ("local", "now", {}, "safe_to_retry", "succeeded"),
    ]


async def test_a10_a_body_that_fails_is_recorded_and_raises_tool_error(serve: Serve) -> None:
    seen: list[Any] = []

    async def handler() -> str:
        try:
            await broken(7)
        except ToolError as error:
            seen.append((str(error), error.tool_id, error.step_id))
        return await broken(8)

    served = await serve(handler)
    ended = await served.run()

    assert (ended.status, ended.failure_reason) == ("failed", "tool_error: broken: no 8")
    steps = await served.client.list_steps(ended.id)
    assert [each.error for each in steps] == [{"message": "no 7"}, {"message": "no 8"}]
    assert seen == [("no 7", "broken", steps[0].step_id)]


async def test_a7_the_execution_is_found_in_handler_thread_tool_and_gathered_task(serve: Serve) -> None:
    @tool
    def in_thread(number: int) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return execution().execution_id

    async def handler() -> list[str]:
        async def inner() -> str:
            return execution().execution_id

        return [execution().execution_id, *await asyncio.gather(inner(), in_thread(1), in_thread(2))]

    ended = await (await serve(handler)).run()
    assert ended.output == [ended.id] * 4


def test_a7_outside_of_an_execution_every_primitive_raises() -> None:
    for call in (lambda: execution(), lambda: read("A"), lambda: step("now", time.time)):
        with pytest.raises(RuntimeError, match="outside of an execution"):
            call()


async def test_sync_handlers_call_tools_and_wait_for_them(serve: Serve) -> None:
    def handler(topic: str) -> Any:
        page = read(topic)
        # Another loop, in this thread.
        found = asyncio.run(search(topic))
        return [page.words, found, step("now", lambda: 1)]

    ended = await (await serve(handler)).run({"topic": "cats"})

    assert (ended.status, ended.output) == ("completed", [4, ["cats 0", "cats 1"], 1]), ended.failure_reason


async def test_identical_calls_at_once_are_steps_of_their_own(serve: Serve) -> None:
    async def handler() -> Any:
        return await asyncio.gather(*(step("roll", lambda: 4) for _ in range(5)))

    served = await serve(handler)
    ended = await served.run()

    assert ended.output == [4] * 5
    assert sorted(each.occurrence for each in await served.client.list_steps(ended.id)) == [0, 1, 2, 3, 4]


async def test_a_tool_that_calls_another_is_two_steps(serve: Serve) -> None:
    @tool
    async def outer(topic: str) -> int:
        return len(await search(topic))

    async def handler() -> int:
        return await outer("cats")

    served = await serve(handler)
    ended = await served.run()

    assert ended.output == 2
    assert [each.target for each in await served.client.list_steps(ended.id)] == ["outer", "search"]


async def test_a6_an_input_that_does_not_fit_fails_the_execution(serve: Serve) -> None:
    async def handler(page: Page) -> None: ...

    ended = await (await serve(handler)).run({"words": 3})

    assert ended.status == "failed"
    assert ended.failure_reason.startswith("input_invalid: ")


async def test_an_output_that_json_cannot_carry_fails_the_execution(serve: Serve) -> None:
    async def handler() -> Any:
        return {"at": object()}

    ended = await (await serve(handler)).run()

    assert ended.failure_reason.startswith("agent_error: TypeError: output.at: ")


async def test_a_result_leaves_a_state_behind_besides_its_output(serve: Serve) -> None:
    async def handler() -> Result:
        return Result(output=1, state={"seen": 2})

    assert (await (await serve(handler)).run()).output == 1


async def test_what_was_done_is_recorded_when_the_process_ends_in_the_middle(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.settling.LINGER_SECONDS", 60.0)
    is_done = asyncio.Event()

    async def handler() -> None:
        await search("cats")
        is_done.set()
        await asyncio.Event().wait()

    served = await serve(handler)
    created = await served.client.create(served.agent.agent_id)
    await is_done.wait()
    await served.agent.close()

    assert [each.status for each in await served.client.list_steps(created.id)] == ["succeeded"]
    await served.client.cancel(created.id)


async def test_a_closed_agent_begins_nothing_any_more() -> None:
    agent = Agent("closed", secret="a secret", base_url="http://127.0.0.1:9")
    agent.bind(lambda: None)
    await agent.close()

    # On its way while the agent was closed.
    is_taken = await agent.take(Webhook(execution_id="e", dispatch_id="d", dispatch_attempt=1, lease_timeout_seconds=9))

    assert not is_taken
    await agent.join()


async def test_the_agent_of_the_readme_runs(serve: Serve, tmp_path: Path) -> None:
    text = (ROOT / "sdk/README.md").read_text("utf-8")
    code = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "readme_agent.py").write_text(code, "utf-8")
    spec = importlib.util.spec_from_file_location("readme_agent", tmp_path / "readme_agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    ended = await (await serve(module.handle)).run({"question": "cats"})

    assert (ended.status, ended.output) == ("completed", "2 answers")
    assert code.endswith('Agent("researcher").run(handle)\n')


# ---------------------------------------------------------------- decisions

DENYING = """
rules:
  - {id: no-search, priority: 1, when: {target: search}, then: {decision: deny, reason: too_expensive}}
  - {id: no-clock, priority: 2, when: {target: now}, then: {decision: deny, reason: "Not on Sundays."}}
  - id: few
    priority: 3
    when: {target: broken}
    then: {decision: allow, rate_limit: {max_calls: 1, window: 1h, per_what: execution}}
"""


def asking(target: str) -> str:
    """A policy that asks a person about one target and allows the rest."""
    return (
        f"rules: [{{id: ask, when: {{target: {target}}}, then: {{decision: require_approval}}}}]\ndefault_action: allow"
    )


async def test_a12_a_denied_tool_says_so_and_a_denied_step_raises(serve: Serve) -> None:
    said: list[Any] = []

    async def handler() -> Any:
        said.append(await search("cats"))
        try:
            await step("now", time.time)
        except PolicyError as error:
            said.append((str(error), error.rule_id))
        for _ in range(2):
            try:
                await broken(1)
            except (ToolError, RateLimited) as error:
                said.append(type(error).__name__)
        await step("now", time.time)

    served = await serve(handler)
    await served.policy(DENYING)
    ended = await served.run()

    assert said == [
        "search not allowed. reason: too_expensive",
        ("Not on Sundays.", "no-clock"),
        "ToolError",
        "RateLimited",
    ]
    assert (ended.status, ended.failure_reason) == ("failed", "policy_denied: Not on Sundays.")


async def test_a13_a_step_that_waits_for_a_person_parks_the_run_and_a_grant_resumes_it(serve: Serve) -> None:
    runs: list[str] = []
    swallowed: list[str] = []

    async def handler() -> Any:
        before = await step("before", lambda: runs.append("before") or len(runs))
        for _ in range(3):
            try:
                return [before, await search("cats")]
            except Exception as error:  # noqa: BLE001 - what agents do
                swallowed.append(repr(error))
        return "gave up"

    served = await serve(handler)
    await served.policy(
        "rules: [{id: ask, when: {target: search}, then: {decision: require_approval}}]\ndefault_action: allow"
    )
    created = await served.client.create(served.agent.agent_id)
    await served.status(created.id, "blocked")
    await served.agent.join()
    approvals = await served.client.list_approvals()
    (approval,) = [each for each in approvals if each.execution_id == created.id]

    await served.client.grant_approval(approval.id, rationale="fine")
    ended = await served.client.wait(created.id, timeout=30)

    assert (ended.status, ended.output) == ("completed", [1, ["cats 0", "cats 1"]]), ended.failure_reason
    assert (runs, swallowed) == (["before"], [])


async def test_a14_a_signal_that_was_swallowed_is_raised_again(serve: Serve) -> None:
    """By `gather(return_exceptions=True)`, a bare except, and a retry loop around both."""
    seen: list[str] = []

    async def handler() -> str:
        for _ in range(3):
            results = await asyncio.gather(search("cats"), return_exceptions=True)
            seen.append(type(results[0]).__name__)
            try:
                await step("after", lambda: seen.append("ran"))
            except:  # noqa: E722 - what agents do
                seen.append("swallowed")
        return "as if nothing had been"

    served = await serve(handler)
    await served.policy(
        "rules: [{id: ask, when: {target: search}, then: {decision: require_approval}}]\ndefault_action: allow"
    )
    created = await served.client.create(served.agent.agent_id)
    await served.status(created.id, "blocked")
    await served.agent.join()

    assert (await served.client.get(created.id)).status == "blocked"
    assert seen == ["Blocked", "swallowed"] * 3
    assert [each.target for each in await served.client.list_steps(created.id)] == ["search"]
    await served.client.cancel(created.id)


async def test_a15_a_signal_or_refusal_that_leaves_a_body_does_not_fail_its_step(serve: Serve) -> None:
    @tool
    async def outer() -> Any:
        return await step("now", time.time)

    async def handler() -> Any:
        return await outer()

    served = await serve(handler)
    await served.policy(
        "rules: [{id: ask, when: {target: now}, then: {decision: require_approval}}]\ndefault_action: allow"
    )
    created = await served.client.create(served.agent.agent_id)
    await served.status(created.id, "blocked")
    await served.agent.join()

    steps = {each.target: each.status for each in await served.client.list_steps(created.id)}
    assert steps["outer"] == "executing"
    assert issubclass(Blocked, BaseException)
    await served.client.cancel(created.id)
