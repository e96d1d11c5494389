"""LLM calls of a provider's own package through `http_client()`: recorded once, replayed ever after."""

import asyncio
import gzip
import json
import logging
import zlib
from typing import Any

import httpx
import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from stepwell import Blocked, PolicyError, http_client, raise_for_refusal, tool
from stepwell.llm import asking
from stepwell.testing import LocalKernel, Run
from tests.support.wire_provider import NoReply, Reply, WireProvider, wire_provider

KEY = "sk-a-key-that-nobody-may-see"
COMPLETION = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-x-2026",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Grüße 🙂"}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    },
    ensure_ascii=False,
).encode()
ERROR = b'{"error":{"message":"no such model","type":"invalid_request_error","param":null,"code":null}}'
ASK = "rules:\n  - id: ask\n    when: {step_kind: llm_call}\n    then: {decision: require_approval}\n"
DENY = "rules:\n  - id: no\n    when: {step_kind: llm_call}\n    then: {decision: deny, reason: too dear}\n"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PAUSE_SECONDS", 0.001)


def client_of(provider: WireProvider, **options: Any) -> AsyncOpenAI:
    """The provider's own client, as its users make it: with its retries."""
    return AsyncOpenAI(api_key=KEY, base_url=f"{provider.url}/v1", http_client=http_client(**options))


async def ask(client: AsyncOpenAI, content: str = "hello") -> dict[str, Any]:
    answer = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": content}])
    return answer.model_dump()


async def test_a24_a_call_is_a_step_and_is_replayed_without_the_provider() -> None:
    seen: list[Any] = []

    @tool
    async def note(answer: Any) -> None:
        """A step after the call, so that the handler is entered again with the call recorded."""

    async with wire_provider(Reply(pieces=(COMPLETION,))) as provider, LocalKernel() as kernel:

        async def handle() -> Any:
            async with client_of(provider) as client:
                seen.append(await ask(client))
            await note(seen[-1]["choices"])
            return seen[-1]

        run = await kernel.run(handle, replay="always")
        head = provider.head_of(0)

    assert run.status == "completed", run.failure_reason
    assert provider.hits == 1
    assert len(seen) > 1
    assert all(each == seen[0] for each in seen)
    assert seen[0]["choices"][0]["message"]["content"] == "Grüße 🙂"
    step = run.steps[0]
    assert (step.kind, step.target, step.status) == ("llm_call", "gpt-x", "succeeded")
    assert step.args == {"model": "gpt-x", "messages": [{"role": "user", "content": "hello"}]}
    assert step.result == {
        "status": 200,
        "headers": {"content-type": "application/json"},
        "body": COMPLETION.decode(),
    }
    assert step.usage is not None
    assert (step.usage.input_tokens, step.usage.output_tokens) == (9, 3)
    assert head["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(run)


async def test_a24_the_older_library_works_alike() -> None:
    async with wire_provider(Reply(pieces=(COMPLETION,))) as provider, LocalKernel() as kernel:

        async def handle() -> Any:
            async with http_client(library="httpx", timeout=5) as client:
                assert isinstance(client, httpx.AsyncClient)
                first = await client.post(provider.url, json={"model": "m", "n": 1.5})
                second = await client.post(provider.url, json={"model": "m", "n": 1.5})
                return [first.json() == second.json(), dict(first.headers)]

        run = await kernel.run(handle)

    assert run.output[0] is True
    assert run.output[1]["x-should-retry"] == "false"
    assert [step.occurrence for step in run.steps] == [0, 1]


def test_the_newer_library_is_taken_where_both_are_there() -> None:
    assert isinstance(http_client(), httpx2.AsyncClient)
    with pytest.raises(RuntimeError, match="httpx2 or httpx"):
        http_client(library="no_such_library")


async def test_a24_identical_calls_beside_each_other_are_steps_of_their_own() -> None:
    async with wire_provider(Reply(pieces=(COMPLETION,))) as provider, LocalKernel() as kernel:

        async def handle() -> int:
            async with client_of(provider) as client:
                return len(await asyncio.gather(*(ask(client) for _ in range(5))))

        run = await kernel.run(handle)

    assert run.output == 5
    assert provider.hits == 5
    assert sorted(step.occurrence for step in run.steps) == [0, 1, 2, 3, 4]


async def test_a25_another_body_passes_through_unrecorded_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "stepwell")
    async with wire_provider(Reply(pieces=(b"[]",), headers={"x-other": "kept"})) as provider, LocalKernel() as kernel:

        async def handle() -> Any:
            async with http_client() as client:
                response = await client.post(provider.url, content=b"a=b")
                return [response.text, response.headers["x-other"]]

        run = await kernel.run(handle)

    assert run.output == ["[]", "kept"]
    assert run.steps == []
    assert "is no LLM call" in caplog.text


