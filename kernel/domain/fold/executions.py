"""Creation and end of executions."""

from msgspec import UNSET

from kernel.domain.fold.dispatches import check_lease
from kernel.domain.fold.draft import Draft, Position, Records, time_of
from kernel.domain.fold.endings import cancel, complete, fail
from kernel.domain.fold.keys import KEY_CONFLICT, bind_key, first_answer
from kernel.domain.fold.steps import settle
from schemas.answers import AnyAnswer, Created, Done, Ignored, Refusal
from schemas.bodies import body_of
from schemas.entries import (
    DeadlinePassed,
    ExecutionCancelled,
    ExecutionCompleted,
    ExecutionCreated,
    ExecutionFailed,
)
from schemas.events import ExecutionPayload
from schemas.records import CreateKeyRecord, Dispatch, Header


def create(entry: ExecutionCreated, records: Records, position: Position) -> tuple[Draft | None, AnyAnswer]:
    """Make an execution, already running and due for delivery, unless its key made one before."""
    if entry.key is not None:
        known = records.create_key(entry.tenant, entry.key.key)
        if known is not None:
            is_same = known.request == entry.key.request
            return None, Created(known.execution_id, is_replayed=True) if is_same else KEY_CONFLICT
    now = time_of(entry.at, position)
    header = Header(
        execution_id=entry.execution_id,
        tenant=entry.tenant,
        agent_id=entry.agent_id,
        created_by=entry.created_by,
        status="running",
        created_at=now,
        updated_at=now,
        life_ends_at=entry.life_ends_at,
        input=body_of(
            bytes(entry.input),
            seq=position.seq,
            place="input",
            spilled=None if entry.spilled is UNSET else entry.spilled.get("input"),
        ),
        limits=entry.limits,
        dispatch=Dispatch(
            dispatch_id=entry.dispatch_id,
            state="due",
            attempt=0,
            next_attempt=1,
            due_at=now,
            duty_seq=position.seq,
        ),
        idempotency_key=entry.idempotency_key,
        deadline_at=entry.deadline_at,
        field_count=1,
        first_seq=position.seq,
    )
    draft = Draft(header, records, seq=position.seq, now=now)
    draft.put_dispatch(entry.dispatch_id)
    draft.emit("execution.created", ExecutionPayload(status="pending", deadline_at=entry.deadline_at))
    draft.emit("execution.started", ExecutionPayload(status="running"))
    draft.emit_dispatch("dispatch.queued", "pending")
    if entry.key is not None:
        record = CreateKeyRecord(request=entry.key.request, execution_id=entry.execution_id)
        draft.create_key = (entry.key.key, record)
    return draft, Created(entry.execution_id)


def on_ended_by_agent(draft: Draft, entry: ExecutionCompleted | ExecutionFailed) -> AnyAnswer:
    """End the execution as its agent says, after the outcomes that travel with it."""
    first = first_answer(draft, entry.key)
    if first is not None:
        return first
    if draft.header.is_terminal:
        return terminal(draft)
    refusal = check_lease(draft, entry.lease) or settle(draft, entry.settle)
    if refusal is not None:
        return refusal
    if isinstance(entry, ExecutionCompleted):
        state = None if entry.state is UNSET else draft.body(bytes(entry.state), "state")
        complete(draft, output=draft.body(bytes(entry.output), "output"), state=state)
    else:
        fail(draft, entry.error)
    bind_key(draft, entry.key, Done())
    return Done()


def on_cancelled(draft: Draft, _: ExecutionCancelled) -> AnyAnswer:
    if draft.header.is_terminal:
        return terminal(draft)
    cancel(draft, "client_cancelled")
    return Done()


def on_deadline(draft: Draft, entry: DeadlinePassed) -> AnyAnswer:
    """Cancel a live execution at its deadline or at the end of its life, whichever it was that passed."""
    header = draft.header
    if header.is_terminal or entry.due_at not in (header.deadline_at, header.life_ends_at):
        return Ignored()
    cancel(draft, "deadline_exceeded")
    return Done()


def terminal(draft: Draft) -> Refusal:
    return Refusal(
        code="execution_terminal",
        message="the execution has ended",
        detail_name="status",
        detail=draft.header.status,
    )
