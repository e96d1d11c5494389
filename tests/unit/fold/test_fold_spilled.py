"""Bodies that stand elsewhere: the fold keeps where they are and how large, and never asks for them."""

from typing import Any

from schemas.bodies import Body, Spilled
from schemas.entries import SPILLED_SCHEMA
from tests.support.folding import DISPATCH, ListLog, result_of, started

SIZE = 9_000


def elsewhere(*places: str) -> dict[str, Any]:
    spilled = {place: Spilled(size_bytes=SIZE, sha256=bytes(32), pieces=(3, 4), rest="]") for place in places}
    return {"spilled": spilled, "schema": SPILLED_SCHEMA}


def body(log: ListLog, place: str) -> Body:
    """What the view has of a body that stood in the last entry, or should have."""
    return Body(json=b"", seq=log.entries[-1][1].seq, place=place, size_bytes=SIZE)


def test_the_view_names_the_entry_and_the_size_of_what_stands_elsewhere():
    log = ListLog()
    log.create(dispatch_id=DISPATCH, **elsewhere("input"))
    assert log.live_header.input == body(log, "input")
    log.claim()
    chat = log.submit("gpt", kind="llm_call", **elsewhere("args")).step_id
    assert log.records.steps[chat].args == body(log, "args")
    log.complete_step(chat, **elsewhere("result"))
    assert log.records.steps[chat].result == body(log, "result")


def test_of_outcomes_that_travel_together_only_some_stand_elsewhere():
    log = started()
    steps = [log.submit("tool", number).step_id for number in range(2)]
    log.complete({"n": 1}, settle=[result_of(steps[0], 7), result_of(steps[1], None)], **elsewhere("settle.1"))
    here, there = (log.records.steps[step].result for step in steps)
    assert here is not None
    assert (here.json, there) == (b"7", body(log, "settle.1"))
    assert log.live_header.output is not None
    assert log.live_header.output.json == b'{"n": 1}'
