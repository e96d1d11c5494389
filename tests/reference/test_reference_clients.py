"""Every release of the reference client, unmodified: what agents and callers do every day, and how work survives.

Agents are killed, hang past their lease, are cancelled while they work, and outlast three leases.
"""

from collections import Counter

import pytest

from tests.reference.deployment import RELEASES, Deployment, Release
from tests.reference.runs import Cancelled, Interrupted, LongBody, Superseded

# One worker runs them all: the runs that wait for leases start together and are looked at by many tests.
pytestmark = pytest.mark.xdist_group("reference")

SEATS = 8


publishing = pytest.mark.parametrize(
    "release", [release for release in RELEASES if release.publishes_metadata], ids=lambda release: release.version
)
keyed = pytest.mark.parametrize(
    "release", [release for release in RELEASES if release.sends_create_key], ids=lambda release: release.version
)


def test_a_created_execution_runs_and_completes(deployment: Deployment) -> None:
    given = {"scenario": "hello", "name": "Zoë 🙂", "unread": [1.5, None, {"deep": True}]}

    created = deployment.client.create(deployment.everyday.agent_id, given)

    assert created.status == "running"
    assert created.agent_id == deployment.everyday.agent_id
    assert created.input == given
    assert created.output is None
    ended = deployment.ended(created.id)
    assert (ended.status, ended.output) == ("completed", {"greeting": "hello Zoë 🙂"})
    assert ended.failure_reason == ""
    assert deployment.client.steps(created.id) == []


def test_a_run_without_steps_leaves_its_events_in_order(deployment: Deployment) -> None:
    ended = deployment.everyday_run({"scenario": "hello", "name": "events"})

    events = deployment.client.events(ended.id)

    assert [event.event_seq for event in events] == list(range(1, len(events) + 1))
    # The completion may overtake the answer to the webhook, which then acknowledges nothing any more.
    assert [event.type for event in events if event.type != "dispatch.acked"] == [
        "execution.created",
        "execution.started",
        "dispatch.queued",
        "execution.completed",
    ]
    assert events[-1].type == "execution.completed"
    assert {event.execution_id for event in events} == {ended.id}


def test_tools_in_parallel_are_let_in_together(deployment: Deployment) -> None:
    """No body returns before all have begun, so a kernel that let them in one by one would fail the run."""
    ended = deployment.everyday_run({"scenario": "parallel"})

    assert (ended.status, ended.failure_reason) == ("completed", "")
    assert ended.output == [{"seat": seat, "table": "round"} for seat in range(SEATS)]
    steps = deployment.client.steps(ended.id)
    assert sorted(step.args["seat"] for step in steps) == list(range(SEATS))
    assert {(step.kind, step.target, step.status, step.occurrence) for step in steps} == {
        ("tool_call", "meet", "succeeded", 0)
    }
    assert all(step.result == {"seat": step.args["seat"], "table": "round"} for step in steps)
    effects = deployment.stage.notes("effect", "meet", ended.id)
    assert sorted(effect.facts["seat"] for effect in effects) == list(range(SEATS))


def test_identical_calls_are_steps_of_their_own(deployment: Deployment) -> None:
    ended = deployment.everyday_run({"scenario": "identical"})

    assert ended.status == "completed"
    assert sorted(ended.output) == [0, 1, 2, 3, 4, 5]
    assert ended.output[-1] == 5
    steps = deployment.client.steps(ended.id)
    assert sorted(step.occurrence for step in steps) == [0, 1, 2, 3, 4, 5]
    assert len({step.step_id for step in steps}) == 6
    assert len({step.args_hash for step in steps}) == 1
    assert sorted(step.result for step in steps) == [0, 1, 2, 3, 4, 5]
    assert len(deployment.stage.notes("effect", "take_ticket", ended.id)) == 6


def test_local_steps_are_recorded_with_their_results(deployment: Deployment) -> None:
    ended = deployment.everyday_run({"scenario": "local"})

    assert ended.status == "completed"
    plain, with_args = deployment.client.steps(ended.id)
    assert {(step.kind, step.target, step.status) for step in (plain, with_args)} == {("local", "draw", "succeeded")}
    assert (plain.args, with_args.args) == ({}, {"sides": 20})
    assert ended.output == {"plain": plain.result, "with_args": with_args.result}
    assert with_args.result.startswith("20:")
    assert deployment.client.step(ended.id, with_args.step_id) == with_args


