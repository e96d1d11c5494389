"""Golden logs: every version folds what an earlier one has written to the same answers, events and records."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from schemas.answers import AnyAnswer, DecisionWord, Recorded, RefusalCode
from schemas.entries import AnyEntry
from tests.golden.files import FOLDER, read_log
from tests.golden.refold import expected_of, refold
from tests.golden.stories import STORIES

LOGS = sorted(FOLDER.glob("log_*.jsonl"))


def expectation(log: Path) -> Any:
    return json.loads(log.with_suffix(".expected.json").read_text("utf-8"))


def answers() -> list[dict[str, Any]]:
    return [answer for log in LOGS for answer in expectation(log)["answers"].values() if answer is not None]


def words_of(struct: type[msgspec.Struct], member: str) -> set[str]:
    return set(get_args(struct.__annotations__[member]))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_golden_log_folds_to_what_it_always_folded_to(log: Path) -> None:
    expected = expectation(log)
    actual = json.loads(msgspec.json.encode(refold(read_log(log))))
    assert set(actual["executions"]) == set(expected["executions"])
    assert actual["create_keys"].keys() == expected["create_keys"].keys()
    assert expected_of(actual, expected) == expected


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_golden_log_is_whole(log: Path) -> None:
    lines = read_log(log)
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    assert len(lines) >= (40 if log.stem == "log_v1" else 5)


def test_every_log_that_was_told_is_frozen() -> None:
    assert {log.stem for log in LOGS} == set(STORIES)


def test_the_logs_hold_every_entry() -> None:
    held = {msgspec.json.decode(line.payload)["type"] for log in LOGS for line in read_log(log)}
    assert held == {entry_type.__struct_config__.tag for entry_type in get_args(AnyEntry)}


def test_the_logs_lead_to_every_answer() -> None:
    given = answers()
    assert {answer["is"] for answer in given} == {kind.__struct_config__.tag for kind in get_args(AnyAnswer)}
    decisions = {answer["decision"] for answer in given if answer["is"] == "decided"}
    assert decisions == set(get_args(DecisionWord))
    assert {answer["decision"] for answer in given if answer["is"] == "recorded"} == words_of(Recorded, "decision")
    # Too many open steps take a thousand entries: no log that a person reads.
    assert {answer["code"] for answer in given if answer["is"] == "refusal"} == set(get_args(RefusalCode)) - {
        "rate_limited"
    }
    assert any(answer is None for log in LOGS for answer in expectation(log)["answers"].values())


def test_the_logs_lead_to_every_end() -> None:
    headers = [execution["header"] for log in LOGS for execution in expectation(log)["executions"].values()]
    ends = {(header["status"], header["failure_reason"].partition(":")[0]) for header in headers if header}
    assert ends == {
        ("running", ""),
        ("completed", ""),
        ("failed", "agent_error"),
        ("failed", "agent_deleted"),
        ("failed", "dispatch_exhausted"),
        ("cancelled", "client_cancelled"),
        ("cancelled", "deadline_exceeded"),
    }


def test_a_member_that_was_added_since_is_no_change() -> None:
    expected = expectation(LOGS[0])
    actual = copy.deepcopy(expected)
    for execution in actual["executions"].values():
        for event in execution["events"]:
            event["payload"]["of_a_later_version"] = None
    assert expected_of(actual, expected) == expected


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an event less": lambda execution: execution["events"].pop(),
    "another time": lambda execution: execution["events"][0].update(at=1),
    "a member less": lambda execution: execution["header"].pop("chain"),
    "a step less": lambda execution: execution["steps"].popitem(),
    "another list": lambda execution: execution["header"].update(open_steps=["x"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_other_change_is_found(change: str) -> None:
    expected = expectation(LOGS[0])
    actual = copy.deepcopy(expected)
    CHANGES[change](next(iter(actual["executions"].values())))
    assert expected_of(actual, expected) != expected
