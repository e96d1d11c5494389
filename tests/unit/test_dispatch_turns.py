"""Whose delivery is next, and what an agent that hangs leaves to the others."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kernel.ports import DueItem
from schemas.records import Header
from tests.support.folding import ListLog, uuid_number
from workers.dispatching.turns import WAITING_MAX, Returns, Turn, Turns, at_least_ms

NEVER = 1e9


def header() -> Header:
    log = ListLog()
    log.create()
    return log.live_header


HEADER = header()


def turn(
    agent_id: str = "agent", tenant: str = "default", *, number: int = 1, limit: int = 64, lapses_at: float = NEVER
) -> Turn:
    due = DueItem(kind="delivery", tenant=tenant, agent_id=agent_id, execution_id=uuid_number(number), header=HEADER)
    return Turn(shard=0, item=due, limit=limit, lapses_at=lapses_at)


def taken(turns: Turns, now: float = 0.0) -> list[Turn]:
    """Take everything that has a place."""
    found: list[Turn] = []
    while (one := turns.take(now=now)) is not None:
        found.append(one)
    return found


def owners(found: list[Turn]) -> list[str]:
    return [f"{each.item.tenant}/{each.item.agent_id}" for each in found]


def test_work_is_taken_in_turn_across_tenants_then_agents() -> None:
    turns = Turns(open_max=1000)
    for tenant, agent_id in [("a", "x")] * 3 + [("a", "y")] * 2 + [("b", "z")] * 3:
        assert turns.offer(turn(agent_id, tenant), now=0.0)

    assert owners(taken(turns)) == ["a/x", "b/z", "a/y", "b/z", "a/x", "b/z", "a/y", "a/x"]


def test_within_an_agent_the_first_comes_first() -> None:
    turns = Turns(open_max=1000)
    for number in range(5):
        turns.offer(turn(number=number), now=0.0)

    assert [each.item.execution_id for each in taken(turns)] == [uuid_number(number) for number in range(5)]


def test_an_agent_has_no_more_open_than_its_limit() -> None:
    turns = Turns(open_max=1000)
    for number in range(5):
        turns.offer(turn(limit=2, number=number), now=0.0)

    first = taken(turns)
    assert len(first) == 2

    turns.finish(first[0])
    assert len(taken(turns)) == 1


def test_an_agent_of_the_same_name_in_another_tenant_has_places_of_its_own() -> None:
    turns = Turns(open_max=1000)
    for tenant in ("a", "a", "b", "b"):
        turns.offer(turn(tenant=tenant, limit=1), now=0.0)

    assert sorted(owners(taken(turns))) == ["a/agent", "b/agent"]


def test_many_agents_that_hang_leave_places_for_one_that_does_not() -> None:
    turns = Turns(open_max=512)
    for dead in range(50):
        for number in range(64):
            turns.offer(turn(f"dead-{dead}", f"tenant-{dead % 3}", number=number), now=0.0)
    taken(turns)

    assert turns.offer(turn("alive", "another"), now=0.0)
    assert owners(taken(turns)) == ["another/alive"]


def test_one_tenant_alone_leaves_places_to_the_others() -> None:
    turns = Turns(open_max=300)
    for dead in range(300):
        turns.offer(turn(f"dead-{dead}"), now=0.0)

    assert len(taken(turns)) == 200


def test_a_backlog_of_one_agent_leaves_places_to_wait_for_the_others() -> None:
    turns = Turns(open_max=1)
    offered = [turns.offer(turn("dead", number=number), now=0.0) for number in range(WAITING_MAX)]

    assert not offered[-1]
    assert sum(offered) < WAITING_MAX / 4
    assert turns.offer(turn("alive"), now=0.0)


def test_a_delivery_whose_hold_ends_is_dropped() -> None:
    turns = Turns(open_max=10)
    turns.offer(turn(lapses_at=4.0, number=1), now=0.0)
    turns.offer(turn(lapses_at=9.0, number=2), now=5.0)

    assert [each.item.execution_id for each in taken(turns, now=5.0)] == [uuid_number(2)]


def test_lapsed_deliveries_make_room_for_new_ones() -> None:
    turns = Turns(open_max=1)
    while turns.offer(turn(lapses_at=4.0), now=0.0):
        continue

    assert turns.offer(turn(lapses_at=9.0), now=4.0)


def test_what_waits_can_be_given_back_whole() -> None:
    turns = Turns(open_max=10)
    for agent_id in ("x", "y"):
        turns.offer(turn(agent_id), now=0.0)

    assert len(turns.clear()) == 2
    assert taken(turns) == []
    assert turns.clear() == []


class TurnsMachine(RuleBasedStateMachine):
    """Offers, takes and endings in any order, against plain counts."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns(open_max=12)
        self.open: list[Turn] = []
        self.now = 0.0
        self.offered = 0

    @rule(tenant=st.sampled_from("ab"), agent_id=st.sampled_from("xyz"), holds=st.floats(0.5, 4.0))
    def offer(self, tenant: str, agent_id: str, holds: float) -> None:
        self.offered += 1
        limit = 1 + "xyz".index(agent_id)
        self.turns.offer(
            turn(agent_id, tenant, number=self.offered, limit=limit, lapses_at=self.now + holds), now=self.now
        )

    @rule()
    def take(self) -> None:
        found = self.turns.take(now=self.now)
        if found is not None:
            assert found.lapses_at > self.now
            self.open.append(found)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.turns.finish(self.open.pop(data.draw(st.integers(0, len(self.open) - 1))))

    @rule(seconds=st.floats(0.1, 3.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def no_bound_is_passed(self) -> None:
        assert len(self.open) <= 12
        for owner, count in Counter(each.owner for each in self.open).items():
            assert count <= max(each.limit for each in self.open if each.owner == owner)

    @invariant()
    def nothing_is_given_twice(self) -> None:
        assert len({each.item.execution_id for each in self.open}) == len(self.open)

    def teardown(self) -> None:
        # When all is over, everything that still waits gets its turn.
        for each in self.open:
            self.turns.finish(each)
        waiting = [each for each in self.turns.clear() if each.lapses_at > self.now]
        for each in waiting:
            assert self.turns.offer(each, now=self.now)
        for _ in waiting:
            found = self.turns.take(now=self.now)
            assert found is not None
            self.turns.finish(found)


TestTurnsMachine = TurnsMachine.TestCase


@given(seconds=st.floats(0.0, 10.0), told_at=st.floats(0.0, 10.0))
def test_what_the_view_is_told_to_give_back_never_comes_before_its_time(seconds: float, told_at: float) -> None:
    due_at_ms = int(told_at * 1000) + at_least_ms(seconds)
    # The first moment at which the view's clock, in whole milliseconds, says that it is due.
    assert due_at_ms / 1000 >= told_at + seconds - 1e-9
    assert at_least_ms(seconds) <= seconds * 1000 + 2


def test_returned_items_come_back_spaced_out() -> None:
    returns = Returns()

    assert returns.delay_ms(("a", "x"), count=100, now=0.0) == 250
    assert returns.delay_ms(("a", "x"), count=100, now=0.0) == 500
    assert returns.delay_ms(("a", "x"), count=100, now=0.4) == 350
    assert returns.delay_ms(("a", "y"), count=1, now=0.0) == 250


def test_returned_items_come_back_within_ten_seconds() -> None:
    returns = Returns()
    returns.delay_ms(("a", "x"), count=1_000_000, now=0.0)

    assert returns.delay_ms(("a", "x"), count=1, now=0.0) == 10_000


@pytest.mark.parametrize("agents", [20_000])
def test_agents_of_the_past_are_forgotten(agents: int) -> None:
    returns = Returns()

    delays = {returns.delay_ms(("a", str(number)), count=1, now=float(number)) for number in range(agents)}

    assert delays == {250}
    assert len(vars(returns)["_next_at"]) <= Returns.OWNERS_MAX


@given(counts=st.lists(st.integers(1, 500), max_size=50))
def test_a_delay_stays_within_its_bounds(counts: list[int]) -> None:
    returns = Returns()

    for count in counts:
        assert 250 <= returns.delay_ms(("a", "x"), count=count, now=1.0) <= 10_000
