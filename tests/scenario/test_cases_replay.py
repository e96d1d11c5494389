"""Cases C1, C3, C5 and D1: what an attempt recorded is replayed, value for value, by processes that never saw it.

The first attempts of all tests are made together; then every process of the kernel is killed at once, and each test
replays its own through the door that took no part in the recording.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted, exact, exact_member, path_of
from tests.conformance.harness.endpoint import Answer, Delivery
from tests.conformance.harness.identity import args_hash_of, step_id_of
from tests.conformance.harness.kernel import Kernel, connected
from tests.support.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

REDELIVERY_SECONDS_MAX = 40.0
LITERALS = (
    *("9007199254740992", "9007199254740993", "18446744073709551616", "18446744073709551617"),
    *("1", "1.0", "1e0", "-0", "0", "-0.0", "true", '"1"', "1e21", "1000000000000000000000", "null"),
)
CALLS = (("a", 1), ("b", 2), ("a", 1), ("a", 3))
MIXED_CALLS = 40
COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"
PAY = rb'{"kind":"tool_call","target":"refund","target":"pay","args":{"amount":1,"am\u006funt":9999}}'


class Crashed(msgspec.Struct, frozen=True):
    """What one test recorded under its first attempt, and the lease of its second, through another door."""

    recorded: Any
    lease: Lease
    event_count: int
    """Of the execution, when everything was killed."""


# ---------------------------------------------------------------- the first attempts


async def _record_numbers(lease: Lease) -> dict[str, str]:
    refused = await lease.request("/steps", b'{"kind":"tool_call","target":"c1","args":{"n":1e400}}')
    assert path_of(refused) == "args.n"
    steps = {literal: accepted(await lease.request("/steps", _number(literal)))["step_id"] for literal in LITERALS}
    for literal, step_id in steps.items():
        result = b'{"result":{"ran":%s}}' % literal.encode()
        accepted(await lease.request(f"/steps/{step_id}/complete", result))
    return steps


def _number(literal: str) -> bytes:
    return b'{"kind":"tool_call","target":"c1","args":{"n":%s}}' % literal.encode()


async def _record_texts(lease: Lease) -> dict[str, str]:
    for body in (rb'{"kind":"local","target":"t","args":{"t":"\ud800"}}', rb'{"kind":"local","target":"\udc00"}'):
        assert path_of(await lease.request("/steps", body)) in {"args.t", "target"}
    steps = {text: await lease.proceed("c3", {"t": text}) for text in (COMPOSED, DECOMPOSED)}
    for text, step_id in steps.items():
        refused = await lease.request(f"/steps/{step_id}/complete", rb'{"result":["\udfff"]}')
        assert path_of(refused) == "result[0]"
        accepted(await lease.complete(step_id, {"was": text}))
    failing = await lease.proceed("failing")
    accepted(await lease.request(f"/steps/{failing}/fail", rb'{"error":{"message":"half a pair: \ud83d"}}'))
    return steps | {"failing": failing}


async def _record_duplicates(lease: Lease) -> str:
    step_id = accepted(await lease.request("/steps", PAY))["step_id"]
    accepted(await lease.request(f"/steps/{step_id}/complete", rb'{"result":"denied","r\u0065sult":"paid"}'))
    return step_id


async def _record_gathered(lease: Lease) -> list[tuple[str, str]]:
    """The calls of `CALLS` at once, completed in the order 4, 1, 3, 2."""
    step_ids = await asyncio.gather(*(lease.proceed(name, {"n": n}) for name, n in CALLS))
    results = [f"result of call {number}" for number in range(1, len(CALLS) + 1)]
    for number in (4, 1, 3, 2):
        accepted(await lease.complete(step_ids[number - 1], results[number - 1]))
    return list(zip(step_ids, results, strict=True))


async def _record_twins(lease: Lease) -> dict[str, str]:
    first, second = await asyncio.gather(lease.proceed("twin", {"n": 1}), lease.proceed("twin", {"n": 1}))
    for step_id, result in ((second, "heads"), (first, "tails")):
        accepted(await lease.complete(step_id, result))
    return {first: "tails", second: "heads"}


async def _record_mixed(lease: Lease, choose: random.Random) -> tuple[list[int], dict[str, int], dict[str, Any]]:
    """Many calls of few kinds at once. Some of them are completed, in any order, and some left open."""
    calls = [choose.randrange(6) for _ in range(MIXED_CALLS)]
    step_ids = await asyncio.gather(*(lease.proceed("mixed", {"n": n}) for n in calls))
    kinds = dict(zip(step_ids, calls, strict=True))
    outcomes = {step_id: f"result {step_id}" for step_id in choose.sample(step_ids, 2 * MIXED_CALLS // 3)}
    for step_id, result in outcomes.items():
        accepted(await lease.complete(step_id, result))
    return calls, kinds, outcomes


RECORDERS: dict[str, Callable[[Lease], Awaitable[Any]]] = {
    "numbers": _record_numbers,
    "texts": _record_texts,
    "duplicates": _record_duplicates,
    "gathered": _record_gathered,
    "twins": _record_twins,
}


def _first_is_taken(delivery: Delivery) -> Answer:
    """Later attempts get no answer, so that their leases last until a test makes use of them."""
    return Answer(is_silent=delivery.attempt > 1)


async def _crashed(kernel: Kernel, other: Kernel, stack: Stack, recorders: dict[str, Any]) -> dict[str, Crashed]:
    agent = await kernel.agent(_first_is_taken)
    leases = await asyncio.gather(*(agent.acknowledged() for _ in recorders))
    recorded = [await record(lease) for record, lease in zip(recorders.values(), leases, strict=True)]
    counts = [len(await kernel.events(lease.execution_id)) for lease in leases]
    for name in stack.processes:
        stack.kill(name)
    await asyncio.gather(*(asyncio.to_thread(stack.restart, name) for name in stack.processes))
    elsewhere = Agent(other, agent.endpoint, agent_id=agent.id, secret=agent.secret, scheme=agent.scheme)
    again = await asyncio.gather(
        *(elsewhere.lease(lease.execution_id, number=2, deadline_seconds=REDELIVERY_SECONDS_MAX) for lease in leases)
    )
    return {
        name: Crashed(recorded=what, lease=lease, event_count=count)
        for name, what, lease, count in zip(recorders, recorded, again, counts, strict=True)
    }


@pytest.fixture(scope="module")
def module_seed() -> int:
    """Fixed: a run of this module is short, and other seeds are for the property tests of the fold."""
    return 20260117


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crashed(apart: Stack, module_seed: int) -> AsyncIterator[dict[str, Crashed]]:
    recorders = RECORDERS | {"mixed": lambda lease: _record_mixed(lease, random.Random(module_seed))}
    one, two = apart.urls
    async with connected(one, apart.api_key) as kernel, connected(two, apart.api_key) as other:
        yield await _crashed(kernel, other, apart, recorders)


# ---------------------------------------------------------------- the second ones


async def test_c1_every_number_is_its_own_call_and_replays_digit_for_digit(crashed: dict[str, Crashed]) -> None:
    """Case C1. The SDK's side, which encodes values of Python, comes with the SDK."""
    lease, steps = crashed["numbers"].lease, crashed["numbers"].recorded

    replayed = {literal: await lease.request("/steps", _number(literal)) for literal in reversed(LITERALS)}

    assert len(set(steps.values())) == len(LITERALS)
    for literal, response in replayed.items():
        answer = accepted(response)
        args_hash = args_hash_of(f'{{"n":{literal}}}')
        assert (answer["decision"], answer["step_id"]) == ("replay", steps[literal]), literal
        assert answer["step_id"] == step_id_of(lease.execution_id, "tool_call", "c1", args_hash, 0)
        assert exact_member(response.content, "result", "ran") == exact(literal)
        step = (await lease.kernel.get(f"{lease.path}/steps/{steps[literal]}")).content
        assert exact_member(step, "args", "n") == exact(literal)
        assert exact_member(step, "args_hash") == args_hash


