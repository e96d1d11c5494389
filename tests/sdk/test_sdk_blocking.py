"""Agents that block: their outcomes leave within the linger, and their leases are kept as long as they live."""

import asyncio
import time
from datetime import datetime
from pathlib import Path

import pytest

from stepwell import Event
from stepwell.settling import LINGER_SECONDS
from tests.sdk.blocking_agent import NAME, SECRET, SLOW_TOOLS, Order
from tests.sdk.ground import Ground, ground
from tests.support.wait import wait_until_async

PROGRAM = "tests.sdk.blocking_agent"
LINGER_MARGIN_SECONDS = 2.0
"""For the request itself, and for a machine on which everything else runs too."""
LEASE_SECONDS = 4.0
REDELIVERY_MARGIN_SECONDS = 3.0
"""An expiry is a second late at most; the rest is the machine's."""
WAIT_SECONDS_MAX = 60.0


async def _begin(on: Ground, handler: str) -> None:
    await on.register(NAME, secret=SECRET)
    await on.lives.begin(Order(kernel_url=on.kernel.url, folder=str(on.folder), handler=handler))


async def _until(on: Ground, execution_id: str, type_: str) -> Event:
    """Return the first event of a type once it has happened."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        async for event in on.client.follow(execution_id):
            if event.type == type_:
                return event
    raise AssertionError(f"the execution ended without {type_}")


@pytest.mark.parametrize("handler", ["awaits", "blocks_its_loop", "blocks_its_thread", "computes"])
async def test_a22_an_outcome_is_with_the_kernel_within_the_linger_whatever_its_agent_does(
    tmp_path: Path, handler: str
) -> None:
    async with ground(PROGRAM, tmp_path) as on:
        await _begin(on, handler)
        created = await on.client.create(NAME)

        succeeded = await _until(on, created.id, "step.succeeded")

        seconds = datetime.fromisoformat(succeeded.occurred_at).timestamp() - on.effects()[0].at
        assert seconds < LINGER_SECONDS + LINGER_MARGIN_SECONDS
        # The agent has made no further call: the outcome went alone.
        assert len(await on.client.list_steps(created.id)) == 1
        assert not (await on.client.get(created.id)).is_terminal


@pytest.mark.alone
async def test_d3_tools_that_block_keep_their_leases_and_a_killed_agent_loses_them_in_time(tmp_path: Path) -> None:
    async with ground(PROGRAM, tmp_path, lease_seconds=LEASE_SECONDS) as on:
        await _begin(on, "has_slow_tools")
        given = {"seconds": 3 * LEASE_SECONDS}
        created = [await on.client.create(NAME, given | {"which": which}) for which in ("thread", "below", "loop")]

        ended = await asyncio.gather(*(on.client.wait(each.id, timeout=WAIT_SECONDS_MAX) for each in created))

        assert [(each.status, each.output) for each in ended] == [("completed", "done")] * SLOW_TOOLS
        assert sorted(each.name for each in on.effects()) == ["below", "in a thread", "in a thread", "on the loop"]
        for each in created:
            types = [event.type for event in await on.client.events(each.id)]
            assert types.count("dispatch.acked") == 1

        # When the process truly dies, the work comes back.
        lost = [await on.client.create(NAME, given | {"which": which}) for which in ("thread", "below", "loop")]
        await wait_until_async(lambda: len(on.effects()) == 8, "the bodies to block")
        on.lives.kill()
        killed_at = time.monotonic()
        await on.lives.ended()
        await _begin(on, "has_slow_tools")
        await wait_until_async(
            lambda: len(on.effects()) == 12, "the bodies to run again", deadline_seconds=WAIT_SECONDS_MAX
        )
        assert time.monotonic() - killed_at < LEASE_SECONDS + REDELIVERY_MARGIN_SECONDS
        await asyncio.gather(*(on.client.cancel(each.id) for each in lost))
