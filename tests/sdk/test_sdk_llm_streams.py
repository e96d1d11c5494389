"""Streamed LLM calls: live to the caller and to observers, recorded once and whole, replayed as streams."""

import asyncio
import gzip
import json
from typing import Any

import httpx
import httpx2
import pytest
import zstandard
from openai import AsyncOpenAI

from stepwell import execution, http_client
from stepwell.llm import reading
from stepwell.testing import LocalKernel
from tests.support.event_streams import opened
from tests.support.wait import wait_until_async
from tests.support.wire_provider import Reply, WireProvider, events, streamed, wire_provider

TEXT = "Grüße, 世界 👩‍👩‍👧‍👦 — ½"


def chunk(content: str = "", *, finish: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "delta": {"content": content} if content else {}, "finish_reason": finish}
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-x", "choices": [choice]}
    return json.dumps(base | more, ensure_ascii=False)


USAGE = chunk(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13})
STREAM = events(*(chunk(each) for each in TEXT), chunk(finish="stop"), USAGE, "[DONE]")
CUT_SHORT = events(*(chunk(each) for each in TEXT))


async def chat(provider: WireProvider, **options: Any) -> list[dict[str, Any]]:
    """All chunks of a streamed chat, as the provider's own package reads them."""
    async with AsyncOpenAI(api_key="k", base_url=f"{provider.url}/v1", http_client=http_client(**options)) as client:
        stream = await client.chat.completions.create(
            model="gpt-x",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        return [each.model_dump() async for each in stream]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"]["content"] or "" for each in chunks for choice in each["choices"])


async def raw(provider: WireProvider, body: Any = None) -> tuple[httpx2.Response, bytes]:
    async with http_client() as client:
        response = await client.post(provider.url, json=body or {"model": "m", "stream": True})
        return response, response.content


# ---------------------------------------------------------------- live, recorded, replayed


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 64])
async def test_a29_a_stream_is_whole_for_the_caller_and_for_the_record_however_it_is_cut(size: int) -> None:
    async with wire_provider(streamed(STREAM, size=size)) as provider, LocalKernel() as kernel:
        seen: list[Any] = []

        async def handle() -> str:
            seen.append(await chat(provider))
            return text_of(seen[-1])

        run = await kernel.run(handle, replay="always")

    assert run.output == TEXT, run.failure_reason
    assert provider.hits == 1
    assert len(seen) >= 2
    assert all(each == seen[0] for each in seen)
    result = run.steps[0].result
    assert result == {"status": 200, "headers": {"content-type": "text/event-stream"}, "body": STREAM.decode()}
    assert run.steps[0].usage is not None
    assert run.steps[0].usage.total_tokens == 13


@pytest.mark.parametrize("end", ["\r\n", "\r"])
async def test_s1_line_ends_that_are_cut_in_the_middle_stay_what_they_were(end: str) -> None:
    body = events(*(chunk(each) for each in TEXT), chunk(finish="stop"), end=end)
    async with wire_provider(streamed(body, size=1)) as provider, LocalKernel() as kernel:

        async def handle() -> list[str]:
            return [(await raw(provider))[1].decode()]

        run = await kernel.run(handle, replay="always")

    assert run.output == [body.decode()]
    assert run.steps[0].result["body"] == body.decode()


