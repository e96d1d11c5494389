"""Records and answers as HTTP bodies. Pure: whatever has to be fetched was fetched before."""

from collections.abc import Sequence

from msgspec import UNSET, Raw, UnsetType

from kernel.control.agents import Agent
from kernel.door.exchange import REPLAYED, Response
from kernel.door.fetching import Texts
from kernel.ports import ListedApproval
from schemas import http
from schemas.answers import Decided, Recorded
from schemas.bodies import Body
from schemas.events import (
    ApprovalPayload,
    DispatchPayload,
    Event,
    EventRecord,
    ExecutionPayload,
    StepPayload,
    WirePayload,
)
from schemas.http import encode_http, rfc3339
from schemas.records import Header, StepRecord

NEXT_CURSOR = b"rebuno-next-cursor"


def replayed_headers(is_replayed: bool) -> tuple[tuple[bytes, bytes], ...]:
    return REPLAYED if is_replayed else ()


# ---------------------------------------------------------------- answers


def decision_response(answer: Decided, texts: Texts) -> Response:
    """Return the decision on a submission; members that do not apply are left out."""
    body = http.StepDecision(
        decision=answer.decision,
        step_id=answer.step_id or UNSET,
        result=_present(answer.result, texts),
        error=_present(answer.error, texts),
        approval_id=answer.approval_id or UNSET,
        reason=answer.reason or UNSET,
        rule_id=answer.rule_id or UNSET,
    )
    return Response(status=200, body=encode_http(body), headers=replayed_headers(answer.is_replayed))


def outcome_response(answer: Recorded, texts: Texts) -> Response:
    """Return the fate of a step's outcome."""
    body = http.OutcomeDecision(
        decision=answer.decision, result=_present(answer.result, texts), error=_present(answer.error, texts)
    )
    return Response(status=200, body=encode_http(body), headers=replayed_headers(answer.is_replayed))


def _present(body: Body | None, texts: Texts) -> Raw | UnsetType:
    return UNSET if body is None else texts.raw(body)


# ---------------------------------------------------------------- records


def execution_bodies(header: Header) -> tuple[Body | None, ...]:
    """Return the bodies that an Execution shows."""
    return (header.input, header.output)


def execution_json(header: Header, texts: Texts) -> bytes:
    return encode_http(
        http.Execution(
            id=header.execution_id,
            agent_id=header.agent_id,
            created_by=header.created_by,
            input=texts.raw(header.input),
            status=header.status,
            output=texts.raw(header.output),
            failure_reason=header.failure_reason,
            usage=header.usage,
            created_at=rfc3339(header.created_at),
            updated_at=rfc3339(header.updated_at),
            deadline_at=_time(header.deadline_at),
            completed_at=_time(header.completed_at),
            idempotency_key=header.idempotency_key,
        )
    )


def step_bodies(step: StepRecord) -> tuple[Body | None, ...]:
    """Return the bodies that a Step shows."""
    return (step.args, step.result, step.error)


def step_json(execution_id: str, step: StepRecord, texts: Texts) -> bytes:
    return encode_http(
        http.Step(
            step_id=step.step_id,
            execution_id=execution_id,
            kind=step.kind,
            target=step.target,
            args_hash=step.args_hash,
            occurrence=step.occurrence,
            status=step.status,
            idempotency=step.idempotency,
            args=texts.raw(step.args),
            result=texts.raw(step.result),
            error=texts.raw(step.error),
            usage=step.usage,
            rule_id=step.rule_id,
            policy_version=step.policy_version,
            started_at=_time(step.started_at),
            completed_at=_time(step.completed_at),
        )
    )


def approval_json(approval: ListedApproval) -> bytes:
    record = approval.record
    return encode_http(
        http.Approval(
            id=record.approval_id,
            step_id=record.step_id,
            execution_id=approval.execution_id,
            agent_id=approval.agent_id,
            target=record.target,
            rule_id=record.rule_id,
            status=record.status,
            approvers=record.approvers,
            message=record.message,
            timeout_at=rfc3339(record.timeout_at),
            decided_by=record.decided_by,
            asserted_by=record.asserted_by,
            rationale=record.rationale,
            created_at=rfc3339(record.created_at),
            decided_at=_time(record.decided_at),
        )
    )


def agent_json(agent: Agent) -> bytes:
    """Return an agent without its secrets."""
    return encode_http(
        http.Agent(
            id=agent.agent_id,
            webhook_url=agent.webhook_url,
            require_v1=agent.require_v1,
            max_concurrency=agent.max_concurrency,
            policy_version=agent.policy_version,
            description=agent.description,
            input_schema=Raw(agent.input_schema),
            output_schema=Raw(agent.output_schema),
            registered_at=rfc3339(agent.registered_at),
            updated_at=rfc3339(agent.updated_at),
        )
    )


def _time(at: int | None) -> str | UnsetType:
    return UNSET if at is None else rfc3339(at)


# ---------------------------------------------------------------- events


def event_bodies(event: EventRecord) -> tuple[Body | None, ...]:
    """Return the bodies that an event shows."""
    payload = event.payload
    if isinstance(payload, ExecutionPayload):
        return (payload.output,)
    return (payload.error,) if isinstance(payload, StepPayload) else ()


def event_json(execution_id: str, event_seq: int, event: EventRecord, texts: Texts) -> bytes:
    return encode_http(
        Event(
            execution_id=execution_id,
            event_seq=event_seq,
            type=event.type,
            payload=Raw(encode_http(_payload(execution_id, event, texts))),
            occurred_at=rfc3339(event.at),
        )
    )


def _payload(execution_id: str, event: EventRecord, texts: Texts) -> WirePayload:
    """Return the members that the event's family has."""
    payload = event.payload
    match payload:
        case ExecutionPayload():
            return WirePayload(
                execution_id=execution_id,
                status=payload.status,
                output=_present(payload.output, texts),
                reason=_word(payload.reason),
                deadline_at=_time(payload.deadline_at),
            )
        case StepPayload():
            return WirePayload(
                step_id=payload.step_id,
                step_type=payload.step_type,
                target=payload.target,
                rule_id=_word(payload.rule_id),
                policy_version=UNSET if payload.policy_version is None else payload.policy_version,
                error=_present(payload.error, texts),
            )
        case ApprovalPayload():
            return WirePayload(
                execution_id=execution_id,
                step_id=payload.step_id,
                approval_id=payload.approval_id,
                status=payload.status,
                decided_by=_word(payload.decided_by),
                asserted_by=_word(payload.asserted_by),
                rationale=_word(payload.rationale),
            )
        case DispatchPayload():
            return WirePayload(
                execution_id=execution_id,
                dispatch_id=payload.dispatch_id,
                status=payload.status,
                attempt=payload.attempt,
                reason=_word(payload.reason),
            )


def _word(text: str | None) -> str | UnsetType:
    return UNSET if text is None else text


# ---------------------------------------------------------------- lists


def array_response(rendered: Sequence[bytes], *, next_cursor: str) -> Response:
    """Return a bare array, with the header that says more is there."""
    headers = ((NEXT_CURSOR, next_cursor.encode()),) if next_cursor else ()
    return Response(status=200, body=b"[" + b",".join(rendered) + b"]", headers=headers)
