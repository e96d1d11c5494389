"""Samples of everything whose bytes others rely on, and the text that stands for each in its golden file.

Text stands as it is, other bytes in hex. A sample is never changed: a new form gets a sample of its own beside it.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from kernel.domain.framing import checksum
from kernel.domain.identity import bucket_of, shard_of, shard_of_create_key
from kernel.domain.signatures import sign_body, sign_request
from kernel.door.fetching import NO_TEXTS
from kernel.door.rendering import event_json
from kernel.log import naming
from kernel.ports import Outgoing, Piece
from kernel.view import keys
from schemas.answers import (
    AnswerBatch,
    AnyAnswer,
    Claimed,
    Created,
    Decided,
    DecidedBefore,
    Done,
    Ignored,
    Recorded,
    Refusal,
    encode_answer,
    encode_batch,
)
from schemas.bodies import Body, Usage
from schemas.control import (
    AgentDeleted,
    AgentDescribed,
    AgentPut,
    AnyControlEntry,
    KeyCreated,
    KeyRevoked,
    PolicySet,
    Quotas,
    SealedSecret,
    ShardsSet,
    TenantPut,
    TenantSettings,
    encode_control,
)
from schemas.entries import encode_entry
from schemas.events import (
    ApprovalPayload,
    DispatchPayload,
    EventRecord,
    ExecutionPayload,
    StepPayload,
    encode_event,
)
from schemas.records import (
    HEADER_FIELD,
    Approval,
    ApprovalRecord,
    BucketRecord,
    CallCounter,
    CreateKeyRecord,
    Dispatch,
    Header,
    KeyRecord,
    StepRecord,
    approval_field,
    bucket_field,
    counter_field,
    dispatch_field,
    encode_record,
    entry_field,
    event_field,
    key_field,
    order_field,
    step_field,
)
from schemas.webhook import WebhookBody, encode_webhook
from tests.golden.entries import (
    AGENT,
    APPROVAL,
    AT,
    DISPATCH,
    ENTRIES,
    ENTRY,
    EXECUTION,
    LEASE,
    LIMITS,
    STEP,
)

SECRET = b"test-secret"
INLINE = Body(json=b'{"a":1.0}', seq=7, place="result", size_bytes=9)
LARGE = Body(json=b"", seq=9, place="settle.2", size_bytes=8193)
DIGEST = bytes(range(16))
SEALED = SealedSecret(key_id="0123456789abcdef", nonce=bytes(range(12)), ciphertext=bytes(range(200, 240)))
_CONTROL: dict[str, Any] = {"id": ENTRY, "at": AT, "by": "api"}
_AGENT: dict[str, Any] = {"tenant": "default", "agent_id": AGENT}

CONTROL: dict[str, AnyControlEntry] = {
    "shards_set": ShardsSet(**_CONTROL, shards=8),
    "agent_put": AgentPut(
        **_CONTROL,
        **_AGENT,
        webhook_url="http://127.0.0.1:9000/hook?x=%20",
        secret=SEALED,
        next_secret=SEALED,
        require_v1=True,
        max_concurrency=64,
    ),
    "agent_put.change": AgentPut(**_CONTROL, **_AGENT, webhook_url="https://agents.example/é"),
    "agent_deleted": AgentDeleted(**_CONTROL, **_AGENT),
    "agent_described": AgentDescribed(
        **_CONTROL, **_AGENT, description="é", input_schema=Raw(b'{"type": "object"}'), output_schema=Raw(b"null")
    ),
    "agent_described.empty": AgentDescribed(
        **_CONTROL, **_AGENT, description=None, input_schema=Raw(b"null"), output_schema=Raw(b"null")
    ),
    "tenant_put": TenantPut(
        **_CONTROL,
        tenant="acme",
        quotas=Quotas(
            requests_per_second=100, creates_per_second=10, live_executions=500, bytes_per_day=10**12, log_bytes=10**13
        ),
        settings=TenantSettings(no_policy="deny", retention_seconds=86_400),
    ),
    "tenant_put.empty": TenantPut(**_CONTROL, tenant="acme", quotas=Quotas(), settings=TenantSettings()),
    "tenant_put.absent": TenantPut(**_CONTROL, tenant="acme"),
    "key_created": KeyCreated(
        **_CONTROL,
        tenant="acme",
        key_id=EXECUTION,
        name="nightly é",
        scopes=("executions:read", "tenant:admin"),
        hash=bytes(range(32)),
        expires_at=AT + 1,
    ),
    "key_created.lasting": KeyCreated(
        **_CONTROL, tenant="acme", key_id=EXECUTION, name="ops", scopes=("operator",), hash=bytes(range(32))
    ),
    "key_revoked": KeyRevoked(**_CONTROL, tenant="acme", key_id=EXECUTION),
    "policy_set": PolicySet(**_CONTROL, **_AGENT, bundle="default_action: deny\nrules: []  # é\n"),
    "policy_set.removed": PolicySet(**_CONTROL, **_AGENT, bundle=""),
}

ANSWERS: dict[str, AnyAnswer] = {
    "created": Created(EXECUTION),
    "created.replayed": Created(EXECUTION, is_replayed=True),
    "decided.proceed": Decided("proceed", step_id=STEP, rule_id="permissive"),
    "decided.replay": Decided("replay", step_id=STEP, result=INLINE, is_replayed=True),
    "decided.replay.error": Decided("replay", step_id=STEP, error=LARGE),
    "decided.denied": Decided("denied", step_id=STEP, reason="no", rule_id="default"),
    "decided.rate_limited": Decided("rate_limited", reason="rate_limit_exceeded", rule_id="r"),
    "decided.blocked": Decided("blocked", step_id=STEP, approval_id=APPROVAL, rule_id="r"),
    "decided.execution_blocked": Decided("execution_blocked"),
    "decided.execution_terminal": Decided("execution_terminal"),
    "recorded": Recorded("recorded"),
    "recorded.replay": Recorded("replay", result=INLINE, error=None, is_replayed=True),
    "recorded.execution_terminal": Recorded("execution_terminal"),
    "done": Done(),
    "done.replayed": Done(is_replayed=True),
    "claimed": Claimed(claimed_by="dispatcher0001.a1b2c3d4"),
    "refusal": Refusal("conflict", "the step is not executing"),
    "refusal.detailed": Refusal("execution_terminal", "the execution has ended", "status", "failed"),
    "decided_before": DecidedBefore("denied", "boss", AT),
    "ignored": Ignored(),
}


def _step(**more: Any) -> StepPayload:
    return StepPayload(step_id=STEP, step_type="tool_call", target="web_search", **more)


def _dispatch(status: Any, attempt: int, **more: Any) -> DispatchPayload:
    return DispatchPayload(dispatch_id=DISPATCH, status=status, attempt=attempt, **more)


def _approval(status: Any, **more: Any) -> ApprovalPayload:
    return ApprovalPayload(approval_id=APPROVAL, step_id=STEP, status=status, **more)


_VERDICT: dict[str, Any] = {"rule_id": "permissive", "policy_version": 0}
_PAYLOADS: dict[Any, Any] = {
    "execution.created": ExecutionPayload("pending", deadline_at=AT + 1),
    "execution.started": ExecutionPayload("running"),
    "execution.blocked": ExecutionPayload("blocked"),
    "execution.resumed": ExecutionPayload("running"),
    "execution.completed": ExecutionPayload("completed", output=INLINE),
    "execution.failed": ExecutionPayload("failed", reason="tool_error: é"),
    "execution.cancelled": ExecutionPayload("cancelled", reason="client_cancelled"),
    "step.proposed": _step(),
    "step.allowed": _step(**_VERDICT),
    "step.awaiting_approval": _step(**_VERDICT),
    "step.denied": _step(**_VERDICT, error=INLINE),
    "step.executing": _step(),
    "step.succeeded": _step(),
    "step.failed": _step(error=INLINE),
    "step.cancelled": _step(error=INLINE),
    "approval.requested": _approval("pending"),
    "approval.granted": _approval("granted", decided_by="ann", asserted_by="api", rationale="fine"),
    "approval.denied": _approval("denied", decided_by="ann", rationale=""),
    "approval.expired": _approval("expired", rationale="timeout"),
    "dispatch.queued": _dispatch("pending", 0),
    "dispatch.acked": _dispatch("acked", 1),
    "dispatch.failed": _dispatch("failed", 2, reason="http_503"),
    "dispatch.discarded": _dispatch("exhausted", 5),
}
EVENTS: dict[str, EventRecord] = {
    name: EventRecord(type=name, at=AT, payload=payload) for name, payload in _PAYLOADS.items()
}

HEADER = Header(
    execution_id=EXECUTION,
    tenant="default",
    agent_id=AGENT,
    created_by="api",
    status="blocked",
    created_at=AT,
    updated_at=AT + 1,
    life_ends_at=AT + 2,
    input=INLINE,
    limits=LIMITS,
    dispatch=Dispatch(DISPATCH, "waiting", 2, 3, AT + 3, 11, 1, AT + 4, AT + 5),
    idempotency_key="nightly",
    deadline_at=AT + 6,
    completed_at=AT + 7,
    output=LARGE,
    state=INLINE,
    failure_reason="é",
    usage=Usage(1, 2, 3, 4, 5),
    lease=LEASE,
    is_lease_acknowledged=True,
    claimed_by="dispatcher",
    claims=2,
    renewed_seq=8,
    open_steps=(STEP,),
    approval=Approval(APPROVAL, STEP, AT + 8),
    step_count=3,
    event_count=4,
    entry_count=5,
    field_count=6,
    first_seq=7,
    last_seq=12,
    chain=bytes(range(32)),
    halted="the entry cannot be decoded",
    is_lease_over=True,
    awaited=(STEP,),
)
RECORDS: dict[str, Any] = {
    "header": HEADER,
    "step": StepRecord(
        step_id=STEP,
        ordinal=1,
        kind="llm_call",
        target="gpt",
        args_hash="a" * 64,
        occurrence=2,
        status="failed",
        idempotency="at_most_once",
        args=LARGE,
        rule_id="permissive",
        policy_version=3,
        result=None,
        error=INLINE,
        usage=Usage(1, 2, 3, 4, 5),
        reason="no",
        approval_id=APPROVAL,
        started_at=AT,
        completed_at=AT + 1,
    ),
    "counter": CallCounter(claims=2, uses=3, is_indeterminate=True),
    "key": KeyRecord(request=DIGEST, claims=2, answer=ANSWERS["decided.proceed"]),
    "approval": ApprovalRecord(
        approval_id=APPROVAL,
        step_id=STEP,
        target="rm",
        rule_id="ask-first",
        status="denied",
        approvers=("boss", "deputy"),
        message="sure?",
        separate_requester=True,
        created_at=AT,
        timeout_at=AT + 1,
        decided_by="boss",
        asserted_by="api",
        rationale="not on a Friday",
        decided_at=AT + 2,
    ),
    "bucket": BucketRecord(parts=12, at=AT),
    "create_key": CreateKeyRecord(request=DIGEST, execution_id=EXECUTION),
}
FIELDS: dict[str, bytes] = {
    "header": HEADER_FIELD,
    "step": step_field(STEP),
    "order": order_field(12),
    "counter": counter_field(DIGEST),
    "key": key_field(DIGEST),
    "approval": approval_field(APPROVAL),
    "bucket": bucket_field(DIGEST),
    "event": event_field(12),
    "dispatch": dispatch_field(DISPATCH),
    "entry": entry_field(12),
}
WEBHOOK = WebhookBody(
    execution_id=EXECUTION, dispatch_id=DISPATCH, dispatch_attempt=2, lease_timeout_seconds=120, sent_at=AT // 10**6
)


def _webhook() -> dict[str, str]:
    body = encode_webhook(WEBHOOK)
    return {"body": body.decode(), "signature": sign_body(SECRET, body)}


def _signatures() -> dict[str, str]:
    """The recipe of the contract's vectors, over a body that the vectors do not hold."""
    body = b'{"kind":"local","target":"now","settle":[{"step_id":"' + STEP.encode() + b'","result":null}]}'
    fields: dict[str, Any] = {"timestamp": str(AT // 10**6), "dispatch_id": DISPATCH, "attempt": "2", "body": body}
    target = f"/v0/executions/{EXECUTION}/steps"
    return {"v1": sign_request(SECRET, method="POST", target=target, **fields), "sha256": sign_body(SECRET, body)}


def _log_names() -> dict[str, str]:
    """How an entry lies in the broker: stream, subject, headers with the checksum, and the shard it goes to."""
    outgoing = Outgoing(3, "default", EXECUTION, ENTRY, '{"é":1}'.encode(), "door0001")
    headers = naming.entry_headers(outgoing)
    return {
        "control.stream": naming.CONTROL_STREAM,
        "marks.stream": naming.MARKS_STREAM,
        "marks.subject": naming.mark_subject(3),
        "control.subject": naming.CONTROL_SUBJECT,
        "stream": naming.stream_name(3),
        "stream.subjects": naming.stream_subjects(3),
        "subject": naming.entry_subject(3, "default", EXECUTION),
        **{f"header.{name}": text for name, text in headers.items()},
        "checksum.empty": checksum(tenant="acme", execution_id=EXECUTION, entry_id=ENTRY, payload=b""),
        "shard.of_8": str(shard_of(EXECUTION, 8)),
        "shard.of_create_key": str(shard_of_create_key("default", "nightly", 8)),
        "bucket": str(bucket_of(EXECUTION)),
        "bodies.stream": naming.bodies_stream(3),
        "bodies.stream.subjects": naming.bodies_subjects(3),
        "bodies.subject": naming.piece_subject(3, "default", EXECUTION),
        "bodies.header.Nats-Msg-Id": naming.as_message(Piece(3, "default", EXECUTION, ENTRY, b"x")).entry_id,
    }


def _view_keys() -> dict[str, str]:
    """The keys that doors, projectors and dispatchers of neighbouring versions have to agree on."""
    shard = keys.shard_keys(3)
    return {
        "execution": keys.execution_key(3, "default", EXECUTION),
        "list": keys.list_key(3, "default"),
        "list.agent.status": keys.list_key(3, "default", agent_id=AGENT, status="running"),
        "live": keys.live_key(3, "default", AGENT),
        "approvals": keys.approvals_key(3, "default"),
        "approvals.status": keys.approvals_key(3, "default", status="pending"),
        "approvals.agent.status": keys.approvals_key(3, "default", status="pending", agent_id=AGENT),
        "approvals.execution.status": keys.approvals_key(3, "default", status="pending", execution_id=EXECUTION),
        "approvals.member": keys.approval_member(APPROVAL, EXECUTION, AGENT),
        "create_keys": keys.create_keys_key(3, "default"),
        "directory": keys.directory_key(3, EXECUTION),
        "directory.value": keys.directory_value("default", AGENT),
        "answers": keys.answers_key(3, 7),
        "due.member": keys.due_member("lease", keys.place("default", EXECUTION, AGENT)),
        "due.approval": keys.due_member("approval", keys.place("default", EXECUTION, AGENT)),
        **{f"shard.{name}": getattr(shard, name) for name in ("owner", "watermark", "dirty", "floor", "due", "leases")},
    }


def _hex(samples: Mapping[str, bytes]) -> dict[str, str]:
    return {name: content.hex() for name, content in samples.items()}


_BATCH = AnswerBatch(shard=3, watermark_seq=12, answers=((ENTRY, encode_answer(Done())),))

PINNED: dict[str, dict[str, str]] = {
    "entries_v1.txt": {name: encode_entry(entry).decode() for name, entry in ENTRIES.items()},
    "control_v1.txt": {name: encode_control(entry).decode() for name, entry in CONTROL.items()},
    "answers_v1.txt": _hex(
        {name: encode_answer(answer) for name, answer in ANSWERS.items()} | {"batch": encode_batch(_BATCH)}
    ),
    "events_v1.txt": _hex({name: encode_event(event) for name, event in EVENTS.items()}),
    "events_wire.txt": {name: event_json(EXECUTION, 12, event, NO_TEXTS).decode() for name, event in EVENTS.items()},
    "records_v1.txt": _hex({name: encode_record(record) for name, record in RECORDS.items()}),
    "fields_v1.txt": _hex(FIELDS),
    "webhook.txt": _webhook(),
    "signatures.txt": _signatures(),
    "log_names.txt": _log_names(),
    "view_keys.txt": _view_keys(),
}
"""Golden files by name, and in each the samples by name."""
