"""Values of megabytes: as input, arguments, results and output, and in LLM calls; and what is above 32 MiB."""

import json
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI

from stepwell import ToolError, http_client, tool
from stepwell.testing import LocalKernel
from tests.sdk.gateway_place import COMPLETION, KEY, Place, ask, note, place
from tests.support.wire_provider import Reply

MIB = 1024 * 1024
TEXT = "Grüße 🙂, " * 400_000
"""More than four MiB of UTF-8."""


async def test_values_of_megabytes_are_recorded_and_replayed_as_all_others() -> None:
    taken: list[int] = []

    @tool
    async def twice(text: str) -> list[str]:
        taken.append(len(text))
        return [text, text]

    async def handle(text: str) -> dict[str, Any]:
        both = await twice(text)
        await note(len(both))
        return {"both": both}

    async with LocalKernel() as kernel:
        run = await kernel.run(handle, {"text": TEXT}, replay="always")

    assert run.status == "completed", run.failure_reason
    assert run.output == {"both": [TEXT, TEXT]}
    assert taken == [len(TEXT)]


@pytest.mark.parametrize("way", [Place.by_path, Place.by_headers])
async def test_an_llm_call_of_megabytes_goes_through_the_gateway_and_is_asked_once(way: Any) -> None:
    completion = json.loads(COMPLETION)
    completion["choices"][0]["message"]["content"] = TEXT
    raw = json.dumps(completion, ensure_ascii=False).encode()
    seen: list[bool] = []
    async with place(Reply(pieces=(raw,))) as found:

        async def handle() -> None:
            async with await way(found) as client:
                answer = await ask(client, TEXT)
            seen.append(answer["choices"][0]["message"]["content"] == TEXT)
            await note(1)

        run = await found.kernel.run(handle, replay="always")
        hits = found.provider.hits

    assert run.status == "completed", run.failure_reason
    assert seen == [True] * len(seen)
    assert len(seen) > 1
    assert hits == 1


async def test_a_result_above_the_limit_is_a_failed_step_live_and_replayed() -> None:
    made: list[int] = []
    told: list[str] = []

    @tool
    async def huge() -> str:
        made.append(1)
        return "x" * (33 * MIB)

    async def handle() -> str:
        try:
            await huge()
        except ToolError as error:
            told.append(str(error))
        await note(1)
        return "went on"

    async with LocalKernel() as kernel:
        run = await kernel.run(handle, replay="always")

    assert (run.output, len(made)) == ("went on", 1), run.failure_reason
    assert len(set(told)) == 1 < len(told)
    assert f"result: {33 * MIB + 2} bytes of JSON" in told[0]
    assert [(step.target, step.status) for step in run.steps] == [("huge", "failed"), ("note", "succeeded")]


async def test_an_output_above_the_limit_fails_the_execution_with_its_size() -> None:
    async def handle() -> str:
        return "x" * (33 * MIB)

    async with LocalKernel() as kernel:
        run = await kernel.run(handle)

    assert run.status == "failed"
    assert f"output: {33 * MIB + 2} bytes of JSON" in run.failure_reason


async def by_client(found: Place) -> AsyncOpenAI:
    return AsyncOpenAI(api_key=KEY, base_url=f"{found.provider.url}/v1", http_client=http_client())


@pytest.mark.parametrize("way", [Place.by_path, by_client])
async def test_an_answer_that_the_record_cannot_hold_is_a_failed_call_live_and_replayed(way: Any) -> None:
    completion = json.loads(COMPLETION)
    # Each of them is two characters on the wire, and four in the record.
    completion["choices"][0]["message"]["content"] = '"' * (9 * MIB)
    told: list[tuple[int, str]] = []
    async with place(Reply(pieces=(json.dumps(completion).encode(),))) as found:

        async def handle() -> None:
            async with await way(found) as client:
                try:
                    told.append((200, str(await ask(client))[:100]))
                except APIStatusError as error:
                    told.append((error.status_code, error.message))
            await note(1)

        run = await found.kernel.run(handle, replay="always")
        hits = found.provider.hits

    assert run.status == "completed", run.failure_reason
    assert len(set(told)) == 1 < len(told)
    assert told[0][0] == 502
    assert "bytes of JSON" in told[0][1]
    assert hits == 1
    assert run.steps[0].status == "failed"
