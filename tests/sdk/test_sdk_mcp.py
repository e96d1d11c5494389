"""Tools of MCP servers as steps, over stdio and over HTTP, with answers, errors, silence and broken links."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mcp import Client, StdioServerParameters

from examples import mcp_agent
from stepwell import ToolError, step, tool_schema
from stepwell.adapters.mcp import mcp_tools
from stepwell.testing import LocalKernel
from tests.sdk.mcp_server import lines
from tests.sdk.mcp_serving import Served, over_http, over_stdio
from tests.support.wait import loop_turns, wait_until_async

TRANSPORTS = pytest.mark.parametrize("transport", ["stdio", "http", "http with sessions"])

RULES = """
rules:
  - {id: ask, priority: 1, when: {target: append}, then: {decision: require_approval}}
  - {id: no, priority: 2, when: {target: draw}, then: {decision: deny, reason: no ink}}
  - {id: rest, priority: 3, when: {target: "*"}, then: {decision: allow}}
"""
PAUSE = RULES.replace("append", "pause").replace("draw", "nothing")


@pytest_asyncio.fixture
async def served(transport: str, tmp_path: Path) -> AsyncIterator[Served]:
    if transport == "stdio":
        yield over_stdio(tmp_path)
        return
    async with over_http(tmp_path, has_sessions=transport == "http with sessions") as server:
        yield server


@pytest_asyncio.fixture
async def kernel() -> AsyncIterator[LocalKernel]:
    async with LocalKernel() as running:
        yield running


@TRANSPORTS
async def test_the_tools_of_a_server_are_steps_that_are_made_once(served: Served, kernel: LocalKernel) -> None:
    async def handle(first: str) -> list[Any]:
        async with mcp_tools(served.where, prefix="lines.") as tools:
            answers = [await tools["lines.append"](line=first), await tools["lines.append"](line="b", times=2)]
            return [*answers, await tools["lines.look"]()]

    run = await kernel.run(handle, {"first": "a"}, replay="always")

    assert run.output == [{"result": 1}, {"result": 3}, "a\nb\nb"], run.failure_reason
    assert served.lines == ["a", "b", "b"]
    assert [(each.kind, each.target, each.idempotency) for each in run.steps] == [
        ("local", "mcp.list_tools", "safe_to_retry"),
        ("tool_call", "lines.append", "at_most_once"),
        ("tool_call", "lines.append", "at_most_once"),
        ("tool_call", "lines.look", "safe_to_retry"),
    ]
    assert [each.args for each in run.steps[1:]] == [{"line": "a"}, {"line": "b", "times": 2}, {}]
    # One for each fresh step: an attempt that only replays connects to nothing.
    assert served.connections() == 4


@TRANSPORTS
@pytest.mark.parametrize(("tool", "message"), [("fail", "no more room"), ("refuse", "a line is too long")])
async def test_d8_an_error_is_returned_once_on_the_link_that_goes_on(
    tool: str, message: str, served: Served, kernel: LocalKernel
) -> None:
    async def handle() -> list[str]:
        async with mcp_tools(served.where) as tools:
            with pytest.raises(ToolError, match=message) as failed:
                await tools[tool](line="x")
            return [str(failed.value), await tools["look"]()]

    run = await kernel.run(handle)

    assert message in run.output[0], run.failure_reason
    assert "outcome_unknown" not in run.output[0]
    assert (run.output[1], served.lines) == ("x", ["x"])
    assert [(each.target, each.status) for each in run.steps[1:]] == [(tool, "failed"), ("look", "succeeded")]
    assert served.connections() == 1


@TRANSPORTS
@pytest.mark.parametrize(
    ("tool", "options", "is_unknown"),
    [
        ("drop", {}, True),
        ("drop", {"idempotency": {"drop": "safe_to_retry"}}, False),
        ("drop_again", {}, False),
        ("drop_again", {"idempotency": "at_most_once"}, True),
    ],
)
async def test_d8_a_link_that_breaks_after_the_tool_ran_leaves_its_outcome_unknown(
    tool: str, options: dict[str, Any], is_unknown: bool, served: Served, kernel: LocalKernel
) -> None:
    async def handle() -> list[str]:
        async with mcp_tools(served.where, **options) as tools:
            with pytest.raises(ToolError, match="link to the server broke") as failed:
                await tools[tool](line="x")
            return [str(failed.value), await tools["look"]()]

    run = await kernel.run(handle)

    assert run.output[0].startswith("outcome_unknown: ") is is_unknown, run.failure_reason
    assert (run.output[1], served.lines) == ("x", ["x"])
    assert [(each.target, each.status) for each in run.steps[1:]] == [(tool, "failed"), ("look", "succeeded")]
    assert served.connections() == 2


@TRANSPORTS
async def test_d8_a_tool_that_is_slow_times_out_alone(served: Served, kernel: LocalKernel) -> None:
    async def handle() -> list[str]:
        async with mcp_tools(served.where, timeout_seconds=1.0) as tools:
            hanging = asyncio.create_task(tools["hang"](line="x"))
            await wait_until_async(lambda: served.lines, "the slow tool to begin")
            beside = await tools["look"]()
            assert not hanging.done()
            with pytest.raises(ToolError, match="has not answered within 1 s") as failed:
                await hanging
            return [beside, str(failed.value), await tools["look"]()]

    run = await kernel.run(handle)

    assert run.status == "completed", run.failure_reason
    assert (run.output[0], run.output[2], served.lines) == ("x", "x", ["x"])
    assert run.output[1].startswith("outcome_unknown: ")
    assert [each.target for each in run.steps[1:]] == ["hang", "look", "look"]
    assert served.connections() == 1


@TRANSPORTS
async def test_calls_beside_each_other_share_one_link(served: Served, kernel: LocalKernel) -> None:
    async def handle() -> list[Any]:
        async with mcp_tools(served.where) as tools:
            return await asyncio.gather(*(tools["append"](line=str(number)) for number in range(5)))

    run = await kernel.run(handle)

    assert sorted(each["result"] for each in run.output) == [1, 2, 3, 4, 5], run.failure_reason
    assert served.connections() == 1


async def test_every_call_on_a_broken_link_is_lost_with_it(tmp_path: Path, kernel: LocalKernel) -> None:
    served = over_stdio(tmp_path)

    async def handle() -> list[str]:
        async with mcp_tools(served.where) as tools:
            hanging = asyncio.create_task(tools["hang"](line="x"))
            await wait_until_async(lambda: served.lines, "the slow tool to begin")
            lost = await asyncio.gather(hanging, tools["drop"](line="y"), return_exceptions=True)
            return [str(each) for each in lost]

    run = await kernel.run(handle)

    assert [each.split(";")[0] for each in run.output] == [
        f"outcome_unknown: the link to the server broke before {tool} answered" for tool in ("hang", "drop")
    ], run.failure_reason


async def test_tools_are_used_from_a_loop_of_another_thread(tmp_path: Path, kernel: LocalKernel) -> None:
    async with over_http(tmp_path) as served:

        async def use() -> list[Any]:
            async with mcp_tools(served.where) as tools:
                return [await tools["append"](line="a"), await tools["look"]()]

        def handle() -> list[Any]:
            return asyncio.run(use())

        run = await kernel.run(handle, replay="always")

    assert run.output == [{"result": 1}, "a"], run.failure_reason


async def test_a_server_that_died_between_two_calls_is_started_anew(tmp_path: Path, kernel: LocalKernel) -> None:
    served = over_stdio(tmp_path)

    async def handle() -> Any:
        async with mcp_tools(served.where) as tools:
            process_id = (await tools["leave"]())["result"]
            await wait_until_async(lambda: not is_alive(process_id), "the server to die")
            await loop_turns()
            return await tools["append"](line="x")

    run = await kernel.run(handle)

    assert run.output == {"result": 1}, run.failure_reason
    assert served.connections() == 2


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_server_that_has_forgotten_the_session_gets_another_one(tmp_path: Path, kernel: LocalKernel) -> None:
    async with over_http(tmp_path, has_sessions=True) as served:

        async def handle() -> list[Any]:
            async with mcp_tools(served.where) as tools:
                answers = [await tools["append"](line="a")]
                served.forget_sessions()
                with pytest.raises(ToolError, match="Session terminated"):
                    await tools["append"](line="b")
                return [*answers, await tools["append"](line="c")]

        run = await kernel.run(handle)

    assert run.output == [{"result": 1}, {"result": 2}], run.failure_reason
    assert served.lines == ["a", "c"]
    assert served.connections() == 2


async def test_a_handler_that_runs_again_has_the_tools_that_it_had_first(tmp_path: Path, kernel: LocalKernel) -> None:
    seen: list[list[str]] = []
    async with over_http(tmp_path) as served:

        async def handle() -> str:
            async with mcp_tools(served.where) as tools:
                seen.append(list(tools))
                await step("pause", lambda: None)
                with pytest.raises(ToolError, match="Unknown tool: draw") as failed:
                    await tools["draw"]()
                return str(failed.value)

        running = await kernel.start(handle, policy=PAUSE)
        approval = await running.approval()
        served.server.remove_tool("draw")
        served.server.add_tool(is_alive)
        await kernel.client.grant_approval(approval.id)
        run = await running.wait()

    assert run.status == "completed", run.failure_reason
    assert seen[0] == seen[1]
    assert "draw" in seen[0]


@pytest.mark.parametrize("where", ["http://127.0.0.1:1/mcp", StdioServerParameters(command="no-such-program")])
async def test_a_server_that_cannot_be_reached_is_told(where: Any, kernel: LocalKernel) -> None:
    async def handle() -> None:
        async with mcp_tools(where):
            raise AssertionError("there is no server")

    run = await kernel.run(handle)

    assert run.failure_reason.startswith("tool_error: mcp.list_tools: the MCP server cannot be used: ")


async def test_a_server_that_says_nothing_is_given_up(kernel: LocalKernel) -> None:
    where = StdioServerParameters(command=sys.executable, args=["-c", "input(); input()"])

    async def handle() -> None:
        async with mcp_tools(where, connect_seconds=0.5):
            raise AssertionError("there is no server")

    run = await kernel.run(handle)

    assert run.failure_reason == "tool_error: mcp.list_tools: the MCP server was not ready within 0.5 s"


async def test_the_tools_describe_themselves_and_contents_are_json(tmp_path: Path, kernel: LocalKernel) -> None:
    async def handle() -> list[Any]:
        async with mcp_tools(over_stdio(tmp_path).where) as tools:
            return [tool_schema(tools["append"]), await tools["draw"]()]

    run = await kernel.run(handle)

    assert run.status == "completed", run.failure_reason
    schema, contents = run.output
    assert (schema["name"], schema["description"]) == ("append", "Append a line.")
    assert schema["parameters"]["required"] == ["line"]
    assert schema["parameters"]["properties"]["times"]["default"] == 1
    assert [each["type"] for each in contents] == ["text", "image"]
    assert contents[1]["mimeType"] == "image/png"


@TRANSPORTS
async def test_a_session_of_the_callers_own_is_used_as_it_is(served: Served, kernel: LocalKernel) -> None:
    async def handle() -> list[Any]:
        async with Client(served.where) as client, mcp_tools(client.session) as tools:
            return [await tools["append"](line="a"), await tools["look"]()]

    run = await kernel.run(handle, replay="always")

    assert run.output == [{"result": 1}, "a"], run.failure_reason
    assert served.lines == ["a"]


async def test_a_person_is_asked_and_a_rule_denies(tmp_path: Path, kernel: LocalKernel) -> None:
    served = over_stdio(tmp_path)

    async def handle() -> list[Any]:
        async with mcp_tools(served.where) as tools:
            return [await tools["draw"](), await tools["append"](line="a"), await tools["look"]()]

    running = await kernel.start(handle, policy=RULES)
    approval = await running.approval()
    assert served.lines == []
    await kernel.client.grant_approval(approval.id)
    run = await running.wait()

    assert run.output == ["draw not allowed. reason: no ink", {"result": 1}, "a"], run.failure_reason
    assert served.lines == ["a"]


async def test_the_example_enters_every_amount_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: LocalKernel
) -> None:
    monkeypatch.chdir(tmp_path)

    run = await kernel.run(mcp_agent.handle, {"bread": 3, "coal": 20}, replay="always")

    assert run.output == "bread: 3; coal: 20; together 23", run.failure_reason
    assert lines(tmp_path, "book.txt") == ["3 bread", "20 coal"]
    assert [(each.target, each.idempotency) for each in run.steps[1:]] == [
        ("ledger.enter", "at_most_once"),
        ("ledger.enter", "at_most_once"),
        ("ledger.total", "safe_to_retry"),
    ]