async def test_c3_texts_that_look_alike_stay_apart_and_refused_ones_left_no_trace(
    crashed: dict[str, Crashed],
) -> None:
    """Case C3. The SSE stream comes with streaming; its record is the list of events that is read here."""
    lease, steps = crashed["texts"].lease, crashed["texts"].recorded

    answers = {text: await lease.decide("c3", {"t": text}) for text in (DECOMPOSED, COMPOSED)}
    failed = await lease.decide("failing")
    clean = await lease.decide("clean")
    events = await lease.kernel.events(lease.execution_id)

    for text, answer in answers.items():
        assert (answer["step_id"], answer["result"]) == (steps[text], {"was": text})
        assert (await lease.kernel.step(lease.execution_id, steps[text]))["args"] == {"t": text}
    assert (failed["decision"], failed["error"]) == ("replay", {"message": "half a pair: \ufffd"})
    assert clean["decision"] == "proceed"
    assert steps[COMPOSED] != steps[DECOMPOSED]
    assert [event["event_seq"] for event in events] == list(range(1, len(events) + 1))
    proposed = [event["payload"]["step_id"] for event in events if event["type"] == "step.proposed"]
    assert sorted(proposed) == sorted([*steps.values(), clean["step_id"]])


async def test_c5_a_call_with_duplicate_members_is_the_call_of_its_last_values(crashed: dict[str, Crashed]) -> None:
    """Case C5. That policy judges the same value is shown by `test_cases_governance.py`.

    The contract takes the last of duplicate members; the case would refuse them or use one value throughout.
    """
    lease, step_id = crashed["duplicates"].lease, crashed["duplicates"].recorded

    plain = await lease.decide("pay", {"amount": 9999})
    spelled = accepted(await lease.request("/steps", PAY))

    assert plain == {"decision": "replay", "step_id": step_id, "result": "paid", "resources": []}
    args_hash = args_hash_of('{"amount":9999}')
    assert plain["step_id"] == step_id_of(lease.execution_id, "tool_call", "pay", args_hash, 0)
    # The duplicates once more are the same call once more: its second use in this attempt, and a step of its own.
    assert spelled["decision"] == "proceed"
    assert spelled["step_id"] == step_id_of(lease.execution_id, "tool_call", "pay", args_hash, 1)