def test_a_tool_error_is_recorded_and_the_handler_goes_on(deployment: Deployment) -> None:
    ended = deployment.everyday_run({"scenario": "errors"})

    assert ended.status == "completed"
    assert ended.output == {"plain": ["raised", "explode: boom"], "odd": "raised"}
    odd, plain = deployment.client.steps(ended.id)
    assert (plain.status, plain.error, plain.result) == ("failed", {"message": "boom"}, None)
    # Half of a surrogate pair is no character; in an error, and only there, it is replaced.
    assert (odd.status, odd.error) == ("failed", {"message": "half a pair: \ufffd"})


def test_a_tool_error_that_nobody_catches_fails_the_execution(deployment: Deployment) -> None:
    ended = deployment.everyday_run({"scenario": "fatal"})

    assert (ended.status, ended.failure_reason) == ("failed", "tool_error: explode: fatal")


def test_an_error_of_the_handler_fails_the_execution(deployment: Deployment) -> None:
    ended = deployment.everyday_run({"scenario": "broken"})

    assert (ended.status, ended.failure_reason) == ("failed", "agent_error: RuntimeError: broken: beyond repair")


def test_input_that_does_not_bind_fails_the_execution(deployment: Deployment) -> None:
    ended = deployment.everyday_run(None)

    assert ended.status == "failed"
    assert ended.failure_reason == "input_invalid: missing required input fields: scenario"
    assert ended.input is None


@publishing
def test_metadata_is_published(deployment: Deployment) -> None:
    agent_id = deployment.everyday.agent_id

    deployment.wait(lambda: deployment.registered(agent_id)["input_schema"], "the agent's metadata")

    agent = deployment.registered(agent_id)
    assert set(agent["input_schema"]["properties"]) == {"scenario", "gate", "name"}
    assert agent["input_schema"]["required"] == ["scenario"]
    assert (agent["description"], agent["output_schema"]) == (None, None)


@keyed
def test_a_create_repeated_with_its_key_is_one_execution(deployment: Deployment) -> None:
    agent_id, given = deployment.everyday.agent_id, {"scenario": "hello", "name": "once"}

    first = deployment.client.create(agent_id, given, idempotency_key="order 4711, é")
    again = deployment.client.create(agent_id, given, idempotency_key="order 4711, é")

    assert again.id == first.id
    assert first.idempotency_key == "order 4711, é"


def test_a_killed_agent_resumes_without_repeating_a_finished_step(interrupted: Interrupted) -> None:
    effects = interrupted.effects_of(interrupted.resumed)

    ran = Counter(f"{note.name} {note.facts.get('name', '')}".strip() for note in effects)

    assert interrupted.resumed.execution.status == "completed"
    assert ran == {
        "record opening": 1,
        "draw": 1,
        "refuse": 1,
        "record left": 1,
        "record right": 1,
        "record twin": 2,  # two calls, each run once
        "hold": 2,  # open when the process was killed, and safe to retry
        "record closing": 1,
    }


def test_a_resumed_run_gets_what_the_first_attempt_recorded(interrupted: Interrupted) -> None:
    effects = interrupted.effects_of(interrupted.resumed)
    marks = {note.facts["name"]: note.facts["mark"] for note in effects if note.name == "record"}
    (drawn,) = [note.facts["mark"] for note in effects if note.name == "draw"]

    output = interrupted.resumed.execution.output

    assert output["opening"] == marks["opening"]
    assert output["drawn"] == drawn
    assert output["refused"] == ["raised", "refuse: not today"]
    parallel = [note for note in effects if note.facts.get("name") in {"left", "right", "twin"}]
    assert {note.attempt for note in parallel} == {1}
    assert output["parallel"] == sorted([note.facts["name"], note.facts["mark"]] for note in parallel)
    assert (output["held"], output["closing"]) == (2, marks["closing"])


def test_a_resumed_run_is_a_second_attempt_of_one_dispatch(interrupted: Interrupted) -> None:
    effects = interrupted.effects_of(interrupted.resumed)

    assert len({note.dispatch for note in effects}) == 1
    assert {note.attempt for note in effects} == {1, 2}
    assert len({note.pid for note in effects}) == 2
    assert interrupted.resumed.count("dispatch.queued") == 1
    assert interrupted.resumed.count("dispatch.acked") == 2


def test_an_open_step_that_is_safe_to_retry_goes_on_as_the_same_step(interrupted: Interrupted) -> None:
    hold = interrupted.resumed.step("hold")

    assert (hold.status, hold.result, hold.idempotency) == ("succeeded", 2, "safe_to_retry")
    assert interrupted.resumed.count("step.executing", hold) == 1
    assert interrupted.resumed.count("step.succeeded", hold) == 1


