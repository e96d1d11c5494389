"""A flipped byte in a log file: the shard stops and says so, the others go on."""

from collections.abc import Iterator

import pytest
import redis

from kernel.domain.identity import shard_of
from tests.conformance.harness.agent import Lease
from tests.conformance.harness.kernel import Kernel
from tests.fault.ruins import SETTINGS, SHARDS, assert_refused, blocks, lease_in, restarted, says
from tests.support.stack import Stack
from tests.support.wait import wait_until_async

MARK = "the-text-that-is-damaged"


@pytest.fixture
def stack() -> Iterator[Stack]:
    """One of its own for each test, which ruins it."""
    with Stack.start(settings=SETTINGS) as running:
        yield running


def flip_a_byte(stack: Stack, shard: int, text: bytes) -> None:
    """Flip one bit in the middle of this text, which is on the disk once."""
    for path in blocks(stack, shard):
        content = bytearray(path.read_bytes())
        place = content.find(text)
        if place >= 0:
            assert content.find(text, place + 1) < 0, "the text is in the log more than once"
            content[place + len(text) // 2] ^= 1
            path.write_bytes(content)
            return
    raise AssertionError("the text is not in the log")


class Damaged:
    """A shard with a damaged outcome in its log, and an execution of another one."""

    def __init__(self, harmed: Lease, step_id: str, other: Lease, recorded: str) -> None:
        self.harmed = harmed
        self.step_id = step_id
        self.other = other
        self.recorded = recorded
        self.shard = shard_of(harmed.execution_id, SHARDS)


async def damaged(stack: Stack, kernel: Kernel, *, is_killed: bool) -> Damaged:
    """Flip a byte of an acknowledged outcome while NATS is down, with entries before and behind it."""
    agent = await kernel.agent()
    harmed = await agent.acknowledged()
    shard = shard_of(harmed.execution_id, SHARDS)
    other = await lease_in(agent, not_in=shard)
    step_id = await harmed.done("pay", {"amount": 1}, result=MARK)
    await harmed.proceed("next")
    recorded = await other.done("pay", {"amount": 2}, result="fine")
    if is_killed:
        stack.kill("nats")
    else:
        await stack.nats.stop()
    flip_a_byte(stack, shard, MARK.encode())
    return Damaged(harmed, step_id, other, recorded)


async def assert_others_go_on(kernel: Kernel, found: Damaged) -> None:
    assert (await kernel.step(found.other.execution_id, found.recorded))["result"] == "fine"
    assert await found.other.proceed("pay", {"amount": 3})


async def test_a_byte_flipped_while_the_broker_was_dead_stops_the_shard_that_lost_its_end(
    stack: Stack, kernel: Kernel
) -> None:
    """After a crash the broker reads its last block anew, and cuts it off where a record is damaged."""
    found = await damaged(stack, kernel, is_killed=True)

    await restarted(stack, kernel)

    await says(stack, f"shard {found.shard}: the log ends at")
    assert_refused(await found.harmed.submit("pay", {"amount": 1}), 503, 504)
    assert_refused(await found.harmed.complete(found.step_id, "again"), 503, 504)
    await assert_others_go_on(kernel, found)


async def test_a_byte_flipped_in_a_log_that_was_closed_well_is_a_gap_or_parked_when_it_is_folded_again(
    stack: Stack, kernel: Kernel
) -> None:
    """After an orderly stop the broker trusts its index, and finds the damage when it reads the record."""
    found = await damaged(stack, kernel, is_killed=False)

    await restarted(stack, kernel)
    with redis.Redis.from_url(stack.valkey.url) as client:
        client.flushall()

    await wait_until_async(
        lambda: any(words in stack.logs()["server"] for words in ("are not in the log", "is parked")),
        "the alarm about the damaged entry",
        deadline_seconds=30,
    )
    assert_refused(await found.harmed.submit("pay", {"amount": 1}), 503, 504)
    assert_refused(await kernel.get(f"/v0/executions/{found.harmed.execution_id}/steps/{found.step_id}"), 503)
    await assert_others_go_on(kernel, found)
