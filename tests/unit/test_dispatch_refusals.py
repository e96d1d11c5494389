"""Agents that had no webhook slot free: how long they wait, and who asks for them then."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_dispatch_turns import owners, taken, turn
from workers.dispatching.turns import Refusals, Turn, Turns

OWNER = ("default", "agent")


def waiting(agents: Iterable[str]) -> Turns:
    turns = Turns(open_max=1000)
    for agent_id in agents:
        assert turns.offer(turn(agent_id), now=0.0)
    return turns


def refused(turns: Turns, agent_id: str, *, now: float) -> tuple[Turn, float]:
    """Take the agent's turn, and let it find no slot free; return it and when the agent is tried again."""
    found = turns.take(now=now)
    assert found is not None
    assert found.item.agent_id == agent_id
    turns.finish(found)
    return found, now + turns.refuse(found, now=now, jitter=1.0)


def test_an_agent_without_a_slot_waits_and_the_others_do_not() -> None:
    turns = waiting(["busy", "other", "busy", "other"])

    _, ends_at = refused(turns, "busy", now=0.0)

    assert owners(taken(turns, now=ends_at - 0.001)) == ["default/other"] * 2


def test_after_its_wait_an_agent_is_tried_with_one_delivery() -> None:
    turns = waiting(["busy"] * 4)
    _, ends_at = refused(turns, "busy", now=0.0)

    assert owners(taken(turns, now=ends_at)) == ["default/busy"]


def test_a_try_that_found_a_slot_lets_the_others_follow() -> None:
    turns = waiting(["busy"] * 4)
    _, ends_at = refused(turns, "busy", now=0.0)
    (tried,) = taken(turns, now=ends_at)

    turns.admit(tried)

    assert owners(taken(turns, now=ends_at)) == ["default/busy"] * 2


def test_a_try_that_nothing_is_heard_of_is_followed_by_another() -> None:
    turns = waiting(["busy"] * 4)
    _, ends_at = refused(turns, "busy", now=0.0)
    assert len(taken(turns, now=ends_at)) == 1

    assert len(taken(turns, now=ends_at + Refusals.LAST_SECONDS - 0.001)) == 0
    assert len(taken(turns, now=ends_at + Refusals.LAST_SECONDS)) == 1


def test_a_slot_that_was_given_back_here_ends_the_wait() -> None:
    turns = waiting(["busy"] * 2)
    before, _ = refused(turns, "busy", now=0.0)

    turns.admit(before)

    assert owners(taken(turns, now=0.0)) == ["default/busy"]


def test_waits_grow_up_to_a_bound_and_start_anew_after_a_slot() -> None:
    refusals = Refusals()

    waits = [refusals.refuse(OWNER, now=0.0, jitter=1.0) for _ in range(5)]
    refusals.end(OWNER)

    assert waits == pytest.approx([0.04, 0.08, 0.16, 0.16, 0.16])
    assert refusals.refuse(OWNER, now=0.0, jitter=1.0) == pytest.approx(0.04)


@given(jitters=st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_wait_is_never_longer_than_its_bound_and_never_nothing(jitters: list[float]) -> None:
    refusals = Refusals()

    waits = [refusals.refuse(OWNER, now=0.0, jitter=jitter) for jitter in jitters]

    assert all(Refusals.FIRST_SECONDS / 2 <= wait <= Refusals.LAST_SECONDS for wait in waits)


def test_what_is_known_of_agents_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Refusals, "OWNERS_MAX", 10)
    refusals = Refusals()

    for number in range(50):
        refusals.refuse(("default", f"agent{number}"), now=float(number), jitter=0.0)

    # Those that waited to the end by now are forgotten, and are tried as if nothing had been.
    assert refusals.is_tried(("default", "agent0"), now=50.0)
    assert refusals.is_tried(("default", "agent0"), now=50.0)
