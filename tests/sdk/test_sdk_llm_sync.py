"""Blocking clients of a provider, in plain handlers and tools."""

import threading
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

from stepwell import http_client, sync_http_client, tool
from stepwell.llm import asking, reading
from stepwell.testing import LocalKernel
from tests.sdk.test_sdk_llm_calls import COMPLETION, DENY, ERROR
from tests.sdk.test_sdk_llm_streams import CUT_SHORT, STREAM, TEXT, text_of
from tests.support.wait import wait_until_async
from tests.support.wire_provider import NoReply, Reply, WireProvider, streamed, wire_provider

ASKED: dict[str, Any] = {"model": "gpt-x", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PAUSE_SECONDS", 0.001)


def client_of(provider: WireProvider) -> OpenAI:
    return OpenAI(api_key="sk-secret", base_url=f"{provider.url}/v1", http_client=sync_http_client())


async def test_a24_a_plain_handlers_call_is_a_step_equal_to_that_of_one_that_awaits() -> None:
    seen: list[Any] = []
    async with wire_provider(Reply(pieces=(COMPLETION,))) as provider, LocalKernel() as kernel:

        def handle() -> str:
            with client_of(provider) as client:
                seen.append(client.chat.completions.create(**ASKED).model_dump())
            return seen[-1]["id"]

        async def awaits() -> str:
            async with openai.AsyncOpenAI(
                api_key="k", base_url=f"{provider.url}/v1", http_client=http_client()
            ) as client:
                return (await client.chat.completions.create(**ASKED)).id

        run = await kernel.run(handle, replay="always")
        other = await kernel.run(awaits)

    assert run.output == other.output == "chatcmpl-1", run.failure_reason
    assert provider.hits == 2
    assert len(seen) >= 2
    assert all(each == seen[0] for each in seen)
    assert run.steps[0].args_hash == other.steps[0].args_hash
    assert run.steps[0].result == other.steps[0].result


async def test_a_plain_tool_may_make_calls_too() -> None:
    async with wire_provider(Reply(pieces=(COMPLETION,))) as provider, LocalKernel() as kernel:

        @tool
        def summary() -> str:
            with client_of(provider) as client:
                return client.chat.completions.create(**ASKED).id

        async def handle() -> str:
            return await summary()

        run = await kernel.run(handle, replay="always")

    assert run.output == "chatcmpl-1"
    assert sorted(run.targets) == ["gpt-x", "summary"]


@pytest.mark.parametrize("size", [0, 1, 7])
async def test_a29_a_stream_is_whole_recorded_and_replayed(size: int) -> None:
    seen: list[Any] = []
    async with wire_provider(streamed(STREAM, size=size)) as provider, LocalKernel() as kernel:

        def handle() -> str:
            with client_of(provider) as client:
                stream = client.chat.completions.create(**ASKED, stream=True)
                seen.append([each.model_dump() for each in stream])
            return text_of(seen[-1])

        run = await kernel.run(handle, replay="always")

    assert run.output == TEXT, run.failure_reason
    assert provider.hits == 1
    assert len(seen) >= 2
    assert all(each == seen[0] for each in seen)
    assert run.steps[0].result["body"] == STREAM.decode()


async def test_a30_a_consumer_that_leaves_cuts_nothing() -> None:
    reply = streamed(b"", pieces=(STREAM[:300], STREAM[300:]), waits_before_piece=1)
    async with wire_provider(reply) as provider, LocalKernel() as kernel:
        has_left = threading.Event()

        def handle() -> str:
            with client_of(provider) as client:
                for _ in client.chat.completions.create(**ASKED, stream=True):
                    break
            has_left.set()
            return "left"

        running = await kernel.start(handle)
        await wait_until_async(has_left.is_set, "the consumer to leave")
        provider.go_on.set()
        run = await running.wait()

    assert run.output == "left"
    assert [step.status for step in run.steps] == ["succeeded"]
    assert run.steps[0].result["body"] == STREAM.decode()


async def test_a30_a_stream_that_nobody_reads_is_given_up_after_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "UNWATCHED_SECONDS_MAX", 0.1)
    reply = streamed(b"", pieces=(STREAM[:300], STREAM[300:]), waits_before_piece=1)
    async with wire_provider(reply) as provider, LocalKernel() as kernel:

        def handle() -> str:
            client = sync_http_client()
            client.send(client.build_request("POST", provider.url, json={"model": "m"}), stream=True)
            return "left"

        run = await kernel.run(handle)
        assert not provider.go_on.is_set()

    assert run.output == "left"
    assert [step.status for step in run.steps] == ["failed"]
    assert "nobody read the stream" in run.steps[0].error["message"]


async def test_a31_a_stream_that_is_not_whole_fails_its_step() -> None:
    async with wire_provider(streamed(CUT_SHORT)) as provider, LocalKernel() as kernel:

        def handle() -> str:
            with sync_http_client() as client, pytest.raises(httpx2.HTTPError):
                client.post(provider.url, json={"model": "m"}).raise_for_status()
            return "went on"

        run = await kernel.run(handle, replay="always")

    assert run.output == "went on", run.failure_reason
    assert (provider.hits, [step.status for step in run.steps]) == (1, ["failed"])


async def test_what_may_be_better_the_next_time_is_asked_again_and_the_rest_is_an_answer() -> None:
    cut = Reply(pieces=(COMPLETION[:40],), ending="cut")
    async with (
        wire_provider(Reply(status=503, pieces=(ERROR,)), cut, Reply(pieces=(COMPLETION,)), NoReply()) as provider,
        LocalKernel() as kernel,
    ):

        def handle() -> list[Any]:
            with client_of(provider) as client:
                first = client.chat.completions.create(**ASKED).id
                with pytest.raises(openai.InternalServerError) as caught:
                    client.chat.completions.create(**ASKED)
                return [first, caught.value.status_code]

        run = await kernel.run(handle, replay="always")

    assert run.output == ["chatcmpl-1", 502], run.failure_reason
    assert provider.hits == 3 + 4
    assert [step.status for step in run.steps] == ["succeeded", "failed"]


async def test_a_denied_call_is_an_answer() -> None:
    async with wire_provider() as provider, LocalKernel() as kernel:

        def handle() -> Any:
            with client_of(provider) as client, pytest.raises(openai.PermissionDeniedError) as caught:
                client.chat.completions.create(**ASKED)
            return caught.value.body

        run = await kernel.run(handle, policy=DENY)

    assert run.output == {"type": "rebuno_refusal", "message": "rebuno_refusal: denied reason=too dear"}
    assert provider.hits == 0


async def test_a_blocking_client_on_an_event_loop_is_refused() -> None:
    async with wire_provider() as provider, LocalKernel() as kernel:

        async def handle() -> None:
            with sync_http_client() as client:
                client.post(provider.url, json={"model": "m"})

        run = await kernel.run(handle)

    assert "would stop the event loop" in run.failure_reason
    assert (provider.hits, run.steps) == (0, [])


async def test_another_body_passes_and_nothing_is_recorded_outside_of_a_handler() -> None:
    def ask(url: str) -> None:
        with sync_http_client() as client:
            assert client.post(url, content=b"[]").json() == {}
            with pytest.raises(RuntimeError, match="sync_http_client"):
                client.post(url, json={"model": "m"})

    async with wire_provider() as provider:
        thread = threading.Thread(target=ask, args=(provider.url,))
        thread.start()
        await wait_until_async(lambda: not thread.is_alive(), "the thread to end")
    assert provider.hits == 1
