"""What an end closes, and in which order."""

import pytest

from tests.support.folding import started


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_open_steps_are_cancelled_by_first_submission(end: str):
    log = started()
    steps = [log.submit("tool", number).step_id for number in range(3)]
    log.complete_step(steps[1])
    # A later attempt that asks for them in another order moves none of them.
    log.next_attempt()
    log.submit("tool", 2)
    log.submit("tool", 0)

    getattr(log, end)()

    cancelled = [event.payload.step_id for event in log.events if event.type == "step.cancelled"]
    assert cancelled == [steps[0], steps[2]]
