"""What waits is answered when what it waits for comes back, and an outage of ours costs no agent its lease."""

import asyncio
import time

import httpx
import pytest
import redis

from kernel.domain.identity import shard_of
from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.kernel import Kernel
from tests.fault.conftest import LEASE_SECONDS
from tests.fault.faulty_stack import FaultyStack
from tests.support.scripted_agent import pass_time
from tests.support.wait import wait_until_async

SHARDS = 8
REPLACED_SECONDS_MAX = 3.0
WAITERS = 24
EVERYTHING = ("door", "door-2", "projector", "projector-2", "dispatcher", "dispatcher-2", "nats", "valkey")
BEAT_SECONDS = 1.0


def owners(stack: FaultyStack) -> dict[int, str]:
    """The fence of every shard: who owns it, and since which time."""
    with redis.Redis.from_url(stack.valkey.url) as client:
        found = [client.get(f"{{s{shard}}}:owner") for shard in range(SHARDS)]
    return {shard: token.decode() for shard, token in enumerate(found) if isinstance(token, bytes) and token != b"-"}


async def until_shared(stack: FaultyStack) -> None:
    def are_shared() -> bool:
        tokens = owners(stack)
        return len(tokens) == SHARDS and len({token.split("/")[0] for token in tokens.values()}) == 2

    await wait_until_async(are_shared, "two projectors to share the shards", deadline_seconds=20)


@pytest.mark.alone
async def test_a_killed_owner_is_replaced_within_three_seconds_and_its_waiting_requests_are_answered(
    stack: FaultyStack, kernel: Kernel
) -> None:
    agent = await kernel.agent()
    leases = await asyncio.gather(*(agent.acknowledged() for _ in range(WAITERS)))
    await until_shared(stack)
    before = owners(stack)

    stack.kill("projector")
    killed_at = time.monotonic()
    waiting = [asyncio.create_task(lease.submit("tool", 1)) for lease in leases]
    answers = await asyncio.gather(*waiting)
    answered_seconds = time.monotonic() - killed_at
    after = owners(stack)
    await asyncio.to_thread(stack.restart, "projector")

    assert {accepted(answer)["decision"] for answer in answers} == {"proceed"}
    lost = {shard for shard, token in before.items() if after[shard] != token}
    assert lost, "the killed projector owned nothing"
    assert lost & {shard_of(lease.execution_id, SHARDS) for lease in leases}, "nobody waited for the killed one"
    assert answered_seconds < REPLACED_SECONDS_MAX


async def _restart_nats_under_waiting(
    stack: FaultyStack, leases: list[Lease], number: int, down_seconds: float
) -> None:
    """Requests that arrive while the broker is away, all of which must be answered and none refused."""
    stack.kill("nats")
    waiting = [asyncio.create_task(lease.submit("tool", number)) for lease in leases]
    await pass_time(down_seconds)
    assert not any(task.done() for task in waiting), [task.result().text for task in waiting if task.done()]
    await asyncio.to_thread(stack.restart, "nats")
    answers = await asyncio.gather(*waiting)
    assert {(answer.status_code, answer.json().get("decision")) for answer in answers} == {(200, "proceed")}
    for lease in leases:
        steps = await lease.kernel.steps(lease.execution_id)
        assert [step["occurrence"] for step in steps if step["args"] == number] == [0]


async def _acknowledged(kernel: Kernel, count: int) -> list[Lease]:
    agent = await kernel.agent()
    return await asyncio.gather(*(agent.acknowledged() for _ in range(count)))


async def test_requests_that_wait_for_the_log_are_answered_when_it_comes_back(
    stack: FaultyStack, kernel: Kernel
) -> None:
    """Case J1."""
    leases = await _acknowledged(kernel, WAITERS)

    for number, down_seconds in enumerate((0.0, 3.0)):
        await _restart_nats_under_waiting(stack, leases, number, down_seconds)


@pytest.mark.soak
async def test_requests_that_wait_survive_twenty_restarts_of_the_log(stack: FaultyStack, kernel: Kernel) -> None:
    """Case J1."""
    for number in range(20):
        # An agent that works for minutes keeps its lease by its submissions.
        await _restart_nats_under_waiting(stack, await _acknowledged(kernel, WAITERS), number, 0.2 * (number % 6))


@pytest.mark.soak
async def test_requests_that_wait_nearly_twenty_seconds_for_the_log_are_answered(
    stack: FaultyStack, kernel: Kernel
) -> None:
    """Case J1."""
    await _restart_nats_under_waiting(stack, await _acknowledged(kernel, WAITERS), 0, 18.0)


async def _outage(stack: FaultyStack, names: tuple[str, ...], seconds: float) -> None:
    for name in names:
        await asyncio.to_thread(stack.kill, name)
    await pass_time(seconds)
    for group in ([n for n in names if n in ("nats", "valkey")], [n for n in names if n not in ("nats", "valkey")]):
        await asyncio.gather(*(asyncio.to_thread(stack.restart, name) for name in group))


async def _beat(lease: Lease) -> int:
    """One heartbeat that its agent gives up when the next is due; 0 where nothing came back."""
    try:
        async with asyncio.timeout(BEAT_SECONDS):
            return (await lease.heartbeat()).status_code
    except (httpx.TransportError, TimeoutError):
        return 0


async def _assert_kept(stack: FaultyStack, agent: Agent, lease: Lease, names: tuple[str, ...]) -> None:
    outage = asyncio.create_task(_outage(stack, names, LEASE_SECONDS + 2.0))
    statuses: list[int] = []
    while not outage.done():
        statuses.append(await _beat(lease))
        await pass_time(BEAT_SECONDS)
    await outage

    async def is_heard() -> bool:
        statuses.append(await _beat(lease))
        return statuses[-1] == 204

    await wait_until_async(is_heard, "a heartbeat to be taken", deadline_seconds=LEASE_SECONDS)
    assert set(statuses) <= {0, 204, 503, 504}, statuses
    # What was expired would be delivered again within a second.
    await pass_time(2.0)
    assert [delivery.attempt for delivery in agent.endpoint.of(lease.execution_id)] == [1]
    assert await lease.proceed("after the outage")


async def test_an_outage_of_everything_expires_no_agent_that_kept_trying(stack: FaultyStack, kernel: Kernel) -> None:
    agent = await kernel.agent()
    lease = await agent.acknowledged()

    await _assert_kept(stack, agent, lease, EVERYTHING)


@pytest.mark.soak
@pytest.mark.parametrize(
    "names",
    [("door", "door-2"), ("projector", "projector-2"), ("dispatcher", "dispatcher-2"), ("nats",), ("valkey",)],
    ids=lambda names: names[0],
)
async def test_an_outage_of_one_kind_expires_no_agent_that_kept_trying(
    stack: FaultyStack, kernel: Kernel, names: tuple[str, ...]
) -> None:
    agent = await kernel.agent()
    lease = await agent.acknowledged()

    await _assert_kept(stack, agent, lease, names)
