"""Judges a run under faults: what the kernel promised, against what agents and clients were told and what is read back.

It knows the contract and no code of the kernel but the spelling of step ids. Every finding is one sentence.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kernel.domain.canonical import args_hash
from kernel.domain.identity import step_id
from tests.fault.history import LOST, Answered, Asked, Delivered, Effect, EventRead, ExecutionRead, History, StepRead

_ENDS = {
    "execution.completed": "completed",
    "execution.failed": "failed",
    "execution.cancelled": "cancelled",
}
_CLOSING = frozenset({"step.cancelled", "step.denied", "approval.expired", "dispatch.discarded"})
_STEP_ENDS = {"step.succeeded": "succeeded", "step.failed": "failed", "step.denied": "denied"} | {
    "step.cancelled": "cancelled"
}
_ACTED = {"complete": "completed", "fail": "failed", "cancel": "cancelled"}
_ACCEPTED_DECISIONS = frozenset({"proceed", "replay", "denied", "recorded"})
_OURS = frozenset({400, 401, 403, 404, 405, 413, 500})
"""Nothing that a correct agent or client does may be answered so."""


def check(
    history: History,
    reads: Sequence[ExecutionRead],
    *,
    is_settled: bool = True,
    is_view_whole: bool = True,
    is_door_alone: bool = False,
    is_delivered_once: bool = True,
    answer_seconds_max: float | None = None,
) -> list[str]:
    """Return every broken promise. `is_settled`: the faults are over and everything had the time to end.

    `is_view_whole` is False where the view went back in time: until its owner notices, a door that has not itself seen
    the later state reads the earlier one. `is_door_alone`: whatever anybody was answered, the one door has seen.
    `is_delivered_once` is False where the view went back and the log stored copies besides: a claim is then answered
    once more. `answer_seconds_max` bounds each answer; None where processes were stopped in the middle of one.
    """
    run = _Run(history, reads)
    findings: list[str] = []
    for rule in (
        _every_acknowledged_outcome_is_there,
        _nothing_proceeds_after_its_outcome,
        _at_most_once_is_not_twice,
        _every_acknowledged_creation_is_there,
        _every_acknowledged_end_is_there,
        _every_record_is_whole,
        _every_id_is_the_predicted_one,
        _what_was_refused_left_no_trace,
        _one_key_is_one_decision,
        _an_old_lease_changes_nothing,
    ):
        findings.extend(rule(run))
    if is_delivered_once:
        findings.extend(_no_attempt_is_delivered_twice(run))
    if is_view_whole or is_door_alone:
        findings.extend(_reads_never_go_back(run))
    findings.extend(_correct_requests_are_not_blamed(run, is_view_whole=is_view_whole))
    if is_settled:
        findings += [f"execution {read.execution_id} never ended" for read in reads if not _is_over(read.status)]
    if answer_seconds_max is not None:
        findings += [
            f"request {asked.number} ({asked.action}) was answered after {answered.at - asked.at:.2f} s"
            for asked, answered in run.exchanges
            if answered.status != LOST and answered.at - asked.at > answer_seconds_max
        ]
    return findings


class _Run:
    """A history with its indexes. Places are positions in the history: they alone say what came first."""

    def __init__(self, history: History, reads: Sequence[ExecutionRead]) -> None:
        self.history = history
        self.reads = {read.execution_id: read for read in reads}
        self.asked = {line.number: line for line in history if isinstance(line, Asked)}
        self.asked_at = {line.number: place for place, line in enumerate(history) if isinstance(line, Asked)}
        self.answered_at = {line.number: place for place, line in enumerate(history) if isinstance(line, Answered)}
        self.answers = {line.number: line for line in history if isinstance(line, Answered)}
        self.exchanges = [(self.asked[number], answered) for number, answered in self.answers.items()]
        self.steps = {(read.execution_id, step.step_id): step for read in reads for step in read.steps}


# ---------------------------------------------------------------- outcomes and effects


def _every_acknowledged_outcome_is_there(run: _Run) -> Iterator[str]:
    for asked, answered in run.exchanges:
        if not _is_accepted(answered):
            continue
        for settled in asked.settled:
            step = run.steps.get((asked.execution_id, settled.step_id))
            where = f"step {settled.step_id[:8]} of {asked.execution_id} (request {asked.number})"
            if step is None or step.status not in ("succeeded", "failed"):
                yield f"an acknowledged outcome is lost: {where} is {step.status if step else 'unknown'}"
            elif _decision(answered) == "recorded" and not _is_same(step.outcome, settled.outcome):
                yield f"an acknowledged outcome was replaced: {where} has {step.outcome}, not {settled.outcome}"


def _nothing_proceeds_after_its_outcome(run: _Run) -> Iterator[str]:
    known: dict[tuple[str, str], int] = {}
    for asked, answered in run.exchanges:
        if _is_accepted(answered):
            for settled in asked.settled:
                _earliest(known, (asked.execution_id, settled.step_id), run.answered_at[asked.number])
        if asked.action == "submit" and _decision(answered) == "replay":
            _earliest(known, (asked.execution_id, _text(answered, "step_id")), run.answered_at[asked.number])
    for asked, answered in run.exchanges:
        if _decision(answered) == "proceed":
            place = known.get((asked.execution_id, _text(answered, "step_id")))
            if place is not None and place < run.asked_at[asked.number]:
                yield f"request {asked.number} was told to proceed after the outcome of its step was acknowledged"


def _at_most_once_is_not_twice(run: _Run) -> Iterator[str]:
    effects = Counter(
        (line.execution_id, line.step_id) for line in run.history if isinstance(line, Effect) and line.is_at_most_once
    )
    for (execution_id, identity), count in effects.items():
        if count > 1:
            yield f"the at_most_once step {identity[:8]} of {execution_id} ran {count} times"


# ---------------------------------------------------------------- executions


def _every_acknowledged_creation_is_there(run: _Run) -> Iterator[str]:
    for asked, answered in run.exchanges:
        if asked.action == "create" and answered.status == 201 and _text(answered, "id") not in run.reads:
            yield f"the execution that request {asked.number} was told of is not there"


def _every_acknowledged_end_is_there(run: _Run) -> Iterator[str]:
    for asked, answered in run.exchanges:
        wanted = _ACTED.get(asked.action)
        if wanted is None or answered.status != 204:
            continue
        read = run.reads.get(asked.execution_id)
        found = "unknown" if read is None else read.status
        if found != wanted:
            yield f"execution {asked.execution_id} is {found}, and request {asked.number} was told it is {wanted}"


def _every_record_is_whole(run: _Run) -> Iterator[str]:
    for read in run.reads.values():
        for finding in (*_numbers(read.events), *_ends(read), *_step_ends(read)):
            yield f"execution {read.execution_id}: {finding}"


def _numbers(events: Sequence[EventRead]) -> Iterator[str]:
    numbers = [event.event_seq for event in events]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"its events are numbered {numbers}"


def _ends(read: ExecutionRead) -> Iterator[str]:
    types = [event.type for event in read.events]
    ends = [place for place, type_ in enumerate(types) if type_ in _ENDS]
    if not _is_over(read.status):
        if ends:
            yield f"it is {read.status} and its history says {types[ends[0]]}"
        return
    if len(ends) != 1:
        yield f"it ended {len(ends)} times"
        return
    if _ENDS[types[ends[0]]] != read.status:
        yield f"it is {read.status} and its history says {types[ends[0]]}"
    after = [type_ for type_ in types[ends[0] + 1 :] if type_ not in _CLOSING]
    if after:
        yield f"{after[0]} follows its end"


def _step_ends(read: ExecutionRead) -> Iterator[str]:
    ends: dict[object, list[str]] = defaultdict(list)
    for event in read.events:
        if event.type in _STEP_ENDS:
            ends[event.payload.get("step_id")].append(_STEP_ENDS[event.type])
    for step in read.steps:
        found = ends.pop(step.step_id, [])
        is_open = step.status in ("executing", "allowed", "awaiting_approval")
        if found != ([] if is_open else [step.status]):
            yield f"step {step.step_id[:8]} is {step.status} and its history says {found}"
        if is_open and _is_over(read.status):
            yield f"step {step.step_id[:8]} is open after the end"
    for identity in ends:
        yield f"its history ends a step {identity} that it does not have"


def _every_id_is_the_predicted_one(run: _Run) -> Iterator[str]:
    occurrences: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for (execution_id, identity), step in run.steps.items():
        if identity != step_id(execution_id, step.kind, step.target, step.args_hash, step.occurrence):
            yield f"step {identity[:8]} of {execution_id} does not have the id of its call"
        occurrences[execution_id, step.kind, step.target, step.args_hash].append(step.occurrence)
    for (execution_id, _, target, _), found in occurrences.items():
        if sorted(found) != list(range(len(found))):
            yield f"the occurrences of {target} in {execution_id} are {sorted(found)}"
    for asked, answered in run.exchanges:
        identity = _text(answered, "step_id")
        if asked.action == "submit" and identity:
            step = run.steps.get((asked.execution_id, identity))
            if step is None or not _is_of(step, asked):
                yield f"request {asked.number} was answered with a step that is not its call's"


def _is_of(step: StepRead, asked: Asked) -> bool:
    return step.target == asked.target and step.args_hash == args_hash(asked.args.encode())


# ---------------------------------------------------------------- refusals, keys, leases


def _what_was_refused_left_no_trace(run: _Run) -> Iterator[str]:
    requests: dict[str, list[Asked]] = defaultdict(list)
    for asked in run.asked.values():
        for mark in asked.marks:
            requests[mark].append(asked)
    for mark, repeats in requests.items():
        if all(_is_refused(run.answers.get(asked.number)) for asked in repeats):
            for read in run.reads.values():
                if mark in read.text:
                    yield f"request {repeats[0].number} ({repeats[0].action}) was refused and happened: {mark}"


def _is_refused(answered: Answered | None) -> bool:
    if answered is None or answered.status in (LOST, 500, 504):
        return False
    if answered.status == 200:
        return _decision(answered) == "execution_terminal"
    return answered.status >= 400


def _one_key_is_one_decision(run: _Run) -> Iterator[str]:
    names: dict[tuple[str, str, str, int, str], set[str]] = defaultdict(set)
    for asked, answered in run.exchanges:
        name = _text(answered, "id" if asked.action == "create" else "step_id")
        if asked.key and name and asked.action in ("create", "submit"):
            names[asked.action, asked.execution_id, asked.dispatch_id, asked.attempt, asked.key].add(name)
    for (action, _, _, _, key), found in names.items():
        if len(found) > 1:
            yield f"the key {key} of {action} was answered with {len(found)} different ids"
    for mark in {mark for asked in run.asked.values() if asked.action == "create" for mark in asked.marks}:
        count = sum(mark in read.text for read in run.reads.values())
        if count > 1:
            yield f"one create made {count} executions: {mark}"


def _an_old_lease_changes_nothing(run: _Run) -> Iterator[str]:
    """Whoever was sent after a newer attempt had been accepted is refused."""
    newest: dict[tuple[str, str], int] = {}
    asked_before: dict[int, int] = {}
    for line in run.history:
        match line:
            case Asked():
                asked_before[line.number] = newest.get((line.execution_id, line.dispatch_id), 0)
            case Answered(number=number):
                asked = run.asked[number]
                if not asked.attempt or not _is_lease_accepted(line):
                    continue
                if asked_before[number] > asked.attempt:
                    yield f"request {number} was accepted under the superseded attempt {asked.attempt}"
                place = (asked.execution_id, asked.dispatch_id)
                newest[place] = max(newest.get(place, 0), asked.attempt)
            case _:
                continue


def _reads_never_go_back(run: _Run) -> Iterator[str]:
    known: dict[str, str] = {}
    known_when_asked: dict[int, str] = {}
    for line in run.history:
        match line:
            case Asked():
                known_when_asked[line.number] = known.get(line.execution_id, "")
            case Answered(number=number, status=status):
                asked = run.asked[number]
                before = known_when_asked[number]
                if before and asked.action in ("get", "events") and status == 404:
                    yield f"request {number} was answered 404 for an execution known to be there"
                if asked.action == "create" and status == 201:
                    known.setdefault(_text(line, "id"), "running")
                elif asked.action in _ACTED and status == 204:
                    known[asked.execution_id] = _ACTED[asked.action]
                elif asked.action == "get" and status == 200:
                    found = _text(line, "status")
                    if _is_over(before) and found != before:
                        yield f"request {number} read {found} of an execution known to be {before}"
                    known[asked.execution_id] = found if _is_over(found) else before or found
                elif asked.action == "events" and status == 200:
                    yield from _events_differ(run, asked, line)
            case _:
                continue


def _events_differ(run: _Run, asked: Asked, answered: Answered) -> Iterator[str]:
    read = run.reads.get(asked.execution_id)
    if read is None or not isinstance(answered.body, list):
        return
    found = [(event["event_seq"], event["type"]) for event in answered.body]
    expected = [(event.event_seq, event.type) for event in read.events[: len(found)]]
    if found != expected:
        yield f"request {asked.number} read events that are not the first ones of {asked.execution_id}"


def _no_attempt_is_delivered_twice(run: _Run) -> Iterator[str]:
    attempts = Counter((line.dispatch_id, line.attempt) for line in run.history if isinstance(line, Delivered))
    for (dispatch_id, attempt), count in attempts.items():
        if count > 1:
            yield f"attempt {attempt} of dispatch {dispatch_id} was delivered {count} times"


def _correct_requests_are_not_blamed(run: _Run, *, is_view_whole: bool) -> Iterator[str]:
    for asked, answered in run.exchanges:
        if answered.status in _OURS and (is_view_whole or answered.status != 404):
            yield f"request {asked.number} ({asked.action}) was answered {answered.status}: {answered.body}"


# ---------------------------------------------------------------- reading answers


def _is_accepted(answered: Answered) -> bool:
    """Whether what travelled with the request holds from this answer on."""
    if answered.status == 200:
        return _decision(answered) in _ACCEPTED_DECISIONS
    return answered.status == 204


def _is_lease_accepted(answered: Answered) -> bool:
    return _is_accepted(answered) and not answered.is_replayed


def _decision(answered: Answered) -> str:
    return _text(answered, "decision")


def _text(answered: Answered, name: str) -> str:
    """Return a member of the answer, the empty string where it has none of that name."""
    if not 200 <= answered.status < 300 or not isinstance(answered.body, Mapping):
        return ""
    found = answered.body.get(name, "")
    return found if isinstance(found, str) else ""


def _is_over(status: str) -> bool:
    return status in ("completed", "failed", "cancelled")


def _is_same(left: str, right: str) -> bool:
    """Whether two JSON texts are one value; a step's error that is no object is read back as its message."""
    if not left:
        return False
    return msgspec.json.decode(left) == msgspec.json.decode(right)


def _earliest(places: dict[tuple[str, str], int], name: tuple[str, str], place: int) -> None:
    places[name] = min(places.get(name, place), place)
