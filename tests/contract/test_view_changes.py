"""What a change means for due work and leases, as the translation says it."""

import msgspec

from kernel.view.changes import translate
from kernel.view.keys import due_member, place
from schemas.entries import Lease
from tests.support.records import (
    LEASE_MS,
    LIFE_ENDS_AT_US,
    asking_header,
    change,
    dispatch_id,
    ended,
    ended_header,
    execution_id,
    leased_header,
    make_approval,
    make_dispatch,
    make_header,
    new,
)

WHERE = place("acme", execution_id(1), "researcher")
DELIVERY, LEASE, DEADLINE, APPROVAL = (
    due_member(kind, WHERE) for kind in ("delivery", "lease", "deadline", "approval")
)


def test_nothing_is_due_before_its_time() -> None:
    for due_at_us, due_at_ms in ((2_000, 2), (2_001, 3), (2_999, 3)):
        header = make_header(dispatch=make_dispatch(due_at=due_at_us))

        writes = translate([change(header)])

        assert writes.due_at == [(DELIVERY, due_at_ms), (DEADLINE, LIFE_ENDS_AT_US // 1000)]


def test_a_change_that_touches_no_duty_writes_none() -> None:
    before = leased_header()
    after = msgspec.structs.replace(before, event_count=9, updated_at=before.updated_at + 1)

    writes = translate([change(after, before=before)])

    assert msgspec.structs.astuple(writes) == ([],) * len(msgspec.structs.astuple(writes))


def test_a_lease_that_ended_is_not_marked_any_more() -> None:
    before = leased_header()
    after = msgspec.structs.replace(before, dispatch=make_dispatch("due", attempt=1))

    writes = translate([change(after, before=before)])

    assert writes.unmarked == [WHERE]
    assert writes.not_due == [LEASE]
    assert writes.not_renewable == [execution_id(1)]


def test_a_renewal_writes_the_lease_and_nothing_else() -> None:
    before = leased_header(renewed_seq=2)

    writes = translate([change(leased_header(renewed_seq=3), before=before)])

    assert writes.due_in == [(LEASE, LEASE_MS)]
    assert writes.unmarked == [WHERE]
    assert (writes.due_at, writes.not_due, writes.renewable, writes.not_renewable) == ([], [], [], [])


def test_a_new_execution_writes_what_it_has_not_too() -> None:
    writes = translate([change(ended_header())])

    assert sorted(writes.not_due) == sorted([DELIVERY, LEASE, DEADLINE, APPROVAL])
    assert writes.not_renewable == [execution_id(1)]
    assert WHERE in writes.unmarked
    assert (writes.live, writes.ended) == ([], [ended_header()])


def test_an_approval_is_due_when_its_time_is_over_and_no_more_once_it_is_decided() -> None:
    running, asking = make_header(), asking_header(make_approval(timeout_at=2_001))

    asked = translate([change(asking, before=running, approvals=(new(make_approval()),))])
    decided = translate([change(running, before=asking, approvals=(ended(make_approval(status="granted")),))])

    assert (APPROVAL, 3) in asked.due_at
    assert APPROVAL in decided.not_due
    assert [(move.before, move.record.status) for move in (*asked.approvals, *decided.approvals)] == [
        (None, "pending"),
        ("pending", "granted"),
    ]


def test_an_approval_that_follows_another_at_the_same_time_is_a_duty_of_its_own() -> None:
    first, second = (make_approval(number, timeout_at=2_000) for number in (1, 2))

    writes = translate([change(asking_header(second), before=asking_header(first))])
    again = translate([change(asking_header(second), before=asking_header(second))])

    assert writes.due_at == [(APPROVAL, 2)]
    assert again.due_at == []


def test_an_approval_that_was_made_and_ended_in_one_batch_is_listed_under_its_end_alone() -> None:
    approvals = (new(make_approval(status="denied")),)

    writes = translate([change(make_header(), before=make_header(), approvals=approvals)])

    assert [(move.before, move.record.status) for move in writes.approvals] == [(None, "denied")]


def test_a_renewable_lease_names_its_pair_and_its_place() -> None:
    header = leased_header(attempt=7)
    assert header.lease == Lease(dispatch_id=dispatch_id(1), attempt=7)

    writes = translate([change(header)])

    assert writes.renewable == [(execution_id(1), f"{dispatch_id(1)}/7/{WHERE}")]
