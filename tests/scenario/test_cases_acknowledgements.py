"""Case J2: the broker stores what is published and nobody hears of it. Answers are right all the same, or unknown."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import httpx
import nats
import pytest
import pytest_asyncio
from nats.js.api import StreamConfig

from kernel.domain.identity import shard_of
from kernel.embedded import EmbeddedServer, embedded_nats
from kernel.log.jetstream import JetStreamLog
from kernel.log.naming import stream_name
from kernel.ports import LogMessage
from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, envelope
from tests.conformance.harness.calls import REPLAYED
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.stacks import SETTINGS
from tests.support.ack_proxy import AckProxy, ack_proxy
from tests.support.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHARDS = 8
BUDGET_SECONDS = 4.0
"""Long enough for one publish more after two seconds of silence, before nothing is published any more."""
WINDOW_SECONDS = 0.1
"""The shortest in which a broker can be told to know an id again: every later publish is stored once more."""
CREATED = ("execution.created", "execution.started", "dispatch.queued")
PROMPT_SECONDS = 1.5
"""Less than the two seconds of silence after which a door publishes again."""


class Deaf:
    """A kernel that does not hear acknowledgements when the proxy says so."""

    def __init__(self, stack: Stack, kernel: Kernel, proxy: AckProxy, log: JetStreamLog) -> None:
        self.stack = stack
        self.kernel = kernel
        self.proxy = proxy
        self._log = log

    async def lease(self) -> Lease:
        """A lease with which the kernel is done: nothing but the test adds to the log from here on."""
        self.proxy.delay_seconds = 0.0
        return await (await self.kernel.agent()).acknowledged()

    async def entries(self, execution_id: str) -> list[LogMessage]:
        shard = shard_of(execution_id, SHARDS)
        state = await self._log.state(shard)
        found = [await self._log.get(shard, seq) for seq in range(state.first_seq, state.last_seq + 1)]
        return [each for each in found if each is not None and each.execution_id == execution_id]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServer]:
    async with embedded_nats(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deaf(broker: EmbeddedServer) -> AsyncIterator[Deaf]:
    async with ack_proxy(broker.port) as proxy:
        settings = SETTINGS | {"STEPWELL_NATS_URL": proxy.url, "STEPWELL_REQUEST_BUDGET": f"{BUDGET_SECONDS}s"}
        # The proxy needs this loop while the kernel starts.
        stack = await asyncio.to_thread(Stack.start, settings=settings, lease_seconds=60)
        log = await JetStreamLog.connect(broker.url, shards=SHARDS, name="test")
        try:
            await _forget_ids_at_once(broker.url)
            async with connected(stack.url, stack.api_key) as kernel:
                yield Deaf(stack, kernel, proxy, log)
                proxy.delay_seconds = 0.0
        finally:
            await log.close()
            await asyncio.to_thread(stack.stop)


async def _forget_ids_at_once(url: str) -> None:
    """Shorten the window of the running streams; a kernel that starts would refuse such a broker."""
    connection = await nats.connect(url)
    try:
        streams = connection.jetstream()
        for shard in range(SHARDS):
            config: StreamConfig = (await streams.stream_info(stream_name(shard))).config
            await streams.update_stream(config.evolve(duplicate_window=WINDOW_SECONDS))
    finally:
        await connection.close()


@pytest.mark.parametrize("delay_seconds", [None, 3.0], ids=["dropped", "delayed"])
async def test_j2_without_acknowledgements_the_answer_comes_through_the_fold(
    deaf: Deaf, delay_seconds: float | None
) -> None:
    """Case J2."""
    lease = await deaf.lease()
    deaf.proxy.delay_seconds = delay_seconds
    kept = deaf.proxy.kept

    step_id = accepted(await _promptly(lease.submit("pay", 1, key="submit")))["step_id"]
    repeated = await _promptly(lease.submit("pay", 1, key="submit"))
    again = accepted(await _promptly(lease.submit("pay", 1)))
    completed = await _promptly(lease.complete(step_id, "paid", key="complete"))
    completed_again = await _promptly(lease.complete(step_id, "paid", key="complete"))

    assert deaf.proxy.kept - kept >= 5
    assert accepted(repeated)["step_id"] == step_id
    assert accepted(repeated)["decision"] == "proceed"
    assert [step["occurrence"] for step in await deaf.kernel.steps(lease.execution_id)] == [0, 1]
    assert (again["decision"], again["step_id"] == step_id) == ("proceed", False)
    assert accepted(completed) == accepted(completed_again) == {"decision": "recorded"}
    assert [each.headers.get(REPLAYED) for each in (repeated, completed, completed_again)] == ["true", None, "true"]
    await _assert_one_story(deaf, lease, step_id)


async def test_j2_an_unknown_outcome_is_called_so_and_its_repeat_tells_it_though_two_copies_are_stored(
    deaf: Deaf,
) -> None:
    """Case J2: neither an acknowledgement nor the fold is heard of. Seconds stand for the minutes of the case."""
    lease = await deaf.lease()

    submitted, unkeyed = await _unheard(deaf, lease.submit("pay", 1, key="submit"), lease.submit("note", 1))
    repeated = await lease.submit("pay", 1, key="submit")
    step_id = accepted(repeated)["step_id"]
    (completed,) = await _unheard(deaf, lease.complete(step_id, "paid", key="complete"))
    completed_again = await lease.complete(step_id, "paid", key="complete")
    # Past the window, as every publish is that comes later than it.
    later = await lease.submit("pay", 1, key="submit")
    next_ones = [await lease.decide(target, 1) for target in ("pay", "note")]

    for entry_type in ("step_submitted", "step_completed"):
        await _assert_two_copies(deaf, lease.execution_id, entry_type)
    for response in (submitted, unkeyed, completed):
        assert envelope(response, 504)["code"] == "outcome_unknown"
    assert accepted(repeated)["decision"] == "proceed"
    assert accepted(completed_again) == {"decision": "recorded"}
    assert (accepted(later)["decision"], accepted(later)["step_id"]) == ("replay", step_id)
    assert [each.headers.get(REPLAYED) for each in (repeated, completed_again, later)] == ["true"] * 3
    # Neither the copies nor the repeats were uses of the call.
    assert [each["decision"] for each in next_ones] == ["proceed", "proceed"]
    steps = [(step["target"], step["occurrence"]) for step in await deaf.kernel.steps(lease.execution_id)]
    assert sorted(steps) == [("note", 0), ("note", 1), ("pay", 0), ("pay", 1)]
    await _assert_one_story(deaf, lease, step_id)


async def test_j2_a_create_of_unknown_outcome_that_was_stored_twice_is_one_execution(deaf: Deaf) -> None:
    """Case J2."""
    agent = await deaf.kernel.agent()

    (created,) = await _unheard(deaf, deaf.kernel.create(agent.id, 1, idempotency_key="order-1"))
    repeated = await deaf.kernel.create(agent.id, 1, idempotency_key="order-1")

    assert envelope(created, 504)["code"] == "outcome_unknown"
    execution = accepted(repeated, 201)
    assert repeated.headers[REPLAYED] == "true"
    await _assert_two_copies(deaf, execution["id"], "execution_created")
    assert (await agent.lease(execution["id"])).attempt == 1
    await deaf.kernel.wait_for_event(execution["id"], "dispatch.acked")
    assert len(accepted(await deaf.kernel.get("/v0/executions", agent_id=agent.id))["executions"]) == 1
    assert await deaf.kernel.event_types(execution["id"]) == [*CREATED, "dispatch.acked"]


async def _promptly(request: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
    started = time.monotonic()
    response = await request
    assert time.monotonic() - started < PROMPT_SECONDS
    return response


async def _unheard(deaf: Deaf, *requests: Coroutine[Any, Any, httpx.Response]) -> list[httpx.Response]:
    """The answers to requests while neither acknowledgements nor the view can be heard."""
    deaf.proxy.delay_seconds = None
    deaf.stack.valkey.pause()
    try:
        return await asyncio.gather(*requests)
    finally:
        deaf.stack.valkey.resume()
        deaf.proxy.delay_seconds = 0.0


async def _assert_two_copies(deaf: Deaf, execution_id: str, entry_type: str) -> None:
    """Of the one entry of its type that is not a repeat: a door published it again, and the broker stored it again."""
    kind = f'"type":"{entry_type}"'.encode()
    stored = Counter(each.entry_id for each in await deaf.entries(execution_id) if kind in each.payload)
    assert max(stored.values()) == 2


async def _assert_one_story(deaf: Deaf, lease: Lease, step_id: str) -> None:
    events = await deaf.kernel.events(lease.execution_id)
    told = [event["type"] for event in events if event["payload"].get("step_id") == step_id]
    assert told == ["step.proposed", "step.allowed", "step.executing", "step.succeeded"]
    assert (await deaf.kernel.step(lease.execution_id, step_id))["result"] == "paid"
