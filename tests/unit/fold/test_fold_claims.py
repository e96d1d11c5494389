"""A claim while it lasts: no other is accepted beside it, and it is acknowledged once."""

from schemas.answers import Claimed, Done, Ignored
from schemas.entries import Lease
from tests.support.folding import DISPATCH, ListLog, started


def test_the_next_attempt_is_not_claimed_while_one_is_in_flight():
    log = started()

    assert log.claim(attempt=2) == Ignored()

    assert log.live_header.lease == Lease(DISPATCH, 1)
    assert log.live_header.claims == 1


def test_the_next_attempt_is_not_claimed_from_an_agent_that_works():
    log = started()
    log.delivered()

    assert log.claim(attempt=2) == Ignored()

    assert log.submit().decision == "proceed"
    log.expire()
    assert log.claim(attempt=2) == Done()


def test_a_claim_is_acknowledged_once_however_often_its_lease_is_used():
    log = started()
    for _ in range(2):
        log.heartbeat()
        log.complete_step(log.submit().step_id)
        log.delivered()
    assert log.event_types.count("dispatch.acked") == 1

    log.next_attempt()
    log.heartbeat()
    log.heartbeat()
    assert log.event_types.count("dispatch.acked") == 2


def test_an_accepted_claim_is_answered_with_the_name_in_it_where_it_asks_for_that():
    log = ListLog()
    log.create()
    assert log.claim(attempt=2, by="other", is_named=True) == Ignored()
    assert log.claim(by="dispatcher.nonce", is_named=True) == Claimed(claimed_by="dispatcher.nonce")
    assert log.live_header.claimed_by == "dispatcher.nonce"


def test_a_claim_of_an_earlier_build_folds_to_what_it_always_did():
    old, new = ListLog(), ListLog()
    for log, is_named in ((old, False), (new, True)):
        log.create()
        log.claim(by="me", is_named=is_named)
    assert old.live_header.lease == new.live_header.lease
    assert (old.live_header.claims, old.live_header.claimed_by) == (1, "me")
    assert old.event_types == new.event_types
