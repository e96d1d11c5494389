"""Claims: who may deliver when answers are lost, late or another's, and when dispatchers die."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import cast

import pytest
from msgspec.structs import replace

from kernel.ports import Acknowledged, Log, Outgoing, Subscription, Wakes, answers_channel
from schemas.answers import AnswerBatch, Claimed, Done, encode_answer, encode_batch
from tests.support.dispatching import LIMITS, LONG_LEASE, Kernel, Kernels
from tests.support.scripted_agent import ScriptedAgent, is_quiet
from tests.support.wait import loop_turns, wait_until_async
from workers.dispatching.claims import Claims
from workers.dispatching.entries import claimed


class Deaf:
    """Wake-ups of which those on some channels are lost."""

    def __init__(self, wakes: Wakes, lost: str) -> None:
        self._wakes = wakes
        self._lost = lost

    def tell(self, channel: str, payload: bytes) -> None:
        if not channel.startswith(self._lost):
            self._wakes.tell(channel, payload)

    async def listen(self, channel: str, heard: Callable[[bytes], None], *, group: str = "") -> Subscription:
        return await self._wakes.listen(channel, heard, group=group)


class Forgetful:
    """What a claim needs of a log, one whose memory of ids is over: it takes every entry for a new one."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def append(self, outgoing: Outgoing, *, timeout_seconds: float) -> Acknowledged:
        return replace(await self._log.append(outgoing, timeout_seconds=timeout_seconds), is_duplicate=False)


async def claims_of(kernel: Kernel, name: str = "claimant") -> Claims:
    claims = Claims(log=kernel.log, view=kernel.view, name=name)
    await kernel.wakes.listen(answers_channel(name), claims.heard)
    return claims


async def test_a_lost_answer_is_read_from_the_view(kernels: Kernels, agent: ScriptedAgent) -> None:
    async with kernels(agent, through=lambda wakes: Deaf(wakes, "answers.")) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        await kernel.tells(execution_id, "dispatch.acked 1", deadline_seconds=4.0)


async def test_without_wake_ups_polling_finds_the_work(kernels: Kernels, agent: ScriptedAgent) -> None:
    async with kernels(agent, through=lambda wakes: Deaf(wakes, "due.")) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        await kernel.tells(execution_id, "dispatch.acked 1", deadline_seconds=2.0)


async def test_a_claim_belongs_to_the_one_whose_entry_came_first(kernels: Kernels) -> None:
    async with kernels(dispatchers=0) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        item = await kernel.due_delivery(execution_id)
        shard = kernel.shard(execution_id)
        await kernel.append(claimed(item, claimed_by="another"))

        assert await (await claims_of(kernel)).claim(shard, item) is None
        assert (await kernel.header(execution_id)).claimed_by == "another"


async def test_of_many_that_claim_at_once_one_may_deliver(kernels: Kernels) -> None:
    async with kernels(dispatchers=0) as kernel:
        for _ in range(2):
            execution_id = await kernel.create(limits=LONG_LEASE)
            item = await kernel.due_delivery(execution_id)
            shard = kernel.shard(execution_id)
            claims = [await claims_of(kernel, f"claimant{number}") for number in range(6)]

            found = await asyncio.gather(*(each.claim(shard, item) for each in claims))

            assert len([each for each in found if each is not None]) == 1


async def test_the_same_process_is_not_given_a_claim_twice(kernels: Kernels) -> None:
    """The first call may have sent already, and nobody remembers when it was accepted."""
    async with kernels(dispatchers=0) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        item = await kernel.due_delivery(execution_id)
        claims = await claims_of(kernel)

        assert await claims.claim(kernel.shard(execution_id), item) is not None
        assert await claims.claim(kernel.shard(execution_id), item) is None


async def test_the_acceptance_of_an_earlier_claim_is_not_taken_for_that_of_a_later_one(kernels: Kernels) -> None:
    """What a process hears when the view went back, is folded forward, and the broker has forgotten the entry's id."""
    async with kernels(dispatchers=0) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        item = await kernel.due_delivery(execution_id)
        shard = kernel.shard(execution_id)
        claims = Claims(log=cast("Log", Forgetful(kernel.log)), view=kernel.view, name="claimant")
        await kernel.wakes.listen(answers_channel("claimant"), claims.heard)
        assert await claims.claim(shard, item) is not None
        accepted = Claimed((await kernel.header(execution_id)).claimed_by)

        again = asyncio.ensure_future(claims.claim(shard, item))
        await loop_turns()
        entry_id = claimed(item, claimed_by="").id
        claims.heard(encode_batch(AnswerBatch(shard, 1, ((entry_id, encode_answer(accepted)),))))

        assert await again is None


