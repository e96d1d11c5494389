"""The scenarios that wait for leases: each drives agents through it and returns what was to be seen.

They start together, in threads, when the first reference test runs; the tests then look at the outcomes.
"""

import time
from collections.abc import Callable

import msgspec

from tests.reference.client import Event, Execution, Refusal, Refused, Step
from tests.reference.deployment import Deployment
from tests.reference.stage import Note

LEASE_PERIODS = 3
# Beyond the periods, so that a lease which was never renewed has been seen to expire and its redelivery to arrive.
LEASE_MARGIN_SECONDS = 3.0


class Record(msgspec.Struct, frozen=True):
    """Everything the kernel says of one execution."""

    execution: Execution
    steps: list[Step]
    events: list[Event]

    def step(self, target: str, args: object = None) -> Step:
        """The one step with this target, and with these args where they are given."""
        (step,) = [step for step in self.steps if step.target == target and args in (None, step.args)]
        return step

    def count(self, type_: str, step: Step | None = None) -> int:
        found = [event for event in self.events if event.type == type_]
        return len(found if step is None else [event for event in found if event.payload["step_id"] == step.step_id])


class Interrupted(msgspec.Struct, frozen=True):
    """An agent process was killed in the middle of two runs and started again."""

    resumed: Record
    orphan: Record
    effects: list[Note]

    def effects_of(self, record: Record) -> list[Note]:
        return [note for note in self.effects if note.execution == record.execution.id]


class Superseded(msgspec.Struct, frozen=True):
    """A process hung past its lease; another took the dispatch over; then the first woke up."""

    while_both_ran: Record
    after_the_first_ended: Record
    at_the_end: Record
    effects: list[Note]
    refusals: list[Note]


class Cancelled(msgspec.Struct, frozen=True):
    """Two runs were cancelled while a tool body ran: one body then returned, the other went on waiting."""

    at_once: Record
    after_the_handler_left: Record
    second_cancel: Refusal
    stopped_while_waiting: list[Note]
    effects: list[Note]


class LongBody(msgspec.Struct, frozen=True):
    """A tool body took longer than three leases."""

    record: Record
    effects: list[Note]
    log: str


def recorded(deployment: Deployment, execution_id: str) -> Record:
    """Read now, through the release's own client."""
    client = deployment.client
    return Record(client.get(execution_id), client.steps(execution_id), client.events(execution_id))


def run_interrupted(deployment: Deployment) -> Interrupted:
    stage = deployment.new_stage("interrupted", "never", "resume")
    agent = deployment.agent("interrupted", stage)
    deployment.register(agent)
    agent.start()
    resumed = deployment.client.create(agent.agent_id, {"scenario": "resume"}).id
    orphan = deployment.client.create(agent.agent_id, {"scenario": "orphan"}).id
    deployment.wait(lambda: stage.notes("effect", "hold", resumed), "the body that the kill interrupts")
    deployment.wait(lambda: stage.notes("effect", "charge", orphan), "the effect that the kill orphans")
    agent.kill()
    agent.start()
    deployment.wait(lambda: len(stage.notes("effect", "hold", resumed)) > 1, "the interrupted body in a new attempt")
    stage.open("resume")
    deployment.ended(resumed)
    deployment.ended(orphan)
    return Interrupted(
        resumed=recorded(deployment, resumed),
        orphan=recorded(deployment, orphan),
        effects=stage.notes("effect"),
    )


def run_superseded(deployment: Deployment) -> Superseded:
    stage = deployment.new_stage("stalled", "first", "second")
    first = deployment.agent("stalled", stage, role="first")
    second = deployment.agent("stalled", stage, role="second")
    deployment.register(first)
    first.start()
    second.start()
    execution_id = deployment.client.create(first.agent_id, {}).id
    deployment.wait(lambda: stage.notes("effect", "stall"), "the body that hangs")
    # The next attempt goes to the second process; the first one still believes in its lease.
    deployment.register(second)
    deployment.wait(lambda: len(stage.notes("effect", "stall")) > 1, "the same body in the attempt that takes over")
    while_both_ran = recorded(deployment, execution_id)
    stage.open("first")
    deployment.wait(first.is_idle, "the end of the superseded handler")
    after_the_first_ended = recorded(deployment, execution_id)
    stage.open("second")
    deployment.ended(execution_id)
    return Superseded(
        while_both_ran=while_both_ran,
        after_the_first_ended=after_the_first_ended,
        at_the_end=recorded(deployment, execution_id),
        effects=stage.notes("effect"),
        refusals=stage.notes("refused"),
    )


def run_cancelled(deployment: Deployment) -> Cancelled:
    client, stage = deployment.client, deployment.stage
    agent_id = deployment.everyday.agent_id
    returns = client.create(agent_id, {"scenario": "long", "gate": "returns"}).id
    waits = client.create(agent_id, {"scenario": "long", "gate": "waits"}).id
    deployment.wait(lambda: stage.notes("effect", "hold", returns), "the body that returns")
    deployment.wait(lambda: stage.notes("effect", "hold", waits), "the body that waits")
    client.cancel(returns)
    client.cancel(waits)
    at_once = recorded(deployment, returns)
    second_cancel = _refusal(lambda: client.cancel(returns))
    stage.open("returns")
    deployment.wait(lambda: stage.notes("left", execution=returns), "the handler's end after its body returned")
    if deployment.release.heartbeats_by_the_lease:
        deployment.wait(lambda: stage.notes("left", execution=waits), "the handler's end by its next heartbeat")
    return Cancelled(
        at_once=at_once,
        after_the_handler_left=recorded(deployment, returns),
        second_cancel=second_cancel,
        stopped_while_waiting=stage.notes("stopped", execution=waits),
        effects=stage.notes("effect", execution=returns),
    )


def run_long_body(deployment: Deployment) -> LongBody:
    stage, periods_seconds = deployment.stage, LEASE_PERIODS * deployment.kernel.lease_seconds
    execution_id = deployment.client.create(deployment.everyday.agent_id, {"scenario": "long", "gate": "long"}).id
    deployment.wait(lambda: stage.notes("effect", "hold", execution_id), "the long body")
    ends_at = time.monotonic() + periods_seconds + LEASE_MARGIN_SECONDS
    deployment.wait(lambda: time.monotonic() >= ends_at, "three lease periods", seconds=2 * periods_seconds)
    stage.open("long")
    deployment.ended(execution_id)
    return LongBody(
        record=recorded(deployment, execution_id),
        effects=stage.notes("effect", execution=execution_id),
        log=deployment.everyday.log.read_text(),
    )


def _refusal(call: Callable[[], None]) -> Refusal:
    try:
        call()
    except Refused as refused:
        return refused.refusal
    raise AssertionError("the call was not refused")
