"""The checks of contract section 14 that are marked [faults], against processes that are killed and stopped."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import httpx
import pytest
import redis

from kernel.domain.identity import shard_of
from kernel.log.jetstream import JetStreamLog
from kernel.ports import Outgoing
from schemas.ids import new_uuid7
from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.answers import accepted, details, envelope
from tests.conformance.harness.calls import KEY, REPLAYED
from tests.conformance.harness.endpoint import Answer, Delivery
from tests.conformance.harness.kernel import Kernel, connected
from tests.fault.faults import limit_the_log
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

SHARDS = 8
BUDGET_SECONDS = 3.0
KERNEL = ("door", "door-2", "projector", "dispatcher", "dispatcher-2")
AGAIN_SECONDS_MAX = 30.0
UNACKNOWLEDGED_SECONDS = 45.0
EXECUTIONS = 40
KILLS = 4
DELETIONS = 12
CREATES_EACH = 4


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Requests that cannot be answered are given up soon."""
    settings = {"STEPWELL_NO_POLICY": "allow", "STEPWELL_REQUEST_BUDGET": f"{BUDGET_SECONDS}s"}
    with Stack.start(processes="apart", lease_seconds=60, settings=settings, doors=2, dispatchers=2) as running:
        yield running


@pytest.fixture
async def kernel(stack: Stack) -> AsyncIterator[Kernel]:
    async with connected(stack.url, stack.api_key) as access:
        yield access


