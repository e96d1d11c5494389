"""A35: calls of a provider's own package through a gateway are steps, as those of `http_client()` are."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from stepwell import execution, http_client
from stepwell.llm import asking
from stepwell.testing import Run
from tests.sdk.gateway_place import COMPLETION, ERROR, KEY, Place, ask, note, place
from tests.support.gateway import gateway
from tests.support.wait import wait_until_async
from tests.support.wire_provider import NoReply, Reply, events, streamed


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PAUSE_SECONDS", 0.001)


def without_ids(run: Run) -> list[Any]:
    return [(step.kind, step.target, step.occurrence, step.status, step.args, step.result) for step in run.steps]


# ---------------------------------------------------------------- recorded and replayed


@pytest.mark.parametrize("way", [Place.by_path, Place.by_headers])
async def test_a35_a_call_through_the_gateway_is_the_step_that_http_client_makes(way: Any) -> None:
    async with place(Reply(pieces=(COMPLETION,))) as found:
        seen: list[Any] = []

        async def by_gateway() -> Any:
            async with await way(found) as client:
                seen.append(await ask(client))
            await note(seen[-1]["choices"])

        async def by_client() -> Any:
            async with AsyncOpenAI(
                api_key=KEY, base_url=f"{found.provider.url}/v1", http_client=http_client()
            ) as client:
                await note((await ask(client))["choices"])

        run = await found.kernel.run(by_gateway, replay="always")
        hits = found.provider.hits
        same = await found.kernel.run(by_client)
        head = found.provider.head_of(0)

    assert run.status == "completed", run.failure_reason
    assert hits == 1
    assert len(seen) > 1
    assert all(each == seen[0] for each in seen)
    assert seen[0]["choices"][0]["message"]["content"] == "Grüße 🙂"
    assert without_ids(run) == without_ids(same)
    assert run.steps[0].usage == same.steps[0].usage
    assert head["authorization"] == f"Bearer {KEY}"
    assert not [name for name in head if name.startswith("rebuno-")]
    assert KEY not in str(run)


async def test_a35_anthropics_client_too() -> None:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }
    async with place(Reply(pieces=(json.dumps(message).encode(),))) as found:

        async def handle() -> str:
            url = await execution().gateway_url(found.url, path="")
            async with AsyncAnthropic(api_key=KEY, base_url=url) as client:
                answer = await client.messages.create(
                    model="claude-x", max_tokens=9, messages=[{"role": "user", "content": "hello"}]
                )
            await note("done")
            return answer.content[0].model_dump()["text"]

        run = await found.kernel.run(handle, replay="always")

    assert run.output == "hi", run.failure_reason
    assert found.provider.hits == 1
    assert found.provider.requests[0].startswith(b"POST /v1/messages ")
    assert run.execution.usage.total_tokens == 7


async def test_a35_a_key_of_the_gateways_own_takes_the_place_of_the_callers() -> None:
    async with place(Reply(pieces=(COMPLETION,)), key="sk-of-the-gateway", headers={"X-Team": "blue"}) as found:

        async def handle() -> None:
            async with await found.by_path() as client:
                await ask(client)

        run = await found.kernel.run(handle)
        head = found.provider.head_of(0)

    assert head["authorization"] == "Bearer sk-of-the-gateway"
    assert head["x-team"] == "blue"
    assert "sk-" not in str(run)


async def test_a35_identical_calls_beside_each_other_are_steps_of_their_own() -> None:
    async with place(Reply(pieces=(COMPLETION,))) as found:

        async def handle() -> int:
            async with await found.by_path() as client:
                return len(await asyncio.gather(*(ask(client) for _ in range(5))))

        run = await found.kernel.run(handle)

    assert run.output == 5
    assert found.provider.hits == 5
    assert sorted(step.occurrence for step in run.steps) == [0, 1, 2, 3, 4]


async def test_a35_another_gateway_goes_on_counting_where_the_first_one_stopped() -> None:
    async with (
        place(Reply(pieces=(COMPLETION,))) as found,
        gateway(found.kernel.url, found.provider.url) as other_url,
    ):

        async def handle() -> None:
            async with await found.by_path() as first:
                await ask(first)
                await ask(first)
            async with AsyncOpenAI(api_key=KEY, base_url=await execution().gateway_url(other_url)) as second:
                await ask(second)

        run = await found.kernel.run(handle)

    assert run.status == "completed", run.failure_reason
    assert found.provider.hits == 3
    assert [(step.occurrence, step.status) for step in run.steps] == [(n, "succeeded") for n in range(3)]


async def test_a35_two_gateways_that_carry_out_one_call_hand_on_the_answer_that_is_recorded() -> None:
    second = COMPLETION.replace("Grüße".encode(), b"other")
    async with (
        place(Reply(pieces=(COMPLETION,), waits_before_piece=0), Reply(pieces=(second,))) as found,
        gateway(found.kernel.url, found.provider.url) as other_url,
        httpx.AsyncClient(trust_env=False, timeout=30) as http,
    ):

        async def handle() -> list[str]:
            url, elsewhere = await execution().gateway_url(found.url), await execution().gateway_url(other_url)
            body, key = {"model": "gpt-x"}, {"idempotency-key": "one call"}
            slow = asyncio.ensure_future(http.post(f"{url}/chat/completions", json=body, headers=key))
            await wait_until_async(lambda: found.provider.hits == 1, "the first gateway to have asked")
            fast = await http.post(f"{elsewhere}/chat/completions", json=body, headers=key)
            found.provider.go_on.set()
            return [fast.text, (await slow).text]

        run = await found.kernel.run(handle)

    assert found.provider.hits == 2
    assert run.output == [second.decode()] * 2
    assert [step.result["body"] for step in run.steps] == [second.decode()]


async def test_a35_what_an_outcome_before_it_says_is_durable_before_a_call_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stepwell.settling.LINGER_SECONDS", 60.0)
    seen: list[str] = []
    async with place(Reply(pieces=(COMPLETION,), waits_before_piece=0)) as found:

        async def handle() -> None:
            await note("before the token")
            async with await found.by_path() as client:
                await note("after it")
                await ask(client)

        running = await found.kernel.start(handle)
        await wait_until_async(lambda: found.provider.hits == 1, "the provider to be asked")
        seen = [step.status for step in await found.kernel.client.list_steps(running.execution_id)]
        found.provider.go_on.set()
        await running.wait()

    assert seen == ["succeeded", "succeeded", "executing"]


async def test_a35_a_plain_handler_gets_the_address_at_once() -> None:
    async with place(Reply(pieces=(COMPLETION,))) as found:

        def handle() -> Any:
            with openai.OpenAI(api_key=KEY, base_url=execution().gateway_url(found.url)) as client:
                answer = client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "hello"}])
            return answer.choices[0].message.content

        run = await found.kernel.run(handle)

    assert run.output == "Grüße 🙂", run.failure_reason


# ---------------------------------------------------------------- what fails


async def test_a35_passing_trouble_is_retried_within_the_step() -> None:
    replies = (Reply(status=429), NoReply(), Reply(status=500), Reply(pieces=(COMPLETION,)))
    async with place(*replies) as found:

        async def handle() -> None:
            async with await found.by_path() as client:
                await ask(client)

        run = await found.kernel.run(handle)

    assert run.status == "completed", run.failure_reason
    assert found.provider.hits == 4
    assert len(run.steps) == 1


@pytest.mark.parametrize(("reply", "status"), [(Reply(status=404, pieces=(ERROR,)), 404), (NoReply(), 502)])
async def test_a35_an_error_that_remains_is_the_outcome_live_and_on_replay(reply: Reply | NoReply, status: int) -> None:
    seen: list[int] = []
    async with place(reply) as found:

        async def handle() -> None:
            async with await found.by_path() as client:
                with pytest.raises(openai.APIStatusError) as error:
                    await ask(client)
            seen.append(error.value.status_code)
            await note("done")

        run = await found.kernel.run(handle, replay="always")

    assert run.status == "completed", run.failure_reason
    assert set(seen) == {status}
    assert len(seen) > 1
    assert found.provider.hits == (1 if status == 404 else asking.RETRIES_MAX + 1)
    assert run.steps[0].status == ("succeeded" if status == 404 else "failed")


async def test_a35_a_repeat_of_the_callers_client_joins_the_call_that_is_under_way() -> None:
    sent: list[Any] = []

    async def note_request(request: Any) -> None:
        sent.append(request)

    async with place(Reply(pieces=(COMPLETION,), waits_before_piece=0)) as found:

        async def handle() -> str:
            http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [note_request]})
            async with await found.by_path(timeout=0.3, max_retries=5, http_client=http) as client:
                return (await ask(client))["choices"][0]["message"]["content"]

        running = await found.kernel.start(handle)
        await wait_until_async(lambda: len(sent) > 1, "the caller's client to have given up once")
        found.provider.go_on.set()
        run = await running.wait()

    assert run.output == "Grüße 🙂", run.failure_reason
    assert found.provider.hits == 1
    assert len(run.steps) == 1


async def test_a35_an_answer_that_cannot_be_recorded_is_not_handed_on() -> None:
    urls: list[str] = []
    async with (
        place(Reply(pieces=(COMPLETION,), waits_before_piece=0)) as found,
        httpx.AsyncClient(trust_env=False, timeout=30) as http,
    ):

        async def handle() -> None:
            urls.append(await execution().gateway_url(found.url))
            if len(urls) == 1:
                await asyncio.Event().wait()

        running = await found.kernel.start(handle)
        await wait_until_async(lambda: bool(urls), "the first attempt")
        # Of a process that hangs and does not know that its lease is over.
        asking_late = asyncio.ensure_future(http.post(f"{urls[0]}/chat/completions", json={"model": "m"}))
        await wait_until_async(lambda: found.provider.hits == 1, "the provider to be asked")
        await running.interrupt()
        await wait_until_async(lambda: len(urls) > 1, "the next attempt")
        found.provider.go_on.set()
        answer = await asking_late
        run = await running.wait()

    assert run.status == "completed", run.failure_reason
    assert answer.status_code in (403, 409), answer.text
    assert answer.json()["error"]["message"] in (
        "rebuno_refusal: lease_superseded",
        "rebuno_refusal: execution_terminal",
    )


async def test_a35_a_stream_is_seen_as_it_comes_and_replays_alike() -> None:
    data = [json.dumps({"choices": [{"delta": {"content": each}, "finish_reason": None}]}) for each in "Grüße"]
    end = json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    stream = events(*data, end, "[DONE]")
    async with place(streamed(stream, size=7, waits_before_piece=15)) as found:
        seen: list[list[str | None]] = []

        async def handle() -> None:
            texts: list[str | None] = []
            seen.append(texts)
            async with await found.by_path() as client:
                answer = await client.chat.completions.create(
                    model="gpt-x", messages=[{"role": "user", "content": "hello"}], stream=True
                )
                async for each in answer:
                    texts.append(each.choices[0].delta.content)
            await note("done")

        running = await found.kernel.start(handle, replay="always")
        await wait_until_async(lambda: bool(seen and seen[0]), "the first piece")
        assert len(seen[0]) < len("Grüße")
        found.provider.go_on.set()
        run = await running.wait()

    assert run.status == "completed", run.failure_reason
    assert found.provider.hits == 1
    assert len(seen) > 1
    assert all(each == [*"Grüße", None] for each in seen)
    assert run.steps[0].result["body"] == stream.decode()
