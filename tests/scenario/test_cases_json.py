"""Cases C2, C3 and C5 over HTTP: what is no JSON is refused alone, and of duplicates one value is used throughout.

What conformance K5 and K7 and the unit tests of reading show is not repeated: here it is what comes afterwards.
"""

import pytest

from tests.conformance.harness.answers import accepted, details, path_of
from tests.conformance.harness.calls import REPLAYED
from tests.conformance.harness.kernel import Kernel

NO_NUMBERS = (b"NaN", b"Infinity", b"-Infinity", b"nan", b"1e400", b"-1e400", b"1" + b"0" * 400)
NO_TEXTS = (rb'"\ud800"', rb'"\udc00\ud800"', rb'{"\udfff":1}', b'"\xed\xa0\x80"', b'"\xff"', rb'"\ud83d\u0041"')


def _outcomes(step_id: str, value: bytes) -> dict[str, tuple[str, bytes, str]]:
    """Every way to bring a value in as an outcome: path, body, and the path of the value in it."""
    settle = b'"settle":[{"step_id":"%s","result":%s}]' % (step_id.encode(), value)
    return {
        "complete": (f"/steps/{step_id}/complete", b'{"result":{"x":%s}}' % value, "result.x"),
        "settle": ("/steps", b'{"kind":"local","target":"next",%s}' % settle, "settle[0].result"),
        "complete_execution": ("/complete", b'{"output":[%s]}' % value, "output[0]"),
        "settle_at_the_end": ("/complete", b'{"output":1,%s}' % settle, "settle[0].result"),
    }


@pytest.mark.parametrize("way", _outcomes("", b""))
@pytest.mark.parametrize("values", [NO_NUMBERS, NO_TEXTS], ids=["numbers", "texts"])
async def test_c2_c3_an_outcome_that_is_no_json_fails_its_call_and_nothing_else(
    kernel: Kernel, way: str, values: tuple[bytes, ...]
) -> None:
    """Cases C2 and C3. What the SDK refuses before it sends anything comes with the SDK."""
    lease = await (await kernel.agent()).acknowledged()
    step_id = await lease.proceed("measure")
    before = await kernel.trace(lease.execution_id)

    for value in values:
        target, body, path = _outcomes(step_id, value)[way]
        refused = path_of(await lease.request(target, body))
        assert refused is None or refused.startswith(path), (value, refused)

    # The step is still open, its outcome is welcome, and the log can be read and goes on.
    assert await kernel.trace(lease.execution_id) == before
    assert accepted(await lease.complete(step_id, None)) == {"decision": "recorded"}
    assert accepted(await lease.complete(step_id, 1)) == {"decision": "replay", "result": None}
    assert (await lease.decide("clean"))["decision"] == "proceed"
    accepted(await lease.complete_execution("whole"), 204)
    assert (await kernel.event_types(lease.execution_id))[-2:] == ["execution.completed", "step.cancelled"]


async def test_c2_null_is_a_value_of_its_own_and_nothing_else_becomes_it(kernel: Kernel) -> None:
    """Case C2."""
    lease = await (await kernel.agent()).start()

    refused = [
        await lease.request("/steps", b'{"kind":"tool_call","target":"t","args":{"x":%s}}' % value)
        for value in NO_NUMBERS
    ]
    null = await lease.decide("t", {"x": None})

    assert [response.status_code for response in refused] == [400] * len(NO_NUMBERS)
    assert [step["step_id"] for step in await kernel.steps(lease.execution_id)] == [null["step_id"]]
    assert (await kernel.step(lease.execution_id, null["step_id"]))["occurrence"] == 0


@pytest.mark.parametrize(
    ("target", "body", "path"),
    [
        ("/steps", rb'{"kind":"local","target":"\ud800"}', "target"),
        ("/steps", rb'{"kind":"\udc00","target":"t"}', "kind"),
        ("/steps", rb'{"kind":"local","target":"t","\ud800":1}', None),
        ("/complete", rb'{"output":"\ud800"}', "output"),
    ],
)
async def test_c3_half_a_pair_anywhere_in_a_body_is_refused(
    kernel: Kernel, target: str, body: bytes, path: str | None
) -> None:
    """Case C3."""
    lease = await (await kernel.agent()).acknowledged()
    before = await kernel.trace(lease.execution_id)

    response = await lease.request(target, body)

    details(response, 400, "validation_error")
    assert path is None or path_of(response) == path
    assert await kernel.trace(lease.execution_id) == before


