"""Anthropic's own package through `http_client()`, and the page about LLM calls, whose snippets run."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from anthropic import APIStatusError, AsyncAnthropic

from stepwell import http_client
from stepwell.llm import asking, reading
from stepwell.testing import LocalKernel
from tests.support.stack import ROOT
from tests.support.wire_provider import Reply, WireProvider, streamed, wire_provider

PAGE = ROOT / "docs" / "llm-calls.md"
USAGE = {"input_tokens": 12, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0, "output_tokens": 6}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "Grüße 🙂"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": USAGE,
}
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": MESSAGE | {"content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Grüße"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " 🙂"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 6},
    },
    {"type": "message_stop"},
]
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PAUSE_SECONDS", 0.001)


def written(*events: dict[str, Any]) -> bytes:
    texts = [f"event: {each['type']}\ndata: {json.dumps(each, ensure_ascii=False)}\n\n" for each in events]
    return "".join(texts).encode()


def client_of(provider: WireProvider) -> AsyncAnthropic:
    return AsyncAnthropic(api_key="sk-ant-secret", base_url=provider.url, http_client=http_client())


ASKED: dict[str, Any] = {"model": "claude-x", "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}


async def test_a_message_is_a_step_and_is_replayed_equal() -> None:
    seen: list[Any] = []
    async with wire_provider(Reply(pieces=(json.dumps(MESSAGE).encode(),))) as provider, LocalKernel() as kernel:

        async def handle() -> None:
            async with client_of(provider) as client:
                seen.append((await client.messages.create(**ASKED)).model_dump())

        run = await kernel.run(handle, replay="always")

    assert run.status == "completed", run.failure_reason
    assert provider.hits == 1
    assert len(seen) >= 2
    assert all(each == seen[0] for each in seen)
    assert (run.steps[0].target, run.steps[0].args) == ("claude-x", ASKED)
    assert run.steps[0].usage is not None
    assert (run.steps[0].usage.input_tokens, run.steps[0].usage.total_tokens) == (15, 21)
    assert "sk-ant-secret" not in str(run)


@pytest.mark.parametrize("size", [0, 1, 9])
async def test_a_streamed_message_is_replayed_as_a_stream(size: int) -> None:
    seen: list[Any] = []
    async with wire_provider(streamed(written(*EVENTS), size=size)) as provider, LocalKernel() as kernel:

        async def handle() -> str:
            async with client_of(provider) as client, client.messages.stream(**ASKED) as stream:
                seen.append([event.model_dump() async for event in stream])
                return "".join(
                    block.text for block in (await stream.get_final_message()).content if block.type == "text"
                )

        run = await kernel.run(handle, replay="always")

    assert run.output == "Grüße 🙂", run.failure_reason
    assert provider.hits == 1
    assert len(seen) >= 2
    assert all(each == seen[0] for each in seen)
    assert run.steps[0].usage is not None
    assert run.steps[0].usage.output_tokens == 6


@pytest.mark.parametrize("events", [EVENTS[:4], [*EVENTS[:4], OVERLOADED]])
async def test_s4_a_streamed_message_that_does_not_come_to_its_end_fails_its_step(events: list[dict[str, Any]]) -> None:
    async with wire_provider(streamed(written(*events))) as provider, LocalKernel() as kernel:
        seen: list[str] = []

        async def handle() -> str:
            try:
                async with client_of(provider) as client, client.messages.stream(**ASKED) as stream:
                    await stream.get_final_message()
            except Exception as error:  # noqa: BLE001 - whatever the provider's package makes of it
                seen.append(type(error).__name__)
                return "no answer"
            return "an answer"

        run = await kernel.run(handle, replay="always")

    assert run.output == "no answer"
    assert provider.hits == 1
    assert [step.status for step in run.steps] == ["failed"]
    assert seen[-1] == "InternalServerError"


async def test_its_package_does_not_try_again_by_itself() -> None:
    error = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}).encode()
    async with wire_provider(Reply(status=529, pieces=(error,))) as provider, LocalKernel() as kernel:

        async def handle() -> int:
            try:
                async with client_of(provider) as client:
                    await client.messages.create(**ASKED)
            except APIStatusError as refused:
                return refused.status_code
            return 0

        run = await kernel.run(handle, replay="always")

    assert (run.output, provider.hits, len(run.steps)) == (529, 4, 1)


# ---------------------------------------------------------------- the page

CHAT = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-5",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "why not?"}, "finish_reason": "stop"}],
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "gpt-5",
    "status": "completed",
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
    "output": [
        {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "why not?", "annotations": []}],
        }
    ],
}
ANSWERS = {"chat.completions.create": CHAT, "responses.create": RESPONSE}


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_every_snippet_of_the_page_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(code) == 3
    answer = next(answer for called, answer in ANSWERS.items() if called in code[number])
    (tmp_path / f"snippet_{number}.py").write_text(code[number], "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    async with wire_provider(Reply(pieces=(json.dumps(answer).encode(),))) as provider, LocalKernel() as kernel:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1")
        run = await kernel.run(__import__(f"snippet_{number}").handle, {"question": "why?"}, replay="always")

    assert run.output == "why not?", run.failure_reason
    assert provider.hits == 1


def test_every_bound_that_the_page_names_is_the_one_that_holds() -> None:
    text = PAGE.read_text("utf-8")
    assert f"up to {reading.STREAM_BYTES_MAX // 2**20} MiB and {reading.UNWATCHED_SECONDS_MAX:g} seconds" in text
    assert "up to three times" in text
    assert asking.RETRIES_MAX == 3