def test_an_orphaned_effect_that_may_run_once_is_not_run_again(interrupted: Interrupted) -> None:
    charges = interrupted.effects_of(interrupted.orphan)

    assert interrupted.orphan.execution.status == "completed"
    assert [(note.facts["amount"], note.attempt) for note in charges] == [(7, 1), (8, 2)]
    orphaned, repeated, other = interrupted.orphan.execution.output
    assert orphaned[0] == "raised"
    assert orphaned[1].startswith("charge: ")
    # A refusal comes back from a tool as a text, for a model to read.
    assert repeated[0] == "returned"
    assert "indeterminate_retry" in repeated[1]
    assert other == ["returned", 8]


def test_an_orphaned_effect_is_recorded_as_indeterminate(interrupted: Interrupted) -> None:
    orphaned, repeated, other = interrupted.orphan.steps

    assert (orphaned.status, orphaned.error["reason"], orphaned.occurrence) == ("failed", "indeterminate", 0)
    assert interrupted.orphan.execution.output[0][1] == f"charge: {orphaned.error['message']}"
    assert (repeated.status, repeated.args_hash, repeated.occurrence) == ("denied", orphaned.args_hash, 1)
    assert (other.status, other.idempotency) == ("succeeded", "at_most_once")
    assert interrupted.orphan.count("step.failed") == 1


def test_a_superseded_attempt_is_refused_whatever_it_tries(superseded: Superseded) -> None:
    """The client learns of it by the refusal itself or by the heartbeat that was due in the meantime."""
    assert [note.name for note in superseded.refusals] == ["stall", "after"]
    assert {note.facts["error"] for note in superseded.refusals} <= {"LeaseSuperseded", "CancelledError"}
    assert {(note.role, note.attempt) for note in superseded.refusals} == {("first", 1)}
    assert [(note.role, note.attempt) for note in superseded.effects if note.name == "stall"] == [
        ("first", 1),
        ("second", 2),
    ]


def test_a_superseded_attempt_changes_nothing(superseded: Superseded) -> None:
    before, after = superseded.while_both_ran, superseded.after_the_first_ended

    assert before.step("stall").status == "executing"
    assert after == before


def test_the_attempt_that_took_over_decides_the_run(superseded: Superseded) -> None:
    end = superseded.at_the_end

    assert end.execution.status == "completed"
    # The step finished before the stall was replayed to the second attempt; all else is its own.
    assert end.execution.output == {"before": "first", "stall": "second", "after": "second"}
    records = [(note.facts["name"], note.role) for note in superseded.effects if note.name == "record"]
    assert records == [("before", "first"), ("after", "second")]
    assert end.step("stall").result == "second"
    assert end.count("step.succeeded", end.step("stall")) == 1
    assert end.count("execution.completed") == 1


def test_a_cancel_ends_the_execution_at_once(cancelled: Cancelled) -> None:
    at_once = cancelled.at_once

    assert (at_once.execution.status, at_once.execution.failure_reason) == ("cancelled", "client_cancelled")
    assert at_once.step("record", {"name": "before"}).status == "succeeded"
    assert at_once.step("hold").status == "cancelled"
    assert at_once.step("hold").error["reason"] == "execution_cancelled"
    assert [event.type for event in at_once.events[-2:]] == ["execution.cancelled", "step.cancelled"]


def test_a_handler_that_works_on_after_a_cancel_changes_nothing(cancelled: Cancelled) -> None:
    assert cancelled.after_the_handler_left == cancelled.at_once
    assert [note.facts for note in cancelled.effects] == [{"name": "before"}, {"gate": "returns"}]


def test_a_handler_that_waits_is_stopped_by_its_next_heartbeat(cancelled: Cancelled, release: Release) -> None:
    stopped = [(note.name, note.attempt) for note in cancelled.stopped_while_waiting]

    # A heartbeat every 30 seconds says nothing within the time of this test.
    assert stopped == ([("hold", 1)] if release.heartbeats_by_the_lease else [])


def test_a_second_cancel_is_refused(cancelled: Cancelled, release: Release) -> None:
    assert cancelled.second_cancel.type == release.ended_error
    if release.ended_error == "APIError":
        assert (cancelled.second_cancel.code, cancelled.second_cancel.status) == ("execution_terminal", 409)


def test_heartbeats_keep_a_body_of_three_leases_its_lease(long_body: LongBody) -> None:
    record = long_body.record

    assert (record.execution.status, record.execution.failure_reason) == ("completed", "")
    assert record.execution.output == ["before", "long", "after"]
    assert [(note.name, note.attempt) for note in long_body.effects] == [("record", 1), ("hold", 1), ("record", 1)]
    assert record.count("dispatch.queued") == 1
    assert record.count("dispatch.acked") == 1
    assert record.count("dispatch.failed") == 0


def test_no_heartbeat_of_a_long_body_is_refused(long_body: LongBody) -> None:
    assert "heartbeat failed" not in long_body.log
