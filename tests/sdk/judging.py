"""Judges one run of a scenario: by the checker of the fault suite, and by what its steps foretell."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from stepwell import Client, Event, Execution, Step
from tests.fault.caller import text_of
from tests.fault.checker import check
from tests.fault.history import Answered, Asked, EventRead, ExecutionRead, Line, StepRead
from tests.fault.history import Effect as EffectLine
from tests.sdk.chronicle import who
from tests.sdk.effects import Happened
from tests.sdk.scenario_agents import Ending
from tests.sdk.scenarios import REASON, Scenario

EVENTS_MAX = 1000
"""On one page; no run makes as many."""
FRESH = re.compile(r"\b[0-9a-f]{16}\b")
"""A word that a body made."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has ended, as it is read back, and what happened outside meanwhile."""

    scenario: Scenario
    execution: Execution
    steps: list[Step]
    events: list[Event]
    effects: list[Happened]


async def read_run(client: Client, scenario: Scenario, execution_id: str, effects: list[Happened]) -> Ran:
    """`effects` may hold those of other executions."""
    return Ran(
        scenario=scenario,
        execution=await client.get(execution_id),
        steps=await client.list_steps(execution_id),
        events=await client.events(execution_id, limit=EVENTS_MAX),
        effects=[each for each in effects if each.execution_id == execution_id],
    )


async def decide(client: Client, scenario: Scenario, approval_id: str) -> None:
    """Say what the person of the scenario says."""
    if scenario.verdict == "grant":
        await client.grant_approval(approval_id)
    else:
        await client.deny_approval(approval_id, rationale=REASON)


def findings(runs: Sequence[Ran], history: Sequence[Line] = ()) -> list[str]:
    """Return every broken promise. `history` is what the agents asked and were told, where it was written down."""
    found = check([*history, *(line for run in runs for line in _effect_lines(run))], [_read(run) for run in runs])
    for run in runs:
        found += [f"{run.scenario.name} {run.execution.id}: {each}" for rule in RULES for each in rule(run)]
    return found + list(_bodies_without_leave(runs, history))


# ---------------------------------------------------------------- rules


def _it_ends_as_foretold(run: Ran) -> Iterator[str]:
    try:
        ending = run.scenario.ending(run.steps)
    except (IndexError, KeyError, TypeError) as error:
        told = [(step.target, step.args, step.status) for step in run.steps]
        yield f"it is {run.execution.status}, and its steps foretell no end at all ({error!r}): {told}"
        return
    expected = (ending.status, ending.output, ending.failure_reason)
    found = (run.execution.status, run.execution.output, run.execution.failure_reason)
    if found != expected:
        yield f"it ended as {found}, and not as {expected}"
    args = [step.args for step in run.steps]
    if ending.args is not None and args != ending.args:
        yield f"its steps have the arguments {args}, and not {ending.args}"

    yield from _its_effects_are(run, ending)


def _its_effects_are(run: Ran, ending: Ending) -> Iterator[str]:
    """Of each step whose outcome is recorded the body ran; no body ran without a step."""
    found = Counter(name for name, _ in {(each.name, each.step_id) for each in run.effects})
    missing = Counter(ending.effects) - found
    if missing:
        yield f"these effects never happened: {dict(missing)}"
    surplus = found - Counter(ending.effects) - Counter(ending.perhaps)
    if surplus:
        yield f"these effects were not to happen: {dict(surplus)}"
    unknown = {each.step_id for each in run.effects} - {step.step_id for step in run.steps}
    if unknown:
        yield f"bodies ran for steps that are not on record: {sorted(unknown)}"


def _no_process_repeats_an_effect(run: Ran) -> Iterator[str]:
    """A body runs again only in a process that follows on one that was killed."""
    for (name, step_id, process), count in Counter(
        (each.name, each.step_id, each.process) for each in run.effects
    ).items():
        if count > 1:
            yield f"the process {process} did {name} of step {step_id[:8]} {count} times"


def _what_depends_is_decided_later(run: Ran) -> Iterator[str]:
    """The fresh words in a step's argument `after` are recorded results, on record before the step was proposed."""
    places: dict[str, dict[str, int]] = defaultdict(dict)
    for event in run.events:
        if event.type.startswith("step."):
            places[event.payload["step_id"]][event.type] = event.event_seq
    makers = {step.result: step.step_id for step in run.steps if isinstance(step.result, str)}
    for step in run.steps:
        for word in FRESH.findall(step.args.get("after", "")):
            ended = places[makers[word]]["step.succeeded"] if word in makers else None
            if ended is None:
                yield f"{step.target} {step.args} was decided on a result that is not on record"
            elif ended > places[step.step_id]["step.proposed"]:
                yield f"{step.target} {step.args} was decided before the result it depends on was durable"


def _bodies_without_leave(runs: Sequence[Ran], history: Sequence[Line]) -> Iterator[str]:
    """A body runs as often as the kernel told that process to proceed, at most."""
    if not history:
        return
    asked = {line.number: line for line in history if isinstance(line, Asked)}
    left: Counter[tuple[str, object]] = Counter()
    for line in history:
        if isinstance(line, Answered) and isinstance(line.body, dict) and line.body.get("decision") == "proceed":
            left[asked[line.number].who, line.body["step_id"]] += 1
    for each in (effect for run in runs for effect in run.effects):
        left[who(each.process), each.step_id] -= 1
        if left[who(each.process), each.step_id] < 0:
            yield f"{each.name} of {each.execution_id} happened in attempt {each.attempt}, which the kernel did not let"


RULES = (_it_ends_as_foretold, _no_process_repeats_an_effect, _what_depends_is_decided_later)


# ---------------------------------------------------------------- as the checker wants it


def _effect_lines(run: Ran) -> Iterator[EffectLine]:
    modes = {step.step_id: step.idempotency for step in run.steps}
    for each in run.effects:
        yield EffectLine(
            at=0.0,
            who=who(each.process),
            execution_id=each.execution_id,
            step_id=each.step_id,
            attempt=each.attempt,
            is_at_most_once=modes.get(each.step_id) == "at_most_once",
        )


def _read(run: Ran) -> ExecutionRead:
    return ExecutionRead(
        execution_id=run.execution.id,
        status=run.execution.status,
        events=tuple(EventRead(each.event_seq, each.type, each.payload) for each in run.events),
        steps=tuple(
            StepRead(
                step_id=step.step_id,
                kind=step.kind,
                target=step.target,
                args_hash=step.args_hash,
                occurrence=step.occurrence,
                status=step.status,
                outcome=_outcome(step),
            )
            for step in run.steps
        ),
        text=text_of([msgspec.to_builtins(each) for each in (run.execution, run.steps, run.events)]),
    )


def _outcome(step: Step) -> str:
    match step.status:
        case "succeeded":
            return text_of(step.result)
        case "failed":
            return text_of(step.error)
        case _:
            return ""