async def test_a29_the_caller_and_observers_see_it_while_the_provider_still_speaks() -> None:
    first, rest = STREAM[:400], STREAM[400:]
    async with (
        wire_provider(streamed(b"", pieces=(first, rest), waits_before_piece=1)) as provider,
        LocalKernel() as kernel,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        got = asyncio.Event()

        async def handle() -> str:
            found: list[bytes] = []
            async with http_client() as client, client.stream("POST", provider.url, json={"model": "m"}) as response:
                async for piece in response.aiter_bytes():
                    found.append(piece)
                    got.set()
            return b"".join(found).decode()

        running = await kernel.start(handle)
        path = f"{kernel.url}/v0/executions/{running.execution_id}/stream"
        async with asyncio.timeout(20):
            await got.wait()
            async with opened(http, path, {}) as frames:
                provider.go_on.set()
                seen = await frames.rest()
        run = await running.wait()

    assert run.output == STREAM.decode()
    deltas = [each["data"] for each in seen if "event" not in each]
    # Whoever came late has seen the end of it, in order, and nothing is made up.
    assert STREAM.decode().endswith("".join(each["data"] for each in deltas))
    assert [each["seq"] for each in deltas] == sorted(each["seq"] for each in deltas)
    assert {each["step_id"] for each in deltas} == {run.steps[0].step_id}


async def test_a29_observers_see_the_whole_stream_and_replays_publish_nothing() -> None:
    began = asyncio.Event()
    async with (
        wire_provider(streamed(b"", pieces=(b"", STREAM), waits_before_piece=1)) as provider,
        LocalKernel() as kernel,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        provider.replies = [streamed(b"", pieces=(b": hi\n\n", STREAM), waits_before_piece=1)]

        async def handle() -> str:
            began.set()
            return text_of(await chat(provider))

        running = await kernel.start(handle, replay="always")
        async with opened(http, f"{kernel.url}/v0/executions/{running.execution_id}/stream", {}) as frames:
            await wait_until_async(lambda: provider.hits == 1, "the provider to be asked")
            provider.go_on.set()
            seen = await frames.rest()
        run = await running.wait()

    assert run.output == TEXT
    assert "".join(each["data"]["data"] for each in seen if "event" not in each) == ": hi\n\n" + STREAM.decode()
    assert [each["data"]["seq"] for each in seen[:-1]] == list(range(len(seen) - 1))


async def test_a32_a_replayed_stream_has_the_same_status_content_type_and_bytes() -> None:
    headers = {"content-type": "text/event-stream; charset=utf-8", "x-request-id": "another each time"}
    async with wire_provider(streamed(STREAM, headers=headers)) as provider, LocalKernel() as kernel:
        seen: list[Any] = []

        async def handle() -> None:
            response, body = await raw(provider)
            seen.append((response.status_code, sorted(response.headers.items()), body))

        run = await kernel.run(handle, replay="always")

    assert run.status == "completed"
    assert provider.hits == 1
    assert len(seen) >= 2
    assert all(each == seen[0] for each in seen)
    assert ("content-type", "text/event-stream; charset=utf-8") in seen[0][1]


async def test_a_stream_that_is_compressed_is_streamed_and_recorded_plain() -> None:
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    reply = streamed(gzip.compress(STREAM), size=7, headers=headers)
    async with wire_provider(reply) as provider, LocalKernel() as kernel:

        async def handle() -> str:
            return text_of(await chat(provider))

        run = await kernel.run(handle, replay="always")

    assert run.output == TEXT, run.failure_reason
    assert run.steps[0].result["body"] == STREAM.decode()


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_l2_what_comes_in_zstd_is_handed_on_and_recorded_plain(content_type: str) -> None:
    plain = STREAM if "stream" in content_type else json.dumps({"text": TEXT}, ensure_ascii=False).encode()
    headers = {"content-type": content_type, "content-encoding": "zstd"}
    reply = streamed(zstandard.compress(plain), size=7, headers=headers)
    async with wire_provider(reply) as provider, LocalKernel() as kernel:
        seen: list[bytes] = []

        async def handle() -> None:
            async with http_client(library="httpx") as client:
                body = {"model": "m", "stream": "stream" in content_type}
                seen.append((await client.post(provider.url, json=body)).content)

        run = await kernel.run(handle, replay="always")

    assert run.status == "completed", run.failure_reason
    # It is this library that asks for it.
    assert "zstd" in provider.head_of(0)["accept-encoding"]
    assert provider.hits == 1
    assert len(seen) >= 2
    assert set(seen) == {plain}
    assert run.steps[0].result["body"] == plain.decode()


async def test_s3_a_stream_in_any_form_that_the_rules_allow_is_whole_and_passed_on_untouched() -> None:
    half, _, other_half = chunk("b").partition(", ")
    usage = json.dumps({"usage": {"prompt_tokens": 9, "completion_tokens": 4}, "unknown": [1.50]})
    stream = (
        f": a comment\n\nevent:chunk\ndata:{chunk('a')}\n\ndata: {half},\ndata: {other_half}\n\ndata:\n\n"
        f"id: 7\nretry:10\ndata:{chunk(finish='stop')}\n\ndata:{chunk(finish='length')}\n\n"
        f"data:{usage}\n\ndata: [DONE]\n\n: and more\n\ndata: bytes after it"
    ).encode()
    async with wire_provider(streamed(stream, size=11)) as provider, LocalKernel() as kernel:
        seen: list[bytes] = []

        async def handle() -> None:
            seen.append((await raw(provider))[1])

        run = await kernel.run(handle, replay="always")

    assert run.status == "completed", run.failure_reason
    assert provider.hits == 1
    assert len(seen) >= 2
    assert set(seen) == {stream}
    assert run.steps[0].result["body"] == stream.decode()
    assert run.steps[0].usage is not None
    assert (run.steps[0].usage.input_tokens, run.steps[0].usage.output_tokens) == (9, 4)


# ---------------------------------------------------------------- streams that do not end well


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (streamed(CUT_SHORT), "ended before its end"),
        (streamed(STREAM[: len(STREAM) // 2], size=50, ending="cut"), "broke"),
        (streamed(CUT_SHORT + events('{"error":{"message":"overloaded"}}')), "overloaded"),
    ],
)
async def test_a31_a_stream_that_is_not_whole_fails_its_step_and_is_never_served_as_one(
    reply: Reply, words: str
) -> None:
    async with wire_provider(reply) as provider, LocalKernel() as kernel:
        seen: list[str] = []

        async def handle() -> str:
            try:
                await chat(provider)
            except Exception as error:  # noqa: BLE001 - whatever the provider's package makes of it
                seen.append(type(error).__name__)
            else:
                seen.append("whole")
            return "went on"

        run = await kernel.run(handle, replay="always")

    assert run.output == "went on"
    assert provider.hits == 1
    assert [step.status for step in run.steps] == ["failed"]
    assert words in run.steps[0].error["message"]
    assert len(seen) >= 2
    assert "whole" not in seen[1:]
    assert seen[-1] == "InternalServerError", "a failed step is answered 502"


async def test_a31_a_chat_without_done_is_whole() -> None:
    body = events(chunk(TEXT), chunk(finish="stop"))
    async with wire_provider(streamed(body)) as provider, LocalKernel() as kernel:

        async def handle() -> str:
            return text_of(await chat(provider))

        run = await kernel.run(handle, replay="always")

    assert run.output == TEXT
    assert run.steps[0].status == "succeeded"


async def test_a_streamed_request_that_is_answered_with_an_error_is_recorded_as_one() -> None:
    error = Reply(status=400, pieces=(b'{"error":{"message":"no","type":"x","param":null,"code":null}}',))
    async with wire_provider(error) as provider, LocalKernel() as kernel:

        async def handle() -> int:
            return (await raw(provider))[0].status_code

        run = await kernel.run(handle, replay="always")

    assert run.output == 400
    assert run.steps[0].result["status"] == 400


# ---------------------------------------------------------------- consumers that leave


@pytest.mark.parametrize("how", ["stops", "closes", "is cancelled"])
async def test_a30_a_consumer_that_leaves_cuts_nothing_and_the_end_of_the_handler_waits(how: str) -> None:
    first, rest = STREAM[:300], STREAM[300:]
    reply = streamed(b"", pieces=(first, rest), waits_before_piece=1)
    async with wire_provider(reply) as provider, LocalKernel() as kernel:

        async def consume(response: httpx2.Response) -> None:
            async for _ in response.aiter_bytes():
                if how != "is cancelled":
                    return

        async def handle() -> str:
            client = http_client()
            response = await client.send(client.build_request("POST", provider.url, json={"model": "m"}), stream=True)
            consuming = asyncio.create_task(consume(response))
            await asyncio.wait((consuming,), timeout=0.05 if how == "is cancelled" else None)
            if how == "is cancelled":
                consuming.cancel()
            if how == "closes":
                await response.aclose()
                await client.aclose()
            asyncio.get_running_loop().call_later(0.1, provider.go_on.set)
            return execution().execution_id

        run = await kernel.run(handle)

    assert run.status == "completed", run.failure_reason
    assert [step.status for step in run.steps] == ["succeeded"]
    assert run.steps[0].result["body"] == STREAM.decode()
    assert run.events[-1].type == "execution.completed", "nothing was left to close"


async def test_a30_a_stream_that_nobody_reads_is_given_up_after_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "UNWATCHED_SECONDS_MAX", 0.1)
    reply = streamed(b"", pieces=(STREAM[:300], *[b": still here\n\n"] * 3), waits_before_piece=2)
    async with wire_provider(reply) as provider, LocalKernel() as kernel:

        async def handle() -> str:
            client = http_client()
            request = client.build_request("POST", provider.url, json={"model": "m"})
            await client.send(request, stream=True)
            return "left"

        run = await kernel.run(handle)
        assert not provider.go_on.is_set()

    assert run.output == "left"
    assert [step.status for step in run.steps] == ["failed"]
    assert "nobody read the stream" in run.steps[0].error["message"]


async def test_a30_a_stream_that_is_too_long_fails_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "STREAM_BYTES_MAX", 1000)
    async with wire_provider(streamed(STREAM, size=100)) as provider, LocalKernel() as kernel:

        async def handle() -> str:
            with pytest.raises(httpx2.RemoteProtocolError, match="longer than 1000 bytes"):
                await raw(provider)
            return "went on"

        run = await kernel.run(handle)

    assert run.output == "went on", run.failure_reason
    assert "longer than 1000 bytes" in run.steps[0].error["message"]
