"""Case J2 in its own times: repeats that come when the broker has long forgotten the id of the first publish."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from kernel.embedded import embedded_nats
from tests.conformance.harness.answers import accepted
from tests.conformance.harness.calls import REPLAYED
from tests.conformance.harness.kernel import Kernel, connected
from tests.support.ack_proxy import AckProxy, ack_proxy
from tests.support.scripted_agent import pass_time
from tests.support.stack import Stack

AFTER_SECONDS = (1.0, 30.0, 190.0)
"""The last one is past the two minutes for which broker and fold remember ids."""
LEASE_SECONDS = 240


@pytest.fixture
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AckProxy]:
    async with embedded_nats(tmp_path_factory.mktemp("broker")) as server, ack_proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
async def kernel(broker: AckProxy) -> AsyncIterator[Kernel]:
    settings = {"STEPWELL_NO_POLICY": "allow", "STEPWELL_NATS_URL": broker.url}
    stack = await asyncio.to_thread(Stack.start, lease_seconds=LEASE_SECONDS, settings=settings)
    try:
        async with connected(stack.url, stack.api_key) as access:
            yield access
            broker.delay_seconds = 0.0
    finally:
        await asyncio.to_thread(stack.stop)


@pytest.mark.soak
async def test_repeats_past_the_window_return_the_first_step_and_count_nothing(
    kernel: Kernel, broker: AckProxy
) -> None:
    lease = await (await kernel.agent()).acknowledged()
    broker.delay_seconds = None

    first = accepted(await lease.submit("pay", {"amount": 1}, key="submit"))
    recorded = accepted(await lease.complete(first["step_id"], "paid", key="complete"))
    begun_at = time.monotonic()
    for seconds in AFTER_SECONDS:
        await pass_time(begun_at + seconds - time.monotonic())
        again = await lease.submit("pay", {"amount": 1}, key="submit")
        completed = await lease.complete(first["step_id"], "paid", key="complete")
        assert accepted(again)["step_id"] == first["step_id"]
        assert accepted(again)["decision"] == "replay"
        assert [response.headers.get(REPLAYED) for response in (again, completed)] == ["true", "true"]
        assert accepted(completed) == recorded

    assert broker.kept > len(AFTER_SECONDS)
    steps = await kernel.steps(lease.execution_id)
    assert [(step["occurrence"], step["result"]) for step in steps] == [(0, "paid")]