async def test_a25_a_multipart_body_is_recorded_by_its_parts() -> None:
    async with wire_provider(Reply(pieces=(b'{"text":"hi"}',))) as provider, LocalKernel() as kernel:

        async def handle() -> Any:
            async with client_of(provider) as client:
                found = await client.audio.transcriptions.create(model="whisper", file=("é.wav", b"RIFF\r\n--x"))
            return found.text

        run = await kernel.run(handle, replay="always")

    assert run.output == "hi", run.failure_reason
    assert provider.hits == 1
    assert b"RIFF\r\n--x" in provider.requests[0]
    assert run.targets == ["whisper"]
    assert [(part["name"], part["filename"], part["size"]) for part in run.steps[0].args] == [
        ("model", None, 7),
        ("file", "é.wav", 9),
    ]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
async def test_an_answer_that_is_compressed_is_recorded_plain(encoding: str) -> None:
    packed = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}[encoding](COMPLETION)
    headers = {"content-type": "application/json", "content-encoding": encoding, "x-request-id": "other each time"}
    async with wire_provider(Reply(pieces=(packed,), headers=headers)) as provider, LocalKernel() as kernel:
        seen: list[Any] = []

        async def handle() -> Any:
            async with client_of(provider) as client:
                seen.append(await ask(client))
            return seen[-1]

        run = await kernel.run(handle, replay="always")

    assert run.status == "completed"
    assert seen[0] == seen[-1]
    assert run.steps[0].result["body"] == COMPLETION.decode()


# ---------------------------------------------------------------- what goes wrong


async def test_a26_what_may_be_better_the_next_time_is_asked_again_within_the_step() -> None:
    busy = Reply(status=429, headers={"content-type": "application/json", "retry-after": "0"}, pieces=(ERROR,))
    cut = Reply(pieces=(COMPLETION[:40],), ending="cut")
    async with (
        wire_provider(busy, cut, NoReply(), Reply(pieces=(COMPLETION,))) as provider,
        LocalKernel() as kernel,
    ):

        async def handle() -> str:
            async with client_of(provider) as client:
                return (await ask(client))["id"]

        run = await kernel.run(handle)

    assert (run.output, provider.hits) == ("chatcmpl-1", 4)
    assert run.targets == ["gpt-x"]


@pytest.mark.parametrize(("status", "hits"), [(400, 1), (404, 1), (503, 4), (429, 4)])
async def test_a27_an_error_that_remains_is_recorded_and_replays_equal(status: int, hits: int) -> None:
    async with wire_provider(Reply(status=status, pieces=(ERROR,))) as provider, LocalKernel() as kernel:
        seen: list[Any] = []

        async def handle() -> int:
            async with client_of(provider) as client:
                try:
                    await ask(client)
                except openai.APIStatusError as error:
                    seen.append((type(error), error.status_code, error.body, str(error)))
            return len(seen)

        run = await kernel.run(handle, replay="always")

    assert run.status == "completed", run.failure_reason
    # Neither live nor on replay has the provider's package tried again by itself.
    assert provider.hits == hits
    assert len(run.steps) == 1
    assert run.steps[0].result["status"] == status
    assert len(seen) >= 2
    assert len({str(each) for each in seen}) == 1


