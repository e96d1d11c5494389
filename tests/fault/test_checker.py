"""The checker of the fault tests: a sound history has no findings, and each kind of broken promise has its own."""

from typing import Any

import pytest
from msgspec.structs import replace

from kernel.domain.canonical import args_hash
from kernel.domain.identity import step_id
from tests.fault.checker import check
from tests.fault.history import (
    LOST,
    Answered,
    Asked,
    Delivered,
    Effect,
    EventRead,
    ExecutionRead,
    History,
    Settled,
    StepRead,
)

EXECUTION = "0199aaaa-0000-7000-8000-0000000000ff"
DISPATCH = "0199aaaa-0000-7000-8000-000000000001"
HASH = args_hash(b"null")
STEP = step_id(EXECUTION, "tool_call", "pay", HASH, 0)
OUTCOME = '{"mark":"outcome."}'


def asked(number: int, action: Any, **parts: Any) -> Asked:
    return Asked(number=number, at=float(number), who="somebody", action=action, **parts)


def of_agent(number: int, action: Any, *, attempt: int = 1, **parts: Any) -> Asked:
    return asked(number, action, execution_id=EXECUTION, dispatch_id=DISPATCH, attempt=attempt, **parts)


def answered(number: int, status: int, body: Any = None) -> Answered:
    return Answered(number=number, at=number + 0.5, status=status, body=body)


def submit(number: int, *, attempt: int = 1, key: str = "") -> Asked:
    return of_agent(number, "submit", attempt=attempt, target="pay", args="null", key=key)


def complete(number: int, **parts: Any) -> Asked:
    settled = (Settled(step_id=STEP, outcome=OUTCOME),)
    return of_agent(number, "complete_step", settled=settled, marks=("outcome.",), **parts)


def effect(attempt: int = 1) -> Effect:
    return Effect(at=3.0, who="agent", execution_id=EXECUTION, step_id=STEP, attempt=attempt, is_at_most_once=True)


def delivered(attempt: int = 1) -> Delivered:
    return Delivered(at=2.0, who="agent", execution_id=EXECUTION, dispatch_id=DISPATCH, attempt=attempt)


PROCEED = {"decision": "proceed", "step_id": STEP}
RECORDED = {"decision": "recorded"}

SOUND: History = [
    asked(1, "create", marks=("create.",)),
    answered(1, 201, {"id": EXECUTION}),
    delivered(),
    submit(2, key="key"),
    answered(2, 200, PROCEED),
    effect(),
    complete(3),
    answered(3, 200, RECORDED),
    of_agent(4, "complete"),
    answered(4, 204),
    asked(5, "get", execution_id=EXECUTION),
    answered(5, 200, {"id": EXECUTION, "status": "completed"}),
]
_TYPES = ("execution.created", "step.executing", "step.succeeded", "execution.completed")
READ = ExecutionRead(
    execution_id=EXECUTION,
    status="completed",
    events=tuple(EventRead(number, type_, {"step_id": STEP}) for number, type_ in enumerate(_TYPES, 1)),
    steps=(StepRead(STEP, "tool_call", "pay", HASH, 0, "succeeded", OUTCOME),),
    text="create. outcome.",
)


def test_a_sound_history_has_no_findings() -> None:
    assert check(SOUND, [READ], answer_seconds_max=1.0) == []


@pytest.mark.parametrize(
    ("more", "finding"),
    [
        ([submit(6), answered(6, 200, PROCEED)], "told to proceed after the outcome"),
        ([effect(2)], "ran 2 times"),
        ([delivered()], "was delivered 2 times"),
        ([asked(6, "create"), answered(6, 201, {"id": DISPATCH})], "is not there"),
        ([asked(6, "cancel", execution_id=EXECUTION), answered(6, 204)], "told it is cancelled"),
        ([asked(6, "create", marks=("outcome.",)), answered(6, 503)], ""),
        ([asked(6, "create", marks=("create",)), answered(6, 503)], "was refused and happened"),
        ([asked(6, "create", marks=("create",)), answered(6, LOST)], ""),
        ([asked(6, "create", marks=("create",)), answered(6, 504)], ""),
        ([submit(6, key="key"), answered(6, 200, PROCEED | {"step_id": "f" * 64})], "different ids"),
        ([submit(6), answered(6, 200, PROCEED | {"step_id": "f" * 64})], "not its call's"),
        (
            [asked(6, "get", execution_id=EXECUTION), answered(6, 200, {"id": EXECUTION, "status": "running"})],
            "read running of an execution known to be completed",
        ),
        (
            [asked(6, "events", execution_id=EXECUTION), answered(6, 200, [{"event_seq": 1, "type": "step.denied"}])],
            "are not the first ones",
        ),
        (
            [complete(6, attempt=2), answered(6, 200, RECORDED), complete(7), answered(7, 200, RECORDED)],
            "under the superseded attempt 1",
        ),
        ([asked(6, "get"), answered(6, 500)], "was answered 500"),
        ([asked(6, "get"), Answered(number=6, at=9.0, status=503)], "answered after 3.00 s"),
    ],
)
def test_what_was_told_is_compared(more: History, finding: str) -> None:
    findings = check([*SOUND, *more], [READ], answer_seconds_max=1.0)

    assert any(finding in each for each in findings) if finding else findings == []


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"steps": ()}, "an acknowledged outcome is lost"),
        ({"steps": (replace(READ.steps[0], outcome='{"mark":"x"}'),)}, "an acknowledged outcome was replaced"),
        ({"steps": (replace(READ.steps[0], occurrence=1),)}, "does not have the id of its call"),
        ({"steps": (replace(READ.steps[0], status="executing"),)}, "is open after the end"),
        ({"events": (*READ.events[:2], *READ.events[3:])}, "its events are numbered [1, 2, 4]"),
        ({"events": (*READ.events, EventRead(5, "execution.failed", {}))}, "it ended 2 times"),
        ({"events": (*READ.events, EventRead(5, "step.proposed", {}))}, "step.proposed follows its end"),
        ({"status": "failed"}, "its history says execution.completed"),
        ({"status": "running"}, "never ended"),
    ],
)
def test_what_is_read_back_is_compared(changes: dict[str, Any], finding: str) -> None:
    findings = check(SOUND, [replace(READ, **changes)])

    assert any(finding in each for each in findings), findings
