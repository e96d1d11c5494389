"""A37: a gateway that is killed asks a provider for one call once more at most, and not at all once it is recorded."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from stepwell import execution
from stepwell.testing import LocalKernel
from tests.sdk.gateway_place import recorded
from tests.support.gateway import GatewayProcess, gateway_process
from tests.support.slow_proxy import slow_proxy
from tests.support.wait import wait_until_async
from tests.support.wire_provider import Reply, WireProvider, events, streamed, wire_provider

COMPLETION = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-x",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    }
).encode()
STREAM = events(
    *(json.dumps({"choices": [{"delta": {"content": each}, "finish_reason": None}]}) for each in "hello"),
    json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}),
    "[DONE]",
)


@asynccontextmanager
async def place(folder: Path, *replies: Reply) -> AsyncIterator[tuple[LocalKernel, WireProvider, GatewayProcess]]:
    async with (
        wire_provider(*replies) as provider,
        LocalKernel(lease_seconds=30) as kernel,
        gateway_process(kernel.url, provider.url, folder) as found,
    ):
        yield kernel, provider, found


def stock_client(base_url: str) -> AsyncOpenAI:
    """As everybody makes it, with retries enough for a gateway that takes seconds to start."""
    return AsyncOpenAI(api_key="k", base_url=base_url, max_retries=20)


async def ask(client: AsyncOpenAI) -> str | None:
    answer = await client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": "hello"}])
    return answer.choices[0].message.content


async def test_a37_killed_before_the_provider_has_answered(tmp_path: Path) -> None:
    async with place(tmp_path, Reply(pieces=(COMPLETION,), waits_before_piece=0)) as (kernel, provider, found):

        async def handle() -> str | None:
            async with stock_client(await execution().gateway_url(found.url)) as client:
                return await ask(client)

        running = await kernel.start(handle)
        await wait_until_async(lambda: provider.hits == 1, "the provider to be asked")
        await found.kill()
        provider.go_on.set()
        await found.start()
        run = await running.wait()

    assert run.output == "hi", run.failure_reason
    assert provider.hits == 2
    # The same step: the caller's client has asked again for what was under way.
    assert [(step.occurrence, step.status) for step in run.steps] == [(0, "succeeded")]


async def test_a37_killed_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    replies = (streamed(STREAM, size=40, waits_before_piece=3), streamed(STREAM, size=40))
    seen: list[str] = []
    broken: list[BaseException] = []

    async with place(tmp_path, *replies) as (kernel, provider, found):

        async def handle() -> str:
            texts: list[str] = []
            async with stock_client(await execution().gateway_url(found.url)) as client:
                stream = await client.chat.completions.create(
                    model="gpt-x", messages=[{"role": "user", "content": "hello"}], stream=True
                )
                try:
                    async for each in stream:
                        texts.append(each.choices[0].delta.content or "")
                        seen.extend(texts[-1:])
                except Exception as error:  # noqa: BLE001 - whichever the client has for it
                    # An agent whose process ends with that; its execution is given out again.
                    broken.append(error)
                    await asyncio.Event().wait()
            return "".join(texts)

        running = await kernel.start(handle)
        await wait_until_async(lambda: bool(seen), "the first piece")
        await found.kill()
        await wait_until_async(lambda: bool(broken), "the stream to break off")
        await found.start()
        await running.interrupt()
        run = await running.wait()

    assert run.output == "hello", run.failure_reason
    assert provider.hits == 2
    assert [(step.occurrence, step.status) for step in run.steps] == [(0, "succeeded")]
    assert run.steps[0].result["body"] == STREAM.decode()


async def test_a37_killed_after_the_answer_is_recorded_and_before_the_caller_has_it(tmp_path: Path) -> None:
    async with place(tmp_path, Reply(pieces=(COMPLETION,))) as (kernel, provider, found):
        port = int(found.url.rpartition(":")[2])
        async with slow_proxy(port) as proxy:

            async def handle() -> str | None:
                async with stock_client(await execution().gateway_url(f"http://127.0.0.1:{proxy.port}")) as client:
                    return await ask(client)

            proxy.hold()
            running = await kernel.start(handle)

            await recorded(kernel, running.execution_id)
            await found.kill()
            await found.start()
            for connection in tuple(proxy.open):
                connection.abort()
            proxy.let_go()
            run = await running.wait()

    assert run.output == "hi", run.failure_reason
    assert provider.hits == 1
    assert [(step.occurrence, step.status) for step in run.steps] == [(0, "succeeded")]


async def test_a37_a_gateway_that_began_anew_takes_no_earlier_answer_for_a_new_call(tmp_path: Path) -> None:
    replies = tuple(Reply(pieces=(COMPLETION.replace(b'"hi"', b'"%s"' % word),)) for word in (b"one", b"two", b"three"))
    async with place(tmp_path, *replies) as (kernel, provider, found):

        async def handle() -> list[str | None]:
            async with stock_client(await execution().gateway_url(found.url)) as client:
                answers = [await ask(client), await ask(client)]
                await found.kill()
                await found.start()
                return [*answers, await ask(client)]

        run = await kernel.run(handle)

    assert run.output == ["one", "two", "three"], run.failure_reason
    assert provider.hits == 3
    assert [(step.occurrence, step.status) for step in run.steps] == [(n, "succeeded") for n in range(3)]


async def test_a37_the_agents_next_attempt_replays_what_another_gateway_recorded(tmp_path: Path) -> None:
    entered: list[Any] = []
    async with place(tmp_path, Reply(pieces=(COMPLETION,))) as (kernel, provider, found):

        async def handle() -> str | None:
            entered.append(execution().attempt)
            async with stock_client(await execution().gateway_url(found.url)) as client:
                answer = await ask(client)
            if len(entered) == 1:
                await asyncio.Event().wait()
            return answer

        running = await kernel.start(handle)

        await recorded(kernel, running.execution_id)
        await found.kill()
        await found.start()
        await running.interrupt()
        run = await running.wait()

    assert run.output == "hi", run.failure_reason
    assert entered == [1, 2]
    assert provider.hits == 1