async def test_c3_half_a_pair_in_a_key_of_a_create_is_refused(kernel: Kernel) -> None:
    """Case C3."""
    agent = await kernel.agent()
    body = rb'{"agent_id":"%s","idempotency_key":"\udc00"}' % agent.id.encode()

    assert path_of(await kernel.post("/v0/executions", body)) == "idempotency_key"

    assert accepted(await kernel.get("/v0/executions", agent_id=agent.id)) == {"executions": []}


async def test_c3_an_error_with_half_a_pair_is_readable_by_everyone_afterwards(kernel: Kernel) -> None:
    """Case C3, where the contract takes U+FFFD in place of the half."""
    lease = await (await kernel.agent()).start()
    step_id = await lease.proceed("t")
    body = rb'{"error":{"message":"\ud800","\udfff":["\ud83d",{"\ude00":"\ud83d\ude00"}]}}'
    expected = {"message": "\ufffd", "\ufffd": ["\ufffd", {"\ufffd": "\U0001f600"}]}

    accepted(await lease.request(f"/steps/{step_id}/fail", body))

    assert (await kernel.step(lease.execution_id, step_id))["error"] == expected
    assert (await kernel.events(lease.execution_id))[-1]["payload"]["error"] == expected
    assert accepted(await lease.fail(step_id, "again")) == {"decision": "replay", "error": expected}
    listed = await kernel.get(f"/v0/executions/{lease.execution_id}/steps", status="failed")
    assert [step["error"] for step in accepted(listed)] == [expected]
    assert (await lease.decide("clean"))["decision"] == "proceed"
    accepted(await lease.request("/fail", rb'{"error":"ended by \udfff"}'), 204)
    assert (await kernel.execution(lease.execution_id))["failure_reason"] == "ended by \ufffd"


async def test_c5_an_execution_belongs_to_the_agent_that_is_named_last(kernel: Kernel) -> None:
    """Case C5."""
    first, last = await kernel.agent(), await kernel.agent()
    body = rb'{"agent_id":"%s","input":1,"agent_id":"nobody","inp\u0075t":2,"agent\u005fid":"%s"}'

    created = accepted(await kernel.post("/v0/executions", body % (first.id.encode(), last.id.encode())), 201)

    assert (created["agent_id"], created["input"]) == (last.id, 2)
    assert (await last.lease(created["id"])).attempt == 1
    assert first.endpoint.deliveries == []
    details(await kernel.post("/v0/executions", body % (last.id.encode(), b"nobody")), 404, "not_found")
    accepted(await kernel.cancel(created["id"]), 204)


async def test_c5_a_key_compares_what_is_used_and_not_how_it_was_spelled(kernel: Kernel) -> None:
    """Case C5: a body is compared by the values that count."""
    lease = await (await kernel.agent()).start()
    bodies = (
        rb'{"kind":"tool_call","target":"pay","args":{"amount":9999}}',
        rb'{"kind":"tool_call","target":"refund","target":"pay","args":{"amount":1,"am\u006funt":9999}}',
        rb'{"args":[],"args":{"amount":9999},"target":"pay","kind":"local","kind":"tool_call"}',
    )

    same = [await lease.request("/steps", body, key="k") for body in bodies]
    refund = rb'{"kind":"tool_call","target":"pay","args":{"amount":9999,"amount":1}}'
    other = await lease.request("/steps", refund, key="k")

    assert len({response.content for response in same}) == 1
    assert [response.headers.get(REPLAYED) for response in same] == [None, "true", "true"]
    details(other, 409, "conflict")
    assert [step["args"] for step in await kernel.steps(lease.execution_id)] == [{"amount": 9999}]


async def test_c5_of_duplicate_outcomes_that_travel_the_last_is_recorded(kernel: Kernel) -> None:
    """Case C5."""
    lease = await (await kernel.agent()).start()
    one, two = await lease.proceed("one"), await lease.proceed("two")
    settle = rb'[{"step_id":"%s","result":1,"step_id":"%s","result":2}]' % (two.encode(), one.encode())
    body = rb'{"kind":"local","target":"next","settle":[{"step_id":"%s","result":0}],"s\u0065ttle":%s}'

    accepted(await lease.request("/steps", body % (two.encode(), settle)))

    steps = {step["step_id"]: step for step in await kernel.steps(lease.execution_id)}
    assert (steps[one]["status"], steps[one]["result"]) == ("succeeded", 2)
    assert (steps[two]["status"], steps[two]["result"]) == ("executing", None)
