"""The last second of a request's time: what was not published by then never is."""

import asyncio
import time

import pytest

from kernel.domain.errors import LogUnavailable
from kernel.door.freshness import Freshness
from kernel.door.gate import Gate
from kernel.door.pipeline import Pipeline
from kernel.log.memory import MemoryLog
from kernel.ports import Outgoing
from kernel.settings import Settings
from kernel.view.memory import MemoryView
from schemas.ids import DEFAULT_TENANT, new_uuid7
from tests.support.wait import wait_until_async


async def test_a_log_that_comes_back_too_late_is_not_sent_the_entry() -> None:
    log = MemoryLog(shards=1)
    gate = Gate(log=log, skew_seconds_max=1.0)
    now = gate.monotonic()
    gate.compare(time.time_ns() // 1000, asked_at=now, answered_at=now)
    pipeline = Pipeline(settings=Settings(shards=1), log=log, view=MemoryView(), freshness=Freshness(1), gate=gate)
    outgoing = Outgoing(0, DEFAULT_TENANT, new_uuid7(), new_uuid7(), b"{}", reply_to="doorname")
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + 0.1
    log.go_offline()
    deciding = asyncio.create_task(pipeline.decide(outgoing, give_up_at=give_up_at, deadline=give_up_at + 2))

    await wait_until_async(lambda: loop.time() > give_up_at, "the time to give up")
    log.come_back()

    with pytest.raises(LogUnavailable):
        await deciding
    assert (await log.state(0)).last_seq == 0
