"""Guarantee G5: the same multiset of calls gives the same step ids, in any order and in any attempt."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.folding import ListLog, started

CALLS = st.tuples(st.sampled_from(["search", "pay", "é"]), st.sampled_from([None, 1, "1", {"a": [1, 2]}, {}]))


@given(calls=st.lists(CALLS, min_size=1, max_size=12), data=st.data())
def test_any_order_in_any_attempt_gives_the_same_steps(calls: list[tuple[str, object]], data: st.DataObject):
    log = started()
    first = submit_all(log, calls)
    for attempt in range(2):
        log.next_attempt()
        again = data.draw(st.permutations(calls), label=f"attempt {attempt + 2}")
        assert sorted(submit_all(log, again)) == sorted(first)
    assert len(set(first)) == len(calls)
    assert log.live_header.step_count == len(calls)


def submit_all(log: ListLog, calls: list[tuple[str, object]]) -> list[str]:
    return [log.submit(target, args).step_id for target, args in calls]
