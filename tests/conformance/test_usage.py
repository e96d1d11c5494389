"""K127, K128: what an LLM call took, on its step and on its execution, and the budget that it counts against."""

import json
from typing import Any

import pytest

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.side_by_side import side_by_side

OPENAI = {
    "prompt_tokens": 10,
    "completion_tokens": 4,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 3},
}
ANTHROPIC = {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 4}
JSON, STREAM = "application/json", "text/event-stream"


def record(body: str, content_type: str) -> dict[str, Any]:
    return {"status": 200, "headers": {"content-type": content_type}, "body": body}


def counts(input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> dict[str, int]:
    total = input_tokens + output_tokens
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "total_tokens": total,
        "cached_tokens": cached_tokens,
        "reasoning_tokens": 0,
    }


RECORDS = {
    "openai": (record(json.dumps({"choices": [], "usage": OPENAI}), JSON), counts(10, 4, 3)),
    "openai streamed": (
        record(f"data: {json.dumps({'choices': [], 'usage': OPENAI})}\n\ndata: [DONE]\n\n", STREAM),
        counts(10, 4, 3),
    ),
    "anthropic": (record(json.dumps({"content": [], "usage": ANTHROPIC}), JSON), counts(15, 4, 5)),
    "anthropic streamed": (
        record(
            f"event: message_start\ndata: {json.dumps({'message': {'usage': ANTHROPIC}})}\n\n"
            'event: message_delta\ndata: {"usage":{"output_tokens":9}}\n\n',
            STREAM,
        ),
        counts(15, 9, 5),
    ),
}


async def _called(lease: Lease, number: int, *, kind: str = "llm_call") -> str:
    return await lease.proceed("model", {"n": number}, kind=kind)


@pytest.mark.parametrize("name", RECORDS)
async def test_k127_the_usage_of_a_record_is_on_the_step_and_the_execution_has_the_sum(
    kernel: Kernel, name: str
) -> None:
    result, expected = RECORDS[name]
    lease = await (await kernel.agent()).start()
    first, second = await _called(lease, 1), await _called(lease, 2)
    accepted(await lease.complete(first, result))
    settled = [{"step_id": second, "result": result}]
    third = await lease.proceed("model", {"n": 3}, kind="llm_call", settle=settled)
    # A repeat of an outcome adds nothing.
    accepted(await lease.complete(first, result))
    for step_id in (first, second):
        assert (await kernel.step(lease.execution_id, step_id))["usage"] == expected
    assert (await kernel.step(lease.execution_id, third))["usage"] is None
    doubled = {name: 2 * count for name, count in expected.items()}
    assert (await kernel.execution(lease.execution_id))["usage"] == doubled


async def test_k127_usage_that_is_sent_wins_and_a_tool_has_none_of_its_own(kernel: Kernel) -> None:
    result, _ = RECORDS["openai"]
    lease = await (await kernel.agent()).start()
    called, tool = await _called(lease, 1), await _called(lease, 2, kind="tool_call")
    accepted(await lease.complete(called, result, usage={"input_tokens": 1}))
    accepted(await lease.complete(tool, result))
    assert (await kernel.step(lease.execution_id, called))["usage"] == counts(1, 0)
    assert (await kernel.step(lease.execution_id, tool))["usage"] is None


@side_by_side
async def test_k127_replays_add_nothing(kernel: Kernel) -> None:
    result, expected = RECORDS["openai"]
    lease = await (await kernel.agent()).start()
    accepted(await lease.complete(await _called(lease, 1), result))
    before = await kernel.execution(lease.execution_id)
    again = await lease.expired()
    assert (await again.decide("model", {"n": 1}, kind="llm_call"))["decision"] == "replay"
    after = await kernel.execution(lease.execution_id)
    assert before["usage"] == after["usage"] == expected


@side_by_side
async def test_k128_a_token_budget_ends_llm_calls_and_nothing_else(kernel: Kernel) -> None:
    rule = "rules: [{id: budget, then: {decision: allow, token_budget: {max_total_tokens: 28}}}]"
    agent = await kernel.agent()
    accepted(await kernel.post(f"/v0/policies/{agent.id}", {"bundle": rule}), 204)
    lease = await agent.start()
    result, _ = RECORDS["openai"]
    for number in (1, 2):
        accepted(await lease.complete(await _called(lease, number), result))
    denied = await lease.decide("model", {"n": 3}, kind="llm_call")
    assert (denied["decision"], denied["reason"], denied["rule_id"]) == (
        "denied",
        "execution_token_budget_exceeded",
        "budget",
    )
    assert (await lease.decide("tool", {"n": 3}))["decision"] == "proceed"
    again = await lease.expired()
    assert (await again.decide("model", {"n": 1}, kind="llm_call"))["decision"] == "replay"
