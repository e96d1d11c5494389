"""Places for entries in flight: a bounded number, a bounded share of it, and turns among those who wait."""

import asyncio
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.door.admission import Admission, Owner, Shares
from schemas.answers import Done
from tests.support.wait import loop_turns
from tests.unit.test_door_pipeline import bench

A, B, C = ("a", 0), ("b", 0), ("c", 0)


class Crowd:
    """Requests that enter and stay until they are told to leave."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.inside: list[Owner] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def comes(self, *owners: Owner) -> None:
        for owner in owners:
            self.tasks.append(asyncio.create_task(self._enter(owner)))
        await loop_turns()

    async def _enter(self, owner: Owner) -> None:
        await self.admission.enter(owner)
        self.inside.append(owner)

    async def leaves(self, owner: Owner) -> None:
        self.inside.remove(owner)
        self.admission.leave(owner)
        await loop_turns()

    async def ends(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_places_go_in_order_and_there_are_never_more_than_so_many() -> None:
    crowd = Crowd(Admission(2, share=2))
    await crowd.comes(A, A, A)
    assert crowd.inside == [A, A]
    assert not crowd.admission.try_enter(A)

    await crowd.leaves(A)

    # The place went to the one that waited; whoever comes now finds none.
    assert (crowd.inside, crowd.admission.try_enter(B)) == ([A, A], False)
    await crowd.leaves(A)
    assert crowd.admission.try_enter(B)


async def test_one_owner_never_has_more_than_its_share_and_the_rest_is_free_for_others() -> None:
    crowd = Crowd(Admission(5, share=3))
    await crowd.comes(*[A] * 10)
    assert crowd.inside == [A] * 3

    await crowd.comes(B, B, B)

    assert crowd.inside == [A] * 3 + [B] * 2
    await crowd.leaves(A)
    # A waits with seven, and still the next place is not its own: B waited for one while A had its share.
    assert Counter(crowd.inside) == {A: 2, B: 3}
    await crowd.ends()


async def test_the_same_tenant_has_a_share_in_every_shard() -> None:
    crowd = Crowd(Admission(4, share=1))
    await crowd.comes(("a", 0), ("a", 0), ("a", 1))
    assert crowd.inside == [("a", 0), ("a", 1)]
    await crowd.ends()


async def test_those_who_wait_take_turns_however_many_of_one_owner_came_first() -> None:
    crowd = Crowd(Admission(3, share=3))
    await crowd.comes(C, C, C)
    await crowd.comes(*[A] * 6)
    await crowd.comes(B, B)
    order: list[Owner] = []
    for _ in range(6):
        await crowd.leaves(crowd.inside[0])
        order.append(crowd.inside[-1])
    assert order == [A, B, A, B, A, A]
    await crowd.ends()


async def test_a_place_that_comes_to_one_who_leaves_goes_to_the_next() -> None:
    admission = Admission(1, share=1)
    await admission.enter(A)
    first, second = asyncio.create_task(admission.enter(A)), asyncio.create_task(admission.enter(A))
    await loop_turns()
    admission.leave(A)
    first.cancel()
    await asyncio.wait((first, second), timeout=5)
    assert first.cancelled()
    assert second.done()
    assert not admission.try_enter(A)


async def test_one_who_leaves_the_queue_is_passed_over() -> None:
    admission = Admission(1, share=1)
    await admission.enter(A)
    first, second = asyncio.create_task(admission.enter(A)), asyncio.create_task(admission.enter(B))
    await loop_turns()
    first.cancel()
    await asyncio.wait((first,))
    admission.leave(A)
    await asyncio.wait((second,), timeout=5)
    assert second.done()


async def test_a_tenant_that_fills_its_share_of_a_shard_leaves_room_for_others() -> None:
    async with bench(projects=False, in_flight_max=4, in_flight_share_max=2) as found:
        flood = [asyncio.create_task(found.decide(found.entry())) for _ in range(6)]
        await loop_turns()
        assert len(found.log.sent) == 2

        other = msgspec.structs.replace(found.entry(), tenant="quiet")
        answered = asyncio.create_task(found.decide(other))
        await loop_turns()

        assert found.log.sent[2:] == [other.entry_id]
        found.answer(other)
        assert await answered == Done()
        for task in flood:
            task.cancel()
        await asyncio.wait(flood)


def test_a_tenant_has_its_share_and_what_it_gives_back_it_has_again() -> None:
    shares = Shares(2)
    assert [shares.try_enter("a") for _ in range(3)] == [True, True, False]
    assert shares.try_enter("b")
    shares.leave("a")
    assert [shares.try_enter("a"), shares.try_enter("a")] == [True, False]


@pytest.mark.parametrize("share", [1, 2, 4])
@given(moves=st.lists(st.tuples(st.sampled_from("+-x"), st.integers(0, 7)), max_size=60))
def test_whoever_comes_leaves_or_gives_up_no_place_is_lost_or_given_twice(
    share: int, moves: list[tuple[str, int]]
) -> None:
    asyncio.run(_moved(share, moves))


async def _moved(share: int, moves: list[tuple[str, int]]) -> None:
    """Some come (+), leave (-) or give up waiting (x); after each move nobody waits for a place that is free."""
    places = 4
    crowd = Crowd(Admission(places, share=share))
    came: Counter[Owner] = Counter()
    for move, number in moves:
        owner = ("abc"[number % 3], number % 2)
        match move:
            case "+":
                came[owner] += 1
                await crowd.comes(owner)
            case "-" if owner in crowd.inside:
                came[owner] -= 1
                await crowd.leaves(owner)
            case "x":
                waiting = [task for task in crowd.tasks if not task.done()]
                if waiting:
                    await crowd.ends()
                    came = Counter(crowd.inside)
            case _:
                continue
        inside = Counter(crowd.inside)
        assert sum(inside.values()) <= places
        assert all(count <= share for count in inside.values())
        if sum(inside.values()) < places:
            assert all(inside[each] == min(count, share) for each, count in came.items())
    await crowd.ends()
