"""What must not be kept reaches the provider and the caller, and no record."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from stepwell import execution, http_client, sync_http_client
from stepwell.llm.scrubbing import SCRUBBED, scrubbed, scrubbing
from stepwell.testing import LocalKernel, Run
from tests.sdk.gateway_place import recorded
from tests.support.event_streams import opened
from tests.support.gateway import gateway
from tests.support.wait import wait_until_async
from tests.support.wire_provider import Reply, events, streamed, wire_provider

CARD = "4111 1111 1111 1111"
SCRUB = scrubbing([r"\b\d{4}( \d{4}){3}\b"])
COMPLETION = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-x",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": f"paid by {CARD}"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    }
).encode()
STREAM = events(
    *(json.dumps({"choices": [{"delta": {"content": each}, "finish_reason": None}]}) for each in ("by ", CARD)),
    json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
    "[DONE]",
)
ASKED: dict[str, Any] = {"model": "gpt-x", "messages": [{"role": "user", "content": f"pay with {CARD}"}]}


async def by_client(_: str, provider_url: str) -> str:
    async with AsyncOpenAI(api_key="k", base_url=provider_url, http_client=http_client(scrub=SCRUB)) as client:
        return (await client.chat.completions.create(**ASKED)).choices[0].message.content


async def by_sync_client(_: str, provider_url: str) -> str:
    def ask() -> str:
        with OpenAI(api_key="k", base_url=provider_url, http_client=sync_http_client(scrub=SCRUB)) as client:
            return client.chat.completions.create(**ASKED).choices[0].message.content

    return await asyncio.to_thread(ask)


async def by_gateway(gateway_url: str, _: str) -> str:
    async with AsyncOpenAI(api_key="k", base_url=await execution().gateway_url(gateway_url)) as client:
        return (await client.chat.completions.create(**ASKED)).choices[0].message.content


@pytest.mark.parametrize("ask", [by_client, by_sync_client, by_gateway])
async def test_it_is_asked_and_answered_whole_and_recorded_without(ask: Any) -> None:
    lived: list[str] = []
    async with (
        wire_provider(Reply(pieces=(COMPLETION,))) as provider,
        LocalKernel() as kernel,
        gateway(kernel.url, provider.url, scrub=SCRUB) as gateway_url,
    ):

        async def handle() -> None:
            lived.append(await ask(gateway_url, f"{provider.url}/v1"))
            if len(lived) == 1:
                await asyncio.Event().wait()

        running = await kernel.start(handle)
        await wait_until_async(lambda: len(lived) == 1, "the answer")
        await recorded(kernel, running.execution_id)
        await running.interrupt()
        run = await running.wait()
        sent = provider.requests[0].decode()

    assert run.status == "completed", run.failure_reason
    assert provider.hits == 1
    assert CARD in sent
    assert lived == [f"paid by {CARD}", f"paid by {SCRUBBED}"]
    assert_kept_out(run)
    assert run.steps[0].args["messages"][0]["content"] == f"pay with {SCRUBBED}"
    assert run.execution.usage.total_tokens == 12


async def test_a_stream_that_is_scrubbed_is_not_shown_live() -> None:
    async with wire_provider(streamed(STREAM, size=9)) as provider, LocalKernel() as kernel:
        is_watched = asyncio.Event()

        async def handle() -> str:
            await is_watched.wait()
            async with http_client(scrub=SCRUB) as client:
                return (await client.post(provider.url, json={"model": "m", "stream": True})).text

        running = await kernel.start(handle)
        async with (
            httpx.AsyncClient(trust_env=False) as http,
            opened(http, f"{kernel.url}/v0/executions/{running.execution_id}/stream", {}) as frames,
        ):
            is_watched.set()
            run = await running.wait()
            seen = await frames.rest()

    assert CARD in run.output
    assert [frame.get("event") for frame in seen] == ["end"]
    assert_kept_out(run, output=False)


def assert_kept_out(run: Run, *, output: bool = True) -> None:
    assert CARD not in str(run.steps)
    assert not output or CARD not in str(run)


def test_every_text_of_a_value_is_scrubbed_and_nothing_else() -> None:
    value = {"a": [f"x {CARD}", 1.5, None, {CARD: True}], "b": CARD}

    assert scrubbed(value, SCRUB) == {"a": [f"x {SCRUBBED}", 1.5, None, {CARD: True}], "b": SCRUBBED}


def test_a_replacement_is_no_template() -> None:
    assert scrubbing(["(b)"], replacement=r"\1")("abc") == r"a\1c"


@pytest.mark.parametrize("pattern", ["(", "a*", ""])
def test_a_pattern_that_finds_nothing_or_everything_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"regular expression|empty text"):
        scrubbing([pattern])