async def settled(send: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """The same request until it is answered for good."""

    async def sent() -> httpx.Response | None:
        response = await send()
        return None if response.status_code in {503, 504} else response

    found = await wait_until_async(sent, "an answer", deadline_seconds=AGAIN_SECONDS_MAX, retry_on=httpx.TransportError)
    assert found is not None
    return found


async def kill_all(stack: Stack, names: tuple[str, ...] = KERNEL) -> None:
    for name in names:
        await asyncio.to_thread(stack.kill, name)
    await asyncio.gather(*(asyncio.to_thread(stack.restart, name) for name in names))


async def test_k62_what_was_answered_outlives_every_process_of_the_kernel(stack: Stack, kernel: Kernel) -> None:
    lease = await (await kernel.agent()).acknowledged()
    step_id = await lease.proceed("pay", {"amount": 1}, key="submit")

    await kill_all(stack)
    recorded = await settled(lambda: lease.complete(step_id, "paid", key="complete"))
    submitted_again = await settled(lambda: lease.submit("pay", {"amount": 1}, key="submit"))
    await kill_all(stack)
    completed_again = await settled(lambda: lease.complete(step_id, "paid", key="complete"))
    other_outcome = await settled(lambda: lease.complete(step_id, "paid twice"))

    assert accepted(recorded) == {"decision": "recorded"}
    replay = {"decision": "replay", "step_id": step_id, "result": "paid", "resources": []}
    assert {name: value for name, value in accepted(submitted_again).items() if name in replay} == replay
    assert accepted(completed_again) == {"decision": "recorded"}
    assert completed_again.headers[REPLAYED] == "true"
    assert accepted(other_outcome) == {"decision": "replay", "result": "paid"}
    steps = await kernel.steps(lease.execution_id)
    assert [(step["step_id"], step["status"]) for step in steps] == [(step_id, "succeeded")]


async def _create(agent: Agent, key: str) -> str:
    response = await settled(lambda: agent.kernel.create(agent.id, headers={KEY: key}))
    return accepted(response, 201)["id"]


async def test_k80_no_attempt_is_received_twice_while_dispatchers_are_killed(
    stack: Stack, kernel: Kernel, seed: int
) -> None:
    choose = random.Random(seed)
    agent = await kernel.agent()
    received = agent.endpoint.deliveries

    async def kill_at_random() -> None:
        for number in range(KILLS):
            enough = (number + 1) * EXECUTIONS // (KILLS + 1)
            await wait_until_async(
                lambda enough=enough: len(received) >= enough, "deliveries", deadline_seconds=AGAIN_SECONDS_MAX
            )
            victim = choose.choice(("dispatcher", "dispatcher-2"))
            await asyncio.to_thread(stack.kill, victim)
            await asyncio.to_thread(stack.restart, victim)

    async with asyncio.TaskGroup() as group:
        group.create_task(kill_at_random())
        created = [group.create_task(_create(agent, f"k80-{number}")) for number in range(EXECUTIONS)]
    # One that a dispatcher took and died with comes with its next attempt, in the check below.
    await wait_until_async(
        lambda: len({each.execution_id for each in received}) >= EXECUTIONS - KILLS * 2,
        "the deliveries",
        deadline_seconds=AGAIN_SECONDS_MAX,
    )

    counts = Counter((each.dispatch_id, each.attempt) for each in received)
    assert {each.execution_id for each in received} <= {task.result() for task in created}
    assert max(counts.values()) == 1


@pytest.mark.soak
async def test_k80_what_a_killed_dispatcher_had_claimed_is_due_again_after_its_lease(
    stack: Stack, kernel: Kernel
) -> None:
    held = asyncio.Event()

    def hold(delivery: Delivery) -> Answer:
        if delivery.attempt == 1:
            held.set()
            return Answer(is_silent=True)
        return Answer()

    agent = await kernel.agent(hold)
    execution = await agent.create()
    first = await agent.delivery(execution["id"])
    await held.wait()
    for name in ("dispatcher", "dispatcher-2"):
        await asyncio.to_thread(stack.kill, name)
        await asyncio.to_thread(stack.restart, name)

    second = await agent.delivery(execution["id"], number=2, deadline_seconds=UNACKNOWLEDGED_SECONDS + 70)

    assert (second.dispatch_id, second.attempt) == (first.dispatch_id, 2)
    assert second.at - first.at >= UNACKNOWLEDGED_SECONDS - 1


async def test_k113_storage_that_is_away_is_503_or_504_and_both_mean_what_they_say(
    stack: Stack, kernel: Kernel
) -> None:
    agent = await kernel.agent()
    before = await agent.acknowledged()
    leases = [await agent.acknowledged() for _ in range(6)]
    kept = await before.done("kept", result="kept")

    never_sent = await _while_away(stack, kernel, leases, "killed", lambda: stack.kill("nats"))
    # The connection stays and swallows what is sent: nobody can say what became of it.
    unknown = await _while_away(stack, kernel, leases, "paused", stack.nats.pause)

    # The view is asked before the log where an owner is not known yet, and behind it for the answer.
    viewless = await _while_away(stack, kernel, leases, "viewless", lambda: stack.kill("valkey"))

    for response in viewless:
        envelope(response, response.status_code, "outcome_unknown" if response.status_code == 504 else "unavailable")
    for response in never_sent:
        assert envelope(response, 503)["code"] == "unavailable"
    for response in unknown:
        assert envelope(response, 504)["code"] == "outcome_unknown"
    assert (await kernel.step(before.execution_id, kept))["result"] == "kept"
    for lease in leases:
        assert [step["args"] for step in await kernel.steps(lease.execution_id) if step["args"] == "killed"] == []
        assert max(Counter(step["args"] for step in await kernel.steps(lease.execution_id)).values(), default=0) <= 1
        fresh = await settled(lambda lease=lease: lease.submit("tool", "killed", key="killed"))
        again = await settled(lambda lease=lease: lease.submit("tool", "paused", key="paused"))
        blind = await settled(lambda lease=lease: lease.submit("tool", "viewless", key="viewless"))
        assert (fresh.headers.get(REPLAYED), accepted(fresh)["decision"]) == (None, "proceed")
        assert accepted(again)["decision"] == accepted(blind)["decision"] == "proceed"
        steps = await kernel.steps(lease.execution_id)
        assert Counter(step["args"] for step in steps) == {"killed": 1, "paused": 1, "viewless": 1}
        assert {step["occurrence"] for step in steps} == {0}


async def _while_away(
    stack: Stack, kernel: Kernel, leases: list[Lease], name: str, go: Callable[[], None]
) -> list[httpx.Response]:
    """What submissions are answered while NATS or Valkey is away for longer than their budget."""
    await asyncio.to_thread(go)
    if name == "killed":
        # From the moment on at which the door knows, nothing is sent.
        await wait_until_async(
            lambda: stack.logs()["door"].rpartition("connected to NATS")[2].count("is lost"), "the door to know"
        )
    answers = await asyncio.gather(*(lease.submit("tool", name, key=name) for lease in leases))
    if name == "paused":
        stack.nats.resume()
    else:
        await asyncio.to_thread(stack.restart, "nats" if name == "killed" else "valkey")

    async def is_ready() -> bool:
        return (await kernel.get("/v0/ready")).status_code == 200

    await wait_until_async(is_ready, "the door to be ready", deadline_seconds=AGAIN_SECONDS_MAX)
    return list(answers)


async def _two_shards(agent: Agent) -> tuple[Lease, Lease]:
    one, other = await agent.acknowledged(), await agent.acknowledged()
    while shard_of(other.execution_id, SHARDS) == shard_of(one.execution_id, SHARDS):
        other = await agent.acknowledged()
    return one, other


async def test_k121_a_halted_execution_says_so_and_others_go_on(stack: Stack, kernel: Kernel) -> None:
    agent = await kernel.agent()
    halted = await agent.acknowledged()
    shard = shard_of(halted.execution_id, SHARDS)
    neighbour = await agent.acknowledged()
    while shard_of(neighbour.execution_id, SHARDS) != shard:
        neighbour = await agent.acknowledged()
    log = await JetStreamLog.connect(stack.nats.url, shards=SHARDS, name="test")
    try:
        damaged = Outgoing(
            shard=shard,
            tenant="default",
            execution_id=halted.execution_id,
            entry_id=new_uuid7(),
            payload=b'{"this is":"no entry"}',
            reply_to="",
        )
        await log.append(damaged, timeout_seconds=5)
    finally:
        await log.close()

    answers = [await halted.submit("tool"), await halted.complete_execution("done"), await halted.heartbeat()]

    for response in answers:
        assert details(response, 503, "unavailable") == {"reason": "halted"}
    assert await neighbour.proceed("tool")


async def test_k121_a_full_log_says_so_and_other_shards_go_on(stack: Stack, kernel: Kernel) -> None:
    full, other = await _two_shards(await kernel.agent())
    shard = shard_of(full.execution_id, SHARDS)
    await limit_the_log(stack.nats.url, bytes_max=1, shards=(shard,))
    try:
        answers = [await full.submit("tool"), await kernel.cancel(full.execution_id)]
        assert await other.proceed("tool")
    finally:
        await limit_the_log(stack.nats.url, bytes_max=-1, shards=(shard,))

    for response in answers:
        assert details(response, 503, "unavailable") == {"reason": "log_full"}
    assert (await kernel.execution(full.execution_id))["status"] == "running"
    assert await full.proceed("tool")


async def test_k121_a_view_that_is_rebuilt_says_so_and_other_shards_go_on(stack: Stack, kernel: Kernel) -> None:
    lost, other = await _two_shards(await kernel.agent())
    shard = shard_of(lost.execution_id, SHARDS)
    projector = stack.process("projector")
    with redis.Redis.from_url(stack.valkey.url) as client:
        projector.pause()
        try:
            gone = list(client.scan_iter(match=f"{{s{shard}}}*", count=1000))
            client.delete(*gone)
            response = await kernel.get(f"/v0/executions/{lost.execution_id}")
            assert (await kernel.execution(other.execution_id))["id"] == other.execution_id
        finally:
            projector.resume()

    assert details(response, 503, "unavailable") == {"reason": "rebuilding"}
    read = await settled(lambda: kernel.get(f"/v0/executions/{lost.execution_id}"))
    assert accepted(read)["status"] == "running"


async def test_k121_a_view_that_is_away_says_so(stack: Stack, kernel: Kernel) -> None:
    lease = await (await kernel.agent()).acknowledged()
    stack.kill("valkey")
    try:
        read = await kernel.get(f"/v0/executions/{lease.execution_id}")
    finally:
        await asyncio.to_thread(stack.restart, "valkey")

    assert details(read, 503, "unavailable") == {"reason": "view_unavailable"}
    assert accepted(await settled(lambda: kernel.get(f"/v0/executions/{lease.execution_id}")))["status"] == "running"


async def test_k122_deleting_an_agent_against_creating_for_it_leaves_nothing_that_stays(
    stack: Stack, kernel: Kernel, seed: int
) -> None:
    choose = random.Random(seed)
    async with connected(stack.urls[1], stack.api_key) as elsewhere:
        # They take no delivery, so that every execution is due again while its agent goes.
        agents = [await kernel.agent(lambda _: Answer(status=500)) for _ in range(DELETIONS)]
        # The other door has to know them, or it would refuse what this is about.
        await settled(lambda: elsewhere.get(f"/v0/agents/{agents[-1].id}"))
        await asyncio.gather(*(_race(kernel, elsewhere, agent, choose) for agent in agents))


async def _race(kernel: Kernel, elsewhere: Kernel, agent: Agent, choose: random.Random) -> None:
    deleting = [kernel.request("DELETE", f"/v0/agents/{agent.id}")]
    creating = [choose.choice((kernel, elsewhere)).create(agent.id) for _ in range(CREATES_EACH)]
    calls = deleting + creating
    order = choose.sample(range(len(calls)), len(calls))
    found = dict(zip(order, await asyncio.gather(*(calls[place] for place in order)), strict=True))
    deleted, created = found[0], [found[place] for place in range(1, len(calls))]

    assert deleted.status_code in {204, 409}, deleted.text
    for response in created:
        assert response.status_code in {201, 404}, response.text
    for response in created:
        if response.status_code == 201 and deleted.status_code == 204:
            ended = await kernel.ended(response.json()["id"], deadline_seconds=AGAIN_SECONDS_MAX)
            assert (ended["status"], ended["failure_reason"]) == ("failed", "agent_deleted")
        elif response.status_code == 201:
            assert (await kernel.execution(response.json()["id"]))["status"] == "running"
