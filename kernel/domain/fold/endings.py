"""The ends of an execution: completed, failed, cancelled, and the close of whatever was still open."""

from typing import Literal

from msgspec.structs import replace

from kernel.domain.fold.approvals import close_pending
from kernel.domain.fold.draft import Draft
from schemas.bodies import Body, reason_body
from schemas.events import EventType, ExecutionPayload

Ending = Literal["completed", "failed", "cancelled"]
_EVENT: dict[Ending, EventType] = {
    "completed": "execution.completed",
    "failed": "execution.failed",
    "cancelled": "execution.cancelled",
}


def complete(draft: Draft, *, output: Body, state: Body | None) -> None:
    draft.header.output = output
    draft.header.state = state
    end(draft, "completed", reason="", output=output)


def fail(draft: Draft, reason: str) -> None:
    end(draft, "failed", reason=reason, output=None)


def cancel(draft: Draft, reason: str) -> None:
    end(draft, "cancelled", reason=reason, output=None)


def end(draft: Draft, ending: Ending, *, reason: str, output: Body | None) -> None:
    """Make the execution terminal and close the rest in the same transition. Nothing follows it, ever."""
    header = draft.header
    header.status = ending
    header.failure_reason = reason
    header.completed_at = draft.now
    is_completed = ending == "completed"
    draft.emit(
        _EVENT[ending],
        ExecutionPayload(status=ending, reason=None if is_completed else reason, output=output),
    )
    close(draft, f"execution_{ending}")


def close(draft: Draft, reason: str) -> None:
    """Expire the pending approval, cancel every open step by first submission, then let go of the dispatch.

    Only a dispatch that somebody would still deliver is discarded aloud; every other retires silently.
    """
    close_pending(draft, reason)
    error = reason_body(draft.seq, reason)
    for step_id in draft.header.open_steps:
        step = draft.known_step(step_id)
        draft.steps[step_id] = replace(step, status="cancelled", error=error, completed_at=draft.now)
        draft.emit_step("step.cancelled", step, error=error)
    draft.header.open_steps = ()
    draft.header.awaited = ()
    if draft.header.dispatch.state in ("due", "waiting", "held"):
        draft.emit_dispatch("dispatch.discarded", "exhausted")
    draft.header.dispatch = replace(draft.header.dispatch, state="retired")
