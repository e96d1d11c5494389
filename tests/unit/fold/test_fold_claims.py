"""Claims that come while an attempt is on its way, or with the agent: the number alone does not make one good."""

from schemas.answers import Done, Ignored
from schemas.entries import Lease
from tests.support.folding import DISPATCH, started


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
