"""Contract of the view: the slots that bound an agent's open webhook calls over all dispatchers."""

import asyncio
from itertools import count

import pytest

from kernel.domain.errors import InvariantBroken
from tests.contract.view_harness import ViewHarness

LIMIT = 3
HOLD_MS = 1_000_000
"""So long that a slow test ends no slot by itself."""
SLACK_MS = 60_000

_numbers = count()


async def take(
    harness: ViewHarness,
    holder: str,
    *,
    tenant: str = "acme",
    agent_id: str = "researcher",
    limit: int = LIMIT,
    hold_ms: int = HOLD_MS,
) -> bool:
    return await harness.view.take_slot(tenant, agent_id, holder=holder, limit=limit, hold_ms=hold_ms)


async def give(harness: ViewHarness, holder: str, *, tenant: str = "acme", agent_id: str = "researcher") -> None:
    await harness.view.give_slot(tenant, agent_id, holder=holder)


async def fill(harness: ViewHarness, *, tenant: str = "acme", agent_id: str = "researcher") -> int:
    """Take all slots that are free, and return how many that were."""
    taken = 0
    while await take(harness, f"filler{next(_numbers)}", tenant=tenant, agent_id=agent_id):
        taken += 1
        assert taken <= LIMIT, "more slots than the limit"
    return taken


class SlotSuite:
    async def test_as_many_hold_a_slot_as_the_limit_says_and_no_more(self, harness: ViewHarness) -> None:
        taken = [await take(harness, f"holder{number}") for number in range(LIMIT + 2)]

        assert taken == [True] * LIMIT + [False] * 2

    async def test_of_many_at_once_as_many_get_a_slot_as_there_are(self, harness: ViewHarness) -> None:
        taken = await asyncio.gather(*(take(harness, f"holder{number}") for number in range(5 * LIMIT)))

        assert sum(taken) == LIMIT

    async def test_a_slot_that_was_given_back_is_free(self, harness: ViewHarness) -> None:
        await take(harness, "one")
        await fill(harness)

        await give(harness, "one")

        assert await fill(harness) == 1

    async def test_a_slot_is_given_back_once(self, harness: ViewHarness) -> None:
        await take(harness, "one")
        await fill(harness)

        for _ in range(3):
            await give(harness, "one")

        assert await fill(harness) == 1

    async def test_what_nobody_holds_can_be_given_back(self, harness: ViewHarness) -> None:
        await give(harness, "nobody")

        assert await fill(harness) == LIMIT

    async def test_a_slot_ends_by_itself_after_its_hold_and_not_before(self, harness: ViewHarness) -> None:
        await fill(harness)

        await harness.pass_time(HOLD_MS - SLACK_MS)
        before = await fill(harness)
        await harness.pass_time(SLACK_MS)

        assert before == 0
        assert await fill(harness) == LIMIT

    async def test_each_slot_ends_at_its_own_time(self, harness: ViewHarness) -> None:
        await take(harness, "one")
        await harness.pass_time(HOLD_MS // 2)
        await fill(harness)

        await harness.pass_time(HOLD_MS // 2)

        assert await fill(harness) == 1

    async def test_a_short_hold_ends_no_longer_one_with_it(self, harness: ViewHarness) -> None:
        await take(harness, "long")
        await take(harness, "short", hold_ms=SLACK_MS)

        await harness.pass_time(2 * SLACK_MS)

        assert await fill(harness) == LIMIT - 1

    async def test_a_refused_holder_has_no_slot(self, harness: ViewHarness) -> None:
        await fill(harness)
        refused = await take(harness, "one")

        await harness.pass_time(HOLD_MS)

        assert not refused
        assert await fill(harness) == LIMIT

    async def test_a_holder_keeps_its_slot_anew_though_none_is_free(self, harness: ViewHarness) -> None:
        await take(harness, "one")
        await harness.pass_time(HOLD_MS // 2)
        await fill(harness)

        kept = await take(harness, "one")
        await harness.pass_time(HOLD_MS // 2)

        assert kept
        assert await fill(harness) == 0

    async def test_a_holder_whose_slot_ended_is_a_new_one(self, harness: ViewHarness) -> None:
        await take(harness, "one")
        await harness.pass_time(HOLD_MS)
        await fill(harness)

        assert not await take(harness, "one")

    async def test_a_lower_limit_holds_for_those_that_come(self, harness: ViewHarness) -> None:
        await take(harness, "one")
        await take(harness, "two")

        while_both_are_held = await take(harness, "three", limit=1)
        await give(harness, "one")
        while_one_is_held = await take(harness, "three", limit=1)
        await give(harness, "two")

        assert not while_both_are_held
        assert not while_one_is_held
        assert await take(harness, "three", limit=1)

    async def test_a_higher_limit_holds_at_once(self, harness: ViewHarness) -> None:
        await fill(harness)

        assert await take(harness, "one", limit=LIMIT + 1)
        assert not await take(harness, "two", limit=LIMIT + 1)

    @pytest.mark.parametrize("name", ["due", "slots:due", "a:slots:b"])
    async def test_slots_belong_to_their_agent_and_its_tenant(self, harness: ViewHarness, name: str) -> None:
        await fill(harness)
        await give(harness, "one", tenant="other")
        await give(harness, "one", agent_id=name)

        assert not await take(harness, "one")
        assert await fill(harness, agent_id=name) == LIMIT
        assert await fill(harness, tenant="other") == LIMIT

    async def test_after_everything_was_lost_all_slots_are_free(self, harness: ViewHarness) -> None:
        await fill(harness)

        await harness.lose_everything()

        assert await fill(harness) == LIMIT

    async def test_without_a_tenant_no_slot_is_taken_or_given(self, harness: ViewHarness) -> None:
        with pytest.raises(InvariantBroken):
            await take(harness, "one", tenant="")
        with pytest.raises(InvariantBroken):
            await give(harness, "one", tenant="")
