"""What the OpenAPI document says of each operation. The wire itself is decided elsewhere; a test compares the two."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kernel.door import bodies
from kernel.door.keys import NAME_CHARS_MAX
from schemas import http
from schemas.entries import Idempotency, StepKind
from schemas.scopes import Scope

JsonValue = Any
Key = Annotated[str, Meta(max_length=bodies.KEY_CHARS_MAX)]
Count = Annotated[int, Meta(ge=0)]


TenantId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class UsageSent(msgspec.Struct):
    """Token counts; unknown ones are 0, and the total is input and output together."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    total_tokens: Count = 0
    cached_tokens: Count = 0
    reasoning_tokens: Count = 0


class Settlement(msgspec.Struct):
    """The outcome of a step: exactly one of result and error."""

    step_id: str
    result: JsonValue | UnsetType = UNSET
    error: JsonValue | UnsetType = UNSET
    usage: UsageSent | None = None


Settlements = Annotated[list[Settlement], Meta(max_length=bodies.SETTLE_ITEMS_MAX)]


class CreateExecution(msgspec.Struct):
    agent_id: str
    input: JsonValue = None
    idempotency_key: Key = ""


class SubmitStep(msgspec.Struct):
    kind: StepKind
    target: str
    args: JsonValue = None
    idempotency: Idempotency = "safe_to_retry"
    settle: Settlements = []
    resources: list[str] = []


class CompleteStep(msgspec.Struct):
    result: JsonValue = None
    usage: UsageSent | None = None


class FailStep(msgspec.Struct):
    error: JsonValue


class PublishDelta(msgspec.Struct):
    seq: Annotated[int, Meta(ge=0)]
    data: Annotated[str, Meta(description="up to 64 KiB of UTF-8")]


class CompleteExecution(msgspec.Struct):
    output: JsonValue = None
    state: JsonValue = None
    settle: Settlements = []


class FailExecution(msgspec.Struct):
    error: str
    settle: Settlements = []


class RegisterAgent(msgspec.Struct):
    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}$")]
    webhook_url: str
    secret: str = ""
    next_secret: str = ""
    require_v1: bool | UnsetType = UNSET
    max_concurrency: Annotated[int, Meta(ge=1)] | UnsetType = UNSET


class DescribeAgent(msgspec.Struct):
    description: str | None = None
    input_schema: dict[str, JsonValue] | None = None
    output_schema: dict[str, JsonValue] | None = None


class DecideApproval(msgspec.Struct):
    decided_by: str = ""
    rationale: str = ""


class LoadPolicy(msgspec.Struct):
    bundle: Annotated[str, Meta(description="YAML or JSON, up to 256 KiB; empty: no policy")]


