"""Appending and waiting: what a request is told when acknowledgements, answers, the log or the view go missing."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw

from kernel.domain.errors import LogUnavailable, OutcomeUnknown, Unavailable
from kernel.door.freshness import Freshness
from kernel.door.gate import Gate
from kernel.door.pipeline import Pipeline
from kernel.door.probing import Probes
from kernel.log.limits import LogLimits
from kernel.log.memory import MemoryLog, MemoryWakes
from kernel.ports import Acknowledged, Outgoing, Rejected, answers_channel
from kernel.settings import Settings
from kernel.view.memory import MemoryView
from schemas.answers import AnswerBatch, Created, Done, encode_answer, encode_batch
from schemas.entries import ExecutionCreated, Limits, encode_entry
from schemas.ids import DEFAULT_TENANT, new_uuid7
from tests.support.wait import loop_turns, wait_until_async
from workers.projector import Projector

NAME = "doorname"
QUICK: dict[str, Any] = {"shards": 1, "answer_poll_seconds": 0.02, "republish_seconds": 0.06}


class CountingLog(MemoryLog):
    """A log that counts publishes and refuses as many as it is told to."""

    def __init__(self) -> None:
        super().__init__(shards=1, limits=LogLimits(silence_of_acknowledgements_seconds=0.3, silence_probe_seconds=0.1))
        self.sent: list[str] = []
        self.refusals: list[Rejected] = []

    def send(self, outgoing: Outgoing, acknowledged: Callable[[Acknowledged | Rejected], None]) -> None:
        if not self.is_connected:
            super().send(outgoing, acknowledged)
        self.sent.append(outgoing.entry_id)
        if self.refusals:
            asyncio.get_running_loop().call_soon(acknowledged, self.refusals.pop(0))
        else:
            super().send(outgoing, acknowledged)


class Bench:
    """A pipeline over memory adapters, with or without a projector."""

    def __init__(self, **settings: Any) -> None:
        self.settings = Settings(**(QUICK | settings))
        self.log = CountingLog()
        self.view = MemoryView()
        self.wakes = MemoryWakes()
        self.freshness = Freshness(1)
        self.freshness.learn_floor(0, 0, losses=0)
        self.wall_ahead_seconds = 0.0
        self.gate = Gate(
            log=self.log,
            skew_seconds_max=self.settings.clock_skew_seconds_max,
            wall=lambda: time.time_ns() + round(self.wall_ahead_seconds * 1e9),
        )
        self.compare_clocks()
        self.pipeline = Pipeline(
            settings=self.settings, log=self.log, view=self.view, freshness=self.freshness, gate=self.gate
        )

    def compare_clocks(self) -> None:
        """Let the gate know the broker's clock, as a pulse of the door does."""
        now = self.gate.monotonic()
        self.gate.compare(time.time_ns() // 1000, asked_at=now, answered_at=now)

    def entry(self) -> Outgoing:
        """Return an entry that creates an execution."""
        execution_id = new_uuid7()
        now = time.time_ns() // 1000
        entry = ExecutionCreated(
            id=new_uuid7(),
            tenant=DEFAULT_TENANT,
            execution_id=execution_id,
            at=now,
            expires=now + 60_000_000,
            agent_id="agent",
            created_by="api",
            input=Raw(b"null"),
            dispatch_id=new_uuid7(),
            limits=Limits(5, 1000, 1000, 1000, 1000, 1000),
            deadline_at=None,
            life_ends_at=now + 10**12,
        )
        return Outgoing(0, DEFAULT_TENANT, execution_id, entry.id, encode_entry(entry), NAME)

    async def decide(self, outgoing: Outgoing, *, seconds: float = 5.0, late_seconds: float = 0.1) -> Any:
        ends_at = asyncio.get_running_loop().time() + seconds
        return await self.pipeline.decide(outgoing, give_up_at=ends_at - late_seconds, deadline=ends_at)

    def answer(self, outgoing: Outgoing, answer: Any = None, *, watermark_seq: int = 1) -> None:
        """Tell the door an answer, as a projector does."""
        pair = (outgoing.entry_id, encode_answer(Done() if answer is None else answer))
        batch = AnswerBatch(shard=0, watermark_seq=watermark_seq, answers=(pair,))
        self.wakes.tell(answers_channel(NAME), encode_batch(batch))


@asynccontextmanager
async def bench(*, projects: bool = True, **settings: Any) -> AsyncIterator[Bench]:
    found = Bench(**settings)
    subscription = await found.wakes.listen(answers_channel(NAME), found.pipeline.hear)
    projector = Projector(settings=found.settings, log=found.log, view=found.view, wakes=found.wakes, name="projector")
    task = asyncio.create_task(projector.run()) if projects else None

    async def is_projecting() -> bool:
        return (await found.view.stored_answer(0, new_uuid7())).watermark_seq == 0

    try:
        if projects:
            await wait_until_async(is_projecting, "the projector to own the shard")
        yield found
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        await subscription.close()
    assert found.pipeline.waiting == 0


async def test_an_answer_that_is_heard_is_returned_after_one_publish() -> None:
    async with bench() as found:
        outgoing = found.entry()
        assert await found.decide(outgoing) == Created(outgoing.execution_id)
        assert found.log.sent == [outgoing.entry_id]
        assert found.freshness.floor(0) == 1


async def test_an_answer_that_nobody_hears_is_read_where_it_is_stored() -> None:
    async with bench() as found:
        found.wakes.is_connected = False
        outgoing = found.entry()
        assert await found.decide(outgoing) == Created(outgoing.execution_id)
        assert found.log.sent == [outgoing.entry_id]


async def test_an_answer_is_read_even_where_neither_it_nor_an_acknowledgement_is_heard() -> None:
    async with bench() as found:
        found.wakes.is_connected = False
        found.log.drop_acks = True
        outgoing = found.entry()
        assert await found.decide(outgoing) == Created(outgoing.execution_id)


async def test_an_entry_is_published_again_with_its_id_until_acknowledged() -> None:
    async with bench(projects=False) as found:
        found.log.drop_acks = True
        outgoing = found.entry()
        deciding = asyncio.create_task(found.decide(outgoing))
        await wait_until_async(lambda: len(found.log.sent) >= 3, "the entry to be published again")
        assert set(found.log.sent) == {outgoing.entry_id}
        found.log.drop_acks = False
        count = len(found.log.sent)
        await wait_until_async(lambda: len(found.log.sent) > count, "a publish that is acknowledged")
        settled = len(found.log.sent)
        found.answer(outgoing)
        assert await deciding == Done()
        assert len(found.log.sent) == settled
        assert (await found.log.state(0)).last_seq == 1


async def test_an_entry_that_was_sent_and_never_answered_has_an_unknown_outcome() -> None:
    async with bench(projects=False) as found:
        with pytest.raises(OutcomeUnknown):
            await found.decide(found.entry(), seconds=0.2)
        found.log.drop_acks = True
        with pytest.raises(OutcomeUnknown):
            await found.decide(found.entry(), seconds=0.2)


async def test_an_entry_that_was_never_sent_is_certainly_not_done() -> None:
    async with bench(projects=False) as found:
        found.log.go_offline()
        with pytest.raises(LogUnavailable):
            await found.decide(found.entry(), seconds=0.2)
        found.log.come_back()
        assert (await found.log.state(0)).last_seq == 0


async def test_a_log_that_comes_back_within_the_budget_is_waited_for() -> None:
    async with bench() as found:
        found.log.go_offline()
        outgoing = found.entry()
        deciding = asyncio.create_task(found.decide(outgoing))
        await loop_turns()
        assert found.log.sent == []
        found.log.come_back()
        assert await deciding == Created(outgoing.execution_id)


async def test_nothing_is_published_when_the_fold_would_take_it_for_late() -> None:
    async with bench(projects=False) as found:
        found.log.go_offline()
        deciding = asyncio.create_task(found.decide(found.entry(), seconds=0.3, late_seconds=0.3))
        with pytest.raises(LogUnavailable):
            await deciding
        found.log.come_back()
        assert found.log.sent == []


async def test_a_full_log_refuses_at_once_and_says_so() -> None:
    async with bench() as found:
        found.log.reject_full = True
        with pytest.raises(LogUnavailable) as refused:
            await found.decide(found.entry(), seconds=30)
        assert refused.value.reason == "log_full"
        assert len(found.log.sent) == 1


async def test_a_refusal_for_another_reason_is_tried_again() -> None:
    async with bench() as found:
        found.log.refusals = [Rejected("no responders", is_full=False)] * 2
        outgoing = found.entry()
        assert await found.decide(outgoing) == Created(outgoing.execution_id)
        assert found.log.sent == [outgoing.entry_id] * 3


async def test_a_refusal_after_a_publish_that_may_be_in_the_log_proves_nothing() -> None:
    async with bench(projects=False) as found:
        found.log.drop_acks = True
        outgoing = found.entry()
        deciding = asyncio.create_task(found.decide(outgoing, seconds=0.4))
        await wait_until_async(lambda: found.log.sent, "the first publish")
        found.log.refusals = [Rejected("full", is_full=True)] * 100
        with pytest.raises(OutcomeUnknown):
            await deciding


async def test_refusals_of_every_publish_prove_that_the_entry_is_not_there() -> None:
    async with bench(projects=False) as found:
        found.log.refusals = [Rejected("no leader", is_full=False)] * 1000
        with pytest.raises(LogUnavailable):
            await found.decide(found.entry(), seconds=0.3)
        assert len(found.log.sent) > 1


async def test_into_a_log_that_acknowledges_nothing_no_more_is_sent_until_a_probe_is_acknowledged() -> None:
    async with bench() as found:
        found.log.fail_writes = True
        with pytest.raises(OutcomeUnknown):
            await found.decide(found.entry(), seconds=0.6)
        refused = found.entry()
        with pytest.raises(LogUnavailable, match="restart"):
            await asyncio.wait_for(found.decide(refused, seconds=30), 5)
        assert refused.entry_id not in found.log.sent

        found.log.fail_writes = False
        probes = Probes(log=found.log, shards=1)
        with pytest.raises(LogUnavailable):
            await found.decide(found.entry())

        async def is_heard() -> bool:
            probes.send()
            return not found.log.is_silent(0)

        await wait_until_async(is_heard, "a probe to be acknowledged")
        outgoing = found.entry()
        assert await found.decide(outgoing) == Created(outgoing.execution_id)
        assert refused.entry_id not in found.log.sent


async def test_what_was_sent_before_the_log_fell_silent_is_unknown_and_not_refused() -> None:
    async with bench(projects=False) as found:
        found.log.fail_writes = True
        outgoing = found.entry()
        with pytest.raises(OutcomeUnknown):
            await found.decide(outgoing, seconds=1.0)
        assert found.log.is_silent(0)


@pytest.mark.parametrize("ahead_seconds", [2.0, -2.0, 3600.0, -3600.0])
async def test_under_a_clock_that_is_off_nothing_is_sent_and_the_refusal_comes_at_once(ahead_seconds: float) -> None:
    async with bench() as found:
        found.wall_ahead_seconds = ahead_seconds
        with pytest.raises(LogUnavailable, match="clock"):
            await asyncio.wait_for(found.decide(found.entry(), seconds=30), 5)
        assert found.log.sent == []
        found.wall_ahead_seconds = 0.9 if ahead_seconds > 0 else -0.9
        outgoing = found.entry()
        assert await found.decide(outgoing) == Created(outgoing.execution_id)


async def test_nothing_is_sent_before_the_clock_was_compared_with_the_brokers() -> None:
    async with bench() as found:
        gate = Gate(log=found.log, skew_seconds_max=1.0)
        pipeline = Pipeline(
            settings=found.settings, log=found.log, view=found.view, freshness=found.freshness, gate=gate
        )
        ends_at = asyncio.get_running_loop().time() + 0.3
        with pytest.raises(LogUnavailable):
            await pipeline.decide(found.entry(), give_up_at=ends_at - 0.1, deadline=ends_at)
        assert found.log.sent == []


async def test_a_view_that_is_away_is_asked_until_the_deadline() -> None:
    async with bench() as found:
        outgoing = found.entry()
        found.wakes.is_connected = False
        found.view.is_unavailable = True
        deciding = asyncio.create_task(found.decide(outgoing))
        await wait_until_async(lambda: found.log.sent, "the publish")
        await loop_turns()
        assert not deciding.done()
        found.view.is_unavailable = False
        assert await deciding == Created(outgoing.execution_id)


async def test_a_projector_that_is_busy_is_not_asked_about_every_request_that_waits_for_it() -> None:
    async with bench(projects=False) as found:
        reads: list[str] = []
        stored_answer = found.view.stored_answer

        async def counted(shard: int, entry_id: str) -> Any:
            reads.append(entry_id)
            return await stored_answer(shard, entry_id)

        found.view.stored_answer = counted
        other, outgoing = found.entry(), found.entry()
        deciding = asyncio.create_task(found.decide(outgoing))
        ends_at = asyncio.get_running_loop().time() + 0.3
        while asyncio.get_running_loop().time() < ends_at:
            # The shard's answers keep coming, and none of its watermarks has reached this entry.
            found.answer(other, watermark_seq=0)
            await loop_turns(1)
        assert reads == []
        found.answer(other, watermark_seq=5)
        await wait_until_async(lambda: reads, "the stored answer to be read once the fold has passed it")
        found.answer(outgoing)
        assert await deciding == Done()


async def test_more_requests_than_there_is_room_for_wait_their_turn_or_are_refused() -> None:
    async with bench(projects=False, in_flight_max=2) as found:
        entries = [found.entry() for _ in range(3)]
        tasks = [asyncio.create_task(found.decide(entry)) for entry in entries]
        await loop_turns()
        assert found.log.sent == [entries[0].entry_id, entries[1].entry_id]
        with pytest.raises(Unavailable):
            await found.decide(found.entry(), seconds=0.15)
        found.answer(entries[0])
        await wait_until_async(lambda: entries[2].entry_id in found.log.sent, "the one that waited to be sent")
        for entry in entries[1:]:
            found.answer(entry)
        assert await asyncio.gather(*tasks) == [Done()] * 3


async def test_a_cancelled_request_leaves_nothing_behind_and_its_entry_stays() -> None:
    async with bench(projects=False, in_flight_max=1) as found:
        outgoing = found.entry()
        task = asyncio.create_task(found.decide(outgoing))
        await wait_until_async(lambda: found.pipeline.waiting == 1, "the request to wait")
        task.cancel()
        await asyncio.wait((task,))
        assert found.pipeline.waiting == 0
        assert (await found.log.state(0)).last_seq == 1
        found.answer(outgoing)
        following = asyncio.create_task(found.decide(found.entry()))
        await wait_until_async(lambda: len(found.log.sent) == 2, "its place to be free")
        following.cancel()
        await asyncio.wait((following,))


async def test_abandoned_requests_end_at_once_with_what_is_known_of_them() -> None:
    async with bench(projects=False, in_flight_max=10) as found:
        sent = asyncio.create_task(found.decide(found.entry(), seconds=60))
        await loop_turns()
        found.log.go_offline()
        unsent = asyncio.create_task(found.decide(found.entry(), seconds=60))
        await loop_turns()
        found.pipeline.abandon()
        with pytest.raises(OutcomeUnknown):
            await sent
        with pytest.raises(LogUnavailable):
            await unsent


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"x" * 100, encode_batch(AnswerBatch(shard=7, watermark_seq=1, answers=()))],
)
async def test_a_message_that_is_no_answer_is_dropped(payload: bytes) -> None:
    async with bench() as found:
        found.pipeline.hear(payload)
        assert found.freshness.floor(0) == 0