async def test_d1_gathered_calls_replay_whatever_the_order_they_start_in(crashed: dict[str, Crashed]) -> None:
    """Case D1. The coroutines of a handler come with the SDK; here they are requests that start together."""
    lease, recorded = crashed["gathered"].lease, crashed["gathered"].recorded

    answers = await asyncio.gather(*(lease.decide(name, {"n": n}) for name, n in reversed(CALLS)))

    answers.reverse()
    assert [answer["decision"] for answer in answers] == ["replay"] * len(CALLS)
    replayed = [(answer["step_id"], answer["result"]) for answer in answers]
    assert Counter(replayed) == Counter(recorded)
    assert (replayed[1], replayed[3]) == (recorded[1], recorded[3])
    await _assert_nothing_new(crashed["gathered"], step_count=len(CALLS))


async def test_d1_identical_calls_may_trade_results_and_lose_none(crashed: dict[str, Crashed]) -> None:
    """Case D1. The contract lets identical concurrent calls trade their results."""
    lease, recorded = crashed["twins"].lease, crashed["twins"].recorded

    answers = await asyncio.gather(*(lease.decide("twin", {"n": 1}) for _ in recorded))

    assert [answer["decision"] for answer in answers] == ["replay", "replay"]
    assert {answer["step_id"]: answer["result"] for answer in answers} == recorded
    await _assert_nothing_new(crashed["twins"], step_count=2)


async def test_d1_of_many_calls_each_outcome_replays_once_and_each_open_one_proceeds_as_itself(
    crashed: dict[str, Crashed], module_seed: int
) -> None:
    """Case D1."""
    lease = crashed["mixed"].lease
    calls, kinds, outcomes = crashed["mixed"].recorded
    shuffled = random.Random(module_seed + 1).sample(calls, len(calls))

    answers = await asyncio.gather(*(lease.decide("mixed", {"n": n}) for n in shuffled))

    # Every step is answered once, to a call of its kind: with what is recorded for it, or to be run again.
    assert Counter(answer["step_id"] for answer in answers) == Counter(list(kinds))
    assert [kinds[answer["step_id"]] for answer in answers] == shuffled
    replayed = {answer["step_id"]: answer["result"] for answer in answers if answer["decision"] == "replay"}
    assert replayed == outcomes
    assert {answer["decision"] for answer in answers if answer["step_id"] not in outcomes} == {"proceed"}
    await _assert_nothing_new(crashed["mixed"], step_count=MIXED_CALLS)


async def _assert_nothing_new(crashed: Crashed, *, step_count: int) -> None:
    """A replay makes no step and no event; what appeared is that the second attempt was taken."""
    lease = crashed.lease
    assert len(await lease.kernel.steps(lease.execution_id)) == step_count
    later = await lease.kernel.event_types(lease.execution_id, after_seq=crashed.event_count)
    assert later == ["dispatch.acked"]
