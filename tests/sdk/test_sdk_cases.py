"""Public faults of other systems, tried on the library: C2 and W1 of the list, and threads that wait for threads."""

import asyncio
import json
import math
import time
from decimal import Decimal
from typing import Any

import httpx
import pytest

from kernel.domain.signatures import sign_body
from kernel.inprocess import InProcessKernel
from stepwell import Agent, ToolError, execution, step, tool
from stepwell.context import Settle
from stepwell.kernel import Idempotency
from stepwell.testing import LocalKernel
from stepwell.types import Webhook
from stepwell.webhook import WebhookApp

CROWD = 40
"""More than the threads of a default pool, whatever the machine."""
SECRET = "a secret of an agent"


@pytest.mark.parametrize("value", [math.nan, math.inf, Decimal("NaN"), Decimal("Infinity")])
async def test_c2_what_is_no_json_number_is_neither_sent_nor_taken_for_null(value: Any) -> None:
    async def handle() -> list[Any]:
        said: list[Any] = []
        try:
            await step("weigh", lambda x: x, {"x": value})
        except TypeError as error:
            said.append(str(error).partition(":")[0])
        said.append(await step("weigh", lambda x: x, {"x": None}))
        try:
            await step("yield", lambda: {"y": [value]})
        except ToolError as error:
            said.append(str(error).partition(":")[0])
        return said

    async with LocalKernel() as kernel:
        run = await kernel.run(handle, replay="always")

    assert run.output == ["args.x", None, "result.y[0]"]
    assert [(step.args, step.status) for step in run.steps] == [({"x": None}, "succeeded"), ({}, "failed")]


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
async def test_w1_a_webhook_is_verified_over_the_bytes_that_were_sent(ending: bytes) -> None:
    taken: list[Webhook] = []

    async def take(webhook: Webhook) -> bool:
        taken.append(webhook)
        return True

    async def nothing() -> None: ...

    app = WebhookApp("/", [SECRET], take=take, start=nothing, stop=nothing)
    sent = (
        f'{{ "note":"h\\u00e9llo \u20ac \U0001f642 \\/ /", "lease_timeout_seconds": 30.0, "n": 1.0, "e": {{"f":{{}}}},'
        f'"dispatch_id":"d","execution_id" : "e","dispatch_attempt":1,"sent_at":{int(time.time())}}}'
    ).encode() + ending
    signature = sign_body(SECRET.encode(), sent)

    async def answered(body: bytes) -> int:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://agent") as http:
            return (await http.post("/", content=body, headers={"rebuno-signature": signature})).status_code

    assert await answered(sent) == 200
    assert await answered(json.dumps(json.loads(sent)).encode()) == 401
    assert await answered(sent + b"\n") == 401
    assert [each.execution_id for each in taken] == ["e"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_threads_that_call_plain_tools_do_not_wait_for_one_another(host: str) -> None:
    @tool
    def write(number: int) -> int:
        return number

    async def handle() -> list[int]:
        return await asyncio.gather(*(asyncio.to_thread(write, number) for number in range(CROWD)))

    async with LocalKernel() as kernel:
        # A name is looked up in a thread, and those of the loop are all taken.
        kernel.kernel.url = kernel.url.replace("127.0.0.1", host)
        run = await kernel.run(handle)

    assert run.output == list(range(CROWD))


async def test_plain_handlers_that_call_plain_tools_do_not_wait_for_one_another() -> None:
    @tool
    def write(number: int) -> int:
        return number

    def handle(number: int) -> int:
        return write(number)

    async with LocalKernel() as kernel:
        first = await kernel.start(handle, {"number": 0})
        agent_id = (await first.wait()).execution.agent_id
        created = [await kernel.client.create(agent_id, {"number": number}) for number in range(CROWD)]
        ended = await asyncio.gather(*(kernel.client.wait(each.id, timeout=30) for each in created))

    assert [each.output for each in ended] == list(range(CROWD))


async def test_a_plain_function_that_raises_stop_iteration_fails_its_step() -> None:
    async def handle() -> Any:
        return await step("next", iter(()).__next__)

    async with LocalKernel() as kernel:
        run = await kernel.run(handle)

    assert run.failure_reason == "tool_error: next: a plain function raised StopIteration"


@pytest.mark.parametrize(
    ("settle", "idempotency", "status"),
    [
        ("linger", "safe_to_retry", "executing"),
        ("linger", "at_most_once", "succeeded"),
        ("sync", "safe_to_retry", "succeeded"),
    ],
)
async def test_a21_what_a_caller_is_told_is_on_record_where_a_step_must_not_run_twice_or_the_agent_wants_it(
    monkeypatch: pytest.MonkeyPatch, settle: Settle, idempotency: Idempotency, status: str
) -> None:
    monkeypatch.setattr("stepwell.settling.LINGER_SECONDS", 3600.0)

    def settling(agent_id: str, *, kernel: InProcessKernel, **parts: Any) -> Any:
        return Agent(agent_id, base_url=kernel.url, settle=settle, **parts)

    async with LocalKernel() as kernel:

        @tool(idempotency=idempotency)
        async def pay() -> int:
            return 1

        async def handle() -> list[str]:
            await pay()
            return [each.status for each in await kernel.client.list_steps(execution().execution_id)]

        run = await (await kernel.begin(handle, None, kind=settling)).wait()

    assert run.output == [status]