async def test_a28_no_answer_at_all_fails_the_step_and_is_502_live_and_on_replay() -> None:
    async with wire_provider(NoReply()) as provider, LocalKernel() as kernel:
        seen: list[Any] = []

        async def handle() -> str:
            async with client_of(provider) as client:
                try:
                    await ask(client)
                except openai.APIStatusError as error:
                    seen.append((error.status_code, error.body))
            return "went on"

        run = await kernel.run(handle, replay="always")

    assert run.output == "went on"
    assert provider.hits == 4
    assert [step.status for step in run.steps] == ["failed"]
    assert "did not answer" in run.steps[0].error["message"]
    assert len(seen) >= 2
    assert all(each == seen[0] for each in seen)
    assert seen[0][0] == 502
    assert run.steps[0].error["message"] in str(seen[0][1])


async def test_a33_a_denied_call_is_an_answer_that_raise_for_refusal_understands() -> None:
    async with wire_provider() as provider, LocalKernel() as kernel:
        seen: list[Any] = []

        async def handle() -> None:
            async with client_of(provider) as client:
                try:
                    await ask(client)
                except openai.APIStatusError as error:
                    seen.append((error.status_code, error.body))
                    raise_for_refusal(error)

        run = await kernel.run(handle, policy=DENY)

    assert provider.hits == 0
    assert seen == [(403, {"type": "rebuno_refusal", "message": "rebuno_refusal: denied reason=too dear"})]
    assert run.failure_reason == "policy_denied: too dear"


@pytest.mark.parametrize("swallows", [False, True])
async def test_a39_an_approval_parks_the_run_through_the_providers_package_and_resumes(swallows: bool) -> None:
    async with wire_provider(Reply(pieces=(COMPLETION,))) as provider, LocalKernel() as kernel:
        seen: list[Any] = []

        async def handle() -> Any:
            async with client_of(provider) as client:
                try:
                    return (await ask(client))["id"]
                except openai.APIStatusError as error:
                    seen.append(error.body)
                    if not swallows:
                        raise_for_refusal(error)
                    return "as if nothing had been"

        running = await kernel.start(handle, policy=ASK)
        approval = await running.approval()
        assert provider.hits == 0
        await kernel.client.grant_approval(approval.id)
        run = await running.wait()

    assert run.output == "chatcmpl-1"
    assert provider.hits == 1
    assert seen == [{"type": "rebuno_refusal", "message": "rebuno_refusal: blocked"}]
    with pytest.raises(Blocked):
        raise_for_refusal(ValueError(str(seen[0])))
    with pytest.raises(PolicyError):
        raise_for_refusal(ValueError("rebuno_refusal: denied reason=no"))


async def test_a_request_outside_of_a_handler_is_refused_before_it_leaves() -> None:
    async with wire_provider() as provider, http_client() as client:
        with pytest.raises(RuntimeError, match="http_client"):
            await client.post(provider.url, json={"model": "m"})
        # What is not recorded needs no execution.
        await client.get(provider.url + "/", headers={"content-length": "0"})
    assert provider.hits == 1


async def test_a40_a_call_within_a_tool_by_a_client_of_its_own_records_nothing() -> None:
    async with wire_provider(Reply(pieces=(COMPLETION,))) as provider, LocalKernel() as kernel:

        @tool
        async def model(text: str) -> str:
            async with AsyncOpenAI(api_key=KEY, base_url=f"{provider.url}/v1") as client:
                return (await ask(client, text))["id"]

        async def handle() -> str:
            return await model("x")

        run = await kernel.run(handle)

    assert (run.output, run.targets) == ("chatcmpl-1", ["model"])


async def test_a_call_that_is_given_up_leaves_no_step_open() -> None:
    waiting = Reply(pieces=(b"{", b"}"), waits_before_piece=1)
    async with wire_provider(waiting) as provider, LocalKernel() as kernel:

        async def handle() -> str:
            async with client_of(provider) as client:
                asking = asyncio.create_task(ask(client))
                while not provider.hits:
                    await asyncio.wait((asking,), timeout=0.005)
                asking.cancel()
                await asyncio.wait((asking,))
            return "went on"

        run: Run = await kernel.run(handle)

    assert run.output == "went on"
    assert [step.status for step in run.steps] == ["failed"]
    assert "given up" in run.steps[0].error["message"]
