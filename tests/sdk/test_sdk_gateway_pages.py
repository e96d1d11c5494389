"""The gateway's page and the README's section: their agents run, their file is read, their commands exist."""

import argparse
import asyncio
import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from kernel import cli
from stepwell.gateway import __main__ as command
from stepwell.gateway.settings import settings_of
from stepwell.testing import LocalKernel
from tests.sdk.gateway_place import recorded
from tests.support.gateway import gateway, gateway_process
from tests.support.stack import ROOT
from tests.support.wire_provider import Reply, wire_provider

PAGE = (ROOT / "docs" / "gateway.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")
CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-5",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "because"}, "finish_reason": "stop"}],
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-5",
    "content": [{"type": "text", "text": "because"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 2},
}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def handler(code: str, url: str, folder: Path) -> Any:
    """The function of an agent on a page, whose gateway is at another address."""
    assert "http://127.0.0.1:8081" in code
    path = folder / "agent_of_a_page.py"
    path.write_text(code.replace("http://127.0.0.1:8081", url), "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.handle


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-of-the-agent")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)


@pytest.mark.parametrize(("code", "answer"), list(zip(blocks(PAGE, "python"), (CHAT, MESSAGE), strict=True)))
async def test_the_agents_of_the_page_run(code: str, answer: Any, tmp_path: Path) -> None:
    async with (
        wire_provider(Reply(pieces=(json.dumps(answer).encode(),))) as provider,
        LocalKernel() as kernel,
        gateway(kernel.url, provider.url) as url,
    ):
        run = await kernel.run(handler(code, url, tmp_path), {"question": "why?"}, replay="always")

    assert run.output == "because", run.failure_reason
    assert provider.hits == 1
    assert [step.kind for step in run.steps] == ["llm_call"]


def test_the_file_of_the_page_is_read(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(blocks(PAGE, "toml")[0])
    environment = {"OPENAI_API_KEY": "a", "MISTRAL_API_KEY": "b", "AZURE_KEY": "c"}

    upstreams = settings_of(environment, file).upstreams

    assert sorted(upstreams) == ["anthropic", "azure", "mistral", "openai"]
    assert [upstreams[name].key for name in ("openai", "mistral", "azure")] == ["a", "b", "c"]


@pytest.mark.parametrize("text", [PAGE, README], ids=["page", "readme"])
def test_their_commands_exist(text: str) -> None:
    commands = [line.split("#")[0] for line in re.findall(r"^    (.*stepwell (?:gateway|key) .*)$", text, re.MULTILINE)]
    assert commands
    for line in commands:
        words = [word for word in shlex.split(line) if "=" not in word]
        assert words.pop(0) == "stepwell"
        parser: argparse.ArgumentParser = command._parser() if words[0] == "gateway" else cli._parser()
        parser.parse_args(words[1:] if words[0] == "gateway" else words)


async def test_the_agent_of_the_readme_resumes_after_a_kill_without_a_second_question(tmp_path: Path) -> None:
    """The kill is the agent's and the gateway's at once: nothing but the record is left."""
    entered: list[str] = []
    code = next(each for each in blocks(README, "python") if "gateway_url" in each)

    async with (
        wire_provider(Reply(pieces=(json.dumps(CHAT).encode(),))) as provider,
        LocalKernel(lease_seconds=30) as kernel,
        gateway_process(kernel.url, provider.url, tmp_path) as found,
    ):
        inner = handler(code, found.url, tmp_path)

        async def handle(question: str) -> str:
            entered.append(question)
            answer = await inner(question)
            if len(entered) == 1:
                # What the agent's process does no more.
                await _never()
            return answer

        running = await kernel.start(handle, {"question": "why?"})
        await recorded(kernel, running.execution_id)
        assert provider.hits == 1
        await found.kill()
        await found.start()
        await running.interrupt()
        run = await running.wait()

    assert run.output == "because", run.failure_reason
    assert entered == ["why?", "why?"]
    assert provider.hits == 1


async def _never() -> None:
    await asyncio.Event().wait()
