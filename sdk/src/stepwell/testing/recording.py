"""An execution that ran somewhere, as a test: the handler must make the same steps again and end the same way."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, Self, cast

import msgspec

from stepwell.agent import Handler
from stepwell.client import Client
from stepwell.context import Held
from stepwell.context import Run as Body
from stepwell.errors import PolicyError, Signal
from stepwell.kernel import Idempotency, Kind
from stepwell.testing.comparing import Divergence, Made, left_out, made
from stepwell.testing.local import RUN_SECONDS, LocalKernel
from stepwell.testing.replaying import TracedAgent, TracedContext
from stepwell.types import Event, Execution, Step, StepDecision

FORMAT = 1
_REPLAYED = ("succeeded", "failed")


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What an execution was given, which steps it made with which outcomes, and how it ended.

    It holds inputs, arguments and results as they were: see to it that no secret is among them before it is committed.
    """

    execution: Execution
    steps: list[Step]
    events: list[Event]

    @classmethod
    async def of(cls, client: Client, execution_id: str) -> Self:
        """Record an execution that has ended. Raises ValueError where it has not, NotFoundError where it is unknown."""
        execution = await client.get(execution_id)
        if not execution.is_terminal:
            raise ValueError(f"execution {execution_id} is {execution.status}: record it once it has ended")
        events = [event async for event in client.follow(execution_id)]
        return cls(execution=execution, steps=await client.list_steps(execution_id), events=events)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        raw = msgspec.json.encode({"format": FORMAT, **msgspec.structs.asdict(self)})
        path.write_bytes(msgspec.json.format(raw, indent=2) + b"\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises ValueError for everything else."""
        try:
            found = json.loads(path.read_bytes())
            number, recording = found["format"], msgspec.convert(found, cls)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no recording: {error}") from error
        if number != FORMAT:
            raise ValueError(f"{path}: the format {number} is not known")
        return recording

    async def replay(self, handler: Handler, *, timeout: float = RUN_SECONDS) -> None:
        """Run a handler with the recorded input and outcomes; no body of a step runs.

        Raises Divergence, naming the line, where it makes a step that is not recorded, leaves one out, or ends in
        another way.
        """

        def recorded(agent_id: str, **parts: Any) -> TracedAgent:
            return RecordedAgent(agent_id, recording=self, **parts)

        async with LocalKernel() as kernel:
            running = await kernel.begin(handler, self.execution.input, kind=recorded)
            run = await running.wait(timeout=timeout)
        self._compare(run.execution)

    def _compare(self, now: Execution) -> None:
        then = self.execution
        if then.status == "cancelled":
            return
        for what, before, after in (
            ("status", then.status, now.status),
            ("failure reason", then.failure_reason, now.failure_reason),
            ("output", then.output, now.output),
        ):
            if before != after:
                raise Divergence(f"the {what} differs: recorded was {before!r}, and now it is {after!r}")


class _Over(Signal):
    """The recorded execution went no further than this."""


class RecordedContext(TracedContext):
    """Answers with what is recorded, and lets nothing else happen."""

    def __init__(self, *, recording: Recording, **parts: Any) -> None:
        super().__init__(**parts)
        self._recording = recording
        self._made: list[Made] = []
        self._denials: dict[tuple[str, str, str], list[Step]] = {}
        for step in recording.steps:
            if step.status == "denied":
                self._denials.setdefault(_content(step), []).append(step)
        self._unfinished = Counter(_content(step) for step in recording.steps if step.status not in _REPLAYED)

    async def invoke_tool(
        self,
        target: str,
        args: Any,
        *,
        idempotency: Idempotency = "safe_to_retry",
        run: Body,
        kind: Kind = "tool_call",
    ) -> Any:
        step = self._noted(kind, target, args)

        async def refused() -> Any:
            self._refuse(step)

        return await super().invoke_tool(target, args, idempotency=idempotency, run=refused, kind=kind)

    async def begin_llm(self, target: str, args: Any) -> StepDecision:
        step = self._noted("llm_call", target, args)
        decision = await super().begin_llm(target, args)
        if decision.decision == "proceed":
            self._leave_call()
            self._refuse(step)
        return decision

    def _noted(self, kind: Kind, target: str, args: Any) -> Made:
        """Note a step that is asked for. Raises PolicyError where it was denied in the recording."""
        step = made(kind, target, args, self.here().place)
        self._made.append(step)
        denials = self._denials.get(step.content)
        if denials:
            raise _denial(denials.pop(0))
        return step

    def _refuse(self, step: Made) -> None:
        if self._unfinished[step.content]:
            over = _Over("the recording ends here")
            self.note(over)
            raise over
        missing = left_out([_made(each) for each in self._recording.steps], self._made)
        hint = f"\nRecorded and not made so far:\n  {missing[0]}" if missing else ""
        self.diverge(Divergence(f"this step is not in the recording:\n  {step}{hint}", step.place))

    def _finish(self) -> None:
        inner = _within_others(self._recording.events)
        recorded = [
            _made(step)
            for step in self._recording.steps
            if step.status in (*_REPLAYED, "denied") and step.step_id not in inner
        ]
        missing = left_out(recorded, self._made)
        if missing:
            self.diverge(Divergence(f"this step is in the recording, and was not made:\n  {missing[0]}"))


class RecordedAgent(TracedAgent):
    """Its first attempt records the outcomes anew; the second is the handler's."""

    def __init__(self, agent_id: str, *, recording: Recording, **parts: Any) -> None:
        super().__init__(agent_id, **parts)
        self._recording = recording

    def _traced(self, **parts: Any) -> TracedContext:
        return RecordedContext(recording=self._recording, **parts)

    async def _work(self, execution_id: str, held: Held) -> None:
        if held.lease.attempt == 1:
            for step in self._recording.steps:
                if step.status in _REPLAYED:
                    await self._record(execution_id, held, step)
            await self._again(execution_id)
            return
        try:
            await super()._work(execution_id, held)
        except _Over:
            await self._client().fail_execution(execution_id, lease=held.lease, error="the recording ends here")

    async def _record(self, execution_id: str, held: Held, step: Step) -> None:
        kernel = self._client()
        kind, idempotency = msgspec.convert((step.kind, step.idempotency), tuple[Kind, Idempotency])
        decision = await kernel.submit_step(
            execution_id, lease=held.lease, kind=kind, target=step.target, args=step.args, idempotency=idempotency
        )
        if step.status == "succeeded":
            await kernel.complete_step(execution_id, decision.step_id, lease=held.lease, result=step.result)
        else:
            await kernel.fail_step(execution_id, decision.step_id, lease=held.lease, error=step.error)


def _made(step: Step) -> Made:
    return made(step.kind, step.target, step.args, None)


def _content(step: Step) -> tuple[str, str, str]:
    return _made(step).content


def _denial(step: Step) -> PolicyError:
    error = cast("dict[str, Any]", step.error)
    return PolicyError(str(error.get("reason", "")), str(error.get("rule_id", step.rule_id)))


def _within_others(events: list[Event]) -> set[str]:
    """Return the steps that began and ended while another one ran: they may have been made by its body.

    A replay makes no body run, so it may leave them out.
    """
    begun: dict[str, int] = {}
    spans: dict[str, tuple[int, int]] = {}
    for event in events:
        step_id = event.payload.get("step_id", "") if event.type.startswith("step.") else ""
        if event.type == "step.executing":
            begun.setdefault(step_id, event.event_seq)
        elif event.type in ("step.succeeded", "step.failed"):
            spans[step_id] = (begun.get(step_id, event.event_seq), event.event_seq)
    return {
        inner
        for inner, (begin, end) in spans.items()
        if any(outer_begin < begin and end < outer_end for outer_begin, outer_end in spans.values())
    }