async def test_an_answer_without_a_name_tells_nothing_and_the_header_does(kernels: Kernels) -> None:
    """A projector of an earlier build answers so."""
    async with kernels(dispatchers=0) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        item = await kernel.due_delivery(execution_id)
        shard = kernel.shard(execution_id)
        claims = await claims_of(kernel)
        await kernel.append(claimed(item, claimed_by="another"))

        claiming = asyncio.ensure_future(claims.claim(shard, item))
        await loop_turns()
        entry_id = claimed(item, claimed_by="").id
        claims.heard(encode_batch(AnswerBatch(shard, 1, ((entry_id, encode_answer(Done())),))))

        assert await claiming is None


async def test_two_calls_at_once_for_one_claim_are_one(kernels: Kernels) -> None:
    async with kernels(dispatchers=0) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        item = await kernel.due_delivery(execution_id)
        claims = await claims_of(kernel)
        shard = kernel.shard(execution_id)

        found = await asyncio.gather(claims.claim(shard, item), claims.claim(shard, item))

        assert len([each for each in found if each is not None]) == 1


async def test_a_claim_on_a_cancelled_execution_is_not_given(kernels: Kernels) -> None:
    async with kernels(dispatchers=0) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        item = await kernel.due_delivery(execution_id)
        await kernel.cancel(execution_id)

        assert await (await claims_of(kernel)).claim(kernel.shard(execution_id), item) is None


async def test_a_claim_is_as_old_as_its_acceptance_can_be(kernels: Kernels) -> None:
    """While no projector folds, nothing is accepted, and a claim does not grow old."""
    async with kernels(dispatchers=0) as kernel:
        execution_id = await kernel.create(limits=LONG_LEASE)
        item = await kernel.due_delivery(execution_id)
        await kernel.stop_projector()
        claims = await claims_of(kernel)
        started = time.monotonic()
        claiming = asyncio.ensure_future(claims.claim(kernel.shard(execution_id), item))
        await asyncio.wait({claiming}, timeout=2.5)
        assert not claiming.done()
        kernel.start_projector()
        claim = await claiming

    assert claim is not None
    assert claim.since - started > 1.5


async def test_a_claim_that_is_too_old_is_left_to_its_lease(
    kernels: Kernels, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.dispatching.delivery.CLAIM_SECONDS", 0.0)
    async with kernels(agent) as kernel:
        execution_id = await kernel.create()
        await kernel.tells(execution_id, "dispatch.queued 0")
        await wait_until_async(lambda: _claims(kernel, execution_id, at_least=2), "a second claim")

    assert agent.webhooks == []


async def _claims(kernel: Kernel, execution_id: str, *, at_least: int) -> bool:
    return (await kernel.header(execution_id)).claims >= at_least


async def test_messages_that_are_no_answers_change_nothing(kernels: Kernels, agent: ScriptedAgent) -> None:
    async with kernels(agent) as kernel:
        for payload in (b"", b"\xff", b"null", b"\x93\x00\x00\x91\x92\xa1a\xa1b"):
            kernel.wakes.tell("answers.dispatcher3", payload)
        execution_id = await kernel.create(limits=LONG_LEASE)
        await kernel.tells(execution_id, "dispatch.acked 1")


async def test_no_attempt_is_received_twice_while_dispatchers_die_at_random(
    kernels: Kernels, agent: ScriptedAgent, seed: int
) -> None:
    chance = random.Random(seed)
    agent.answer_seconds = 0.03
    async with kernels(agent, dispatchers=3) as kernel:
        execution_ids: list[str] = []
        for _ in range(40):
            execution_ids.append(await kernel.create(limits=LIMITS))
            if chance.random() < 0.5:
                kernel.tasks[-chance.randint(1, 3)].cancel()
                kernel.start_dispatcher()
            await is_quiet(agent, 0, chance.uniform(0.0, 0.05))
        for execution_id in execution_ids:
            await wait_until_async(
                lambda execution_id=execution_id: agent.of(execution_id), "a webhook", deadline_seconds=20.0
            )
        leases = [webhook.lease for webhook in agent.webhooks]

    assert len(set(leases)) == len(leases)