class CreateKey(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
    scopes: Annotated[list[Scope], Meta(min_length=1)]
    tenant: TenantId | UnsetType = UNSET
    expires_at: str = ""


class PutTenant(msgspec.Struct):
    """What is sent of quotas and settings replaces all of them; what is absent stays."""

    id: TenantId
    quotas: http.Quotas | UnsetType = UNSET
    settings: http.TenantSettings | UnsetType = UNSET


class Status(msgspec.Struct):
    status: Literal["ok", "ready", "unavailable"]


class Query(msgspec.Struct, frozen=True):
    """A query value of a list."""

    name: str
    meaning: str
    type: str = "string"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation as the document describes it. `answers` maps success statuses to the type of the body."""

    summary: str
    answers: dict[int, Any]
    refusals: tuple[int, ...] = ()
    body: type[msgspec.Struct] | None = None
    is_body_optional: bool = False
    queries: tuple[Query, ...] = ()
    media_type: str = "application/json"


_LIMIT = Query("limit", "items on one page", "integer")
_CURSOR = Query("cursor", "where the page before ended")


class ExecutionPage(msgspec.Struct):
    executions: list[http.Execution]
    next_cursor: str | UnsetType = UNSET


class Event(msgspec.Struct):
    execution_id: str
    event_seq: Annotated[int, Meta(ge=1)]
    type: str
    payload: dict[str, JsonValue]
    occurred_at: str


OPERATIONS: dict[str, Operation] = {
    "create_execution": Operation(
        summary="Create an execution, which is running from the answer on",
        body=CreateExecution,
        answers={201: http.Execution},
        refusals=(404, 409),
    ),
    "list_executions": Operation(
        summary="List executions, newest first",
        answers={200: ExecutionPage},
        queries=(
            Query("agent_id", "only this agent's"),
            Query("status", "only those in this status"),
            Query("created_after", "RFC 3339, inclusive"),
            Query("created_before", "RFC 3339, exclusive"),
            _CURSOR,
            _LIMIT,
        ),
    ),
    "get_execution": Operation(summary="Read an execution", answers={200: http.Execution}, refusals=(404,)),
    "list_events": Operation(
        summary="Read events of an execution, or wait for the next one",
        answers={200: list[Event]},
        refusals=(404,),
        queries=(
            Query("after_seq", "only events after this number", "integer"),
            _LIMIT,
            Query("wait", "seconds to wait for an event, up to 25", "number"),
        ),
    ),
    "stream_events": Operation(
        summary="Follow the events of an execution, from `Last-Event-ID` or `after_seq` on",
        answers={200: str},
        refusals=(404,),
        queries=(Query("after_seq", "only events after this number", "integer"),),
        media_type="text/event-stream",
    ),
    "stream_deltas": Operation(
        summary="Watch the deltas of running steps, as they are published",
        answers={200: str},
        refusals=(404,),
        media_type="text/event-stream",
    ),
    "cancel_execution": Operation(summary="Cancel an execution", answers={204: None}, refusals=(404, 409)),
    "list_steps": Operation(
        summary="List the steps of an execution by first submission",
        answers={200: list[http.Step]},
        refusals=(404,),
        queries=(Query("status", "a step status, or `terminal`"), _CURSOR, _LIMIT),
    ),
    "get_step": Operation(summary="Read a step", answers={200: http.Step}, refusals=(404,)),
    "submit_step": Operation(
        summary="Submit a step and learn whether to run it",
        body=SubmitStep,
        answers={200: http.StepDecision},
        refusals=(404, 409),
    ),
    "complete_step": Operation(
        summary="Record the result of a step",
        body=CompleteStep,
        is_body_optional=True,
        answers={200: http.OutcomeDecision},
        refusals=(404, 409),
    ),
    "fail_step": Operation(
        summary="Record the error of a step",
        body=FailStep,
        answers={200: http.OutcomeDecision},
        refusals=(404, 409),
    ),
    "publish_delta": Operation(
        summary="Show a piece of a running step to those who watch",
        body=PublishDelta,
        answers={204: None},
        refusals=(404, 409),
    ),
    "heartbeat": Operation(summary="Renew the lease", answers={204: None}, refusals=(404, 409)),
    "complete_execution": Operation(
        summary="End an execution with its output",
        body=CompleteExecution,
        is_body_optional=True,
        answers={204: None},
        refusals=(404, 409),
    ),
    "fail_execution": Operation(
        summary="End an execution with an error", body=FailExecution, answers={204: None}, refusals=(404, 409)
    ),
    "register_agent": Operation(
        summary="Register an agent, or change it", body=RegisterAgent, answers={200: http.Agent, 201: http.Agent}
    ),
    "list_agents": Operation(summary="List agents by id", answers={200: list[http.Agent]}, queries=(_CURSOR, _LIMIT)),
    "get_agent": Operation(summary="Read an agent", answers={200: http.Agent}, refusals=(404,)),
    "delete_agent": Operation(
        summary="Delete an agent without live executions", answers={204: None}, refusals=(404, 409)
    ),
    "describe_agent": Operation(
        summary="Replace what an agent says of itself",
        body=DescribeAgent,
        is_body_optional=True,
        answers={204: None},
        refusals=(404,),
    ),
    "list_approvals": Operation(
        summary="List approvals, oldest first",
        answers={200: list[http.Approval]},
        queries=(
            Query("status", "`pending` if absent; `granted`, `denied`, `expired`, or `all`"),
            Query("agent_id", "only this agent's"),
            Query("execution_id", "only this execution's"),
            _CURSOR,
            _LIMIT,
        ),
    ),
    "get_approval": Operation(summary="Read an approval", answers={200: http.Approval}, refusals=(404,)),
    "grant_approval": Operation(
        summary="Let the step run that waits for an approval",
        body=DecideApproval,
        is_body_optional=True,
        answers={204: None},
        refusals=(404, 409),
    ),
    "deny_approval": Operation(
        summary="Deny the step that waits for an approval",
        body=DecideApproval,
        is_body_optional=True,
        answers={204: None},
        refusals=(404, 409),
    ),
    "load_policy": Operation(
        summary="Replace the policy of an agent", body=LoadPolicy, answers={204: None}, refusals=(404,)
    ),
    "read_policy": Operation(summary="Read the policy of an agent", answers={200: http.Policy}, refusals=(404,)),
    "create_key": Operation(
        summary="Create a bearer key, shown in this answer alone",
        body=CreateKey,
        answers={201: http.Key},
        refusals=(404,),
    ),
    "list_keys": Operation(
        summary="List the keys that were not revoked, by id",
        answers={200: list[http.Key]},
        queries=(Query("tenant", "only this tenant's; for operators"), _CURSOR, _LIMIT),
    ),
    "revoke_key": Operation(summary="Revoke a key", answers={204: None}, refusals=(404,)),
    "put_tenant": Operation(
        summary="Make a tenant, or change it", body=PutTenant, answers={200: http.Tenant, 201: http.Tenant}
    ),
    "list_tenants": Operation(
        summary="List tenants by id", answers={200: list[http.Tenant]}, queries=(_CURSOR, _LIMIT)
    ),
    "health": Operation(summary="Whether the process lives", answers={200: Status}),
    "ready": Operation(summary="Whether requests can be answered", answers={200: Status, 503: Status}),
    "openapi": Operation(summary="This document", answers={200: dict[str, Any]}),
    "docs": Operation(summary="This document as a page", answers={200: str}, media_type="text/html"),
    "metrics": Operation(summary="Metrics for Prometheus", answers={200: str}, media_type="text/plain"),
}
