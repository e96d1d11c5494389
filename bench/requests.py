"""The requests of the measures as bytes, signed beforehand, so that a load costs its sender next to nothing."""

import hashlib
import json
import time
from collections.abc import Sequence

import msgspec

from bench.connections import Connection
from kernel.domain.canonical import args_hash
from kernel.domain.identity import step_id
from kernel.domain.json_values import read_object
from kernel.domain.signatures import sign_request
from schemas.entries import Lease

SECRET = b"a secret of the agents of the measures"
KIND = "tool_call"
TARGET = "weather.lookup"
QUESTION = {"question": "what is the weather like tomorrow?"}
RESULT = b'{"temperature": 17.5, "wind": {"speed": 12, "direction": "NNE"}, "summary": "clear with some clouds"}'


class Held(msgspec.Struct, frozen=True):
    """An execution that the measures may submit to: its agent and its lease."""

    agent_id: str
    execution_id: str
    lease: Lease


def arguments(number: int) -> bytes:
    """Return the args of the n-th call: about a hundred bytes, as an agent's library writes them."""
    return (
        b'{"query": "weather in Z\xc3\xbcrich on day %d", "limit": 10, "units": "metric", "fields": ["temp", "wind"]}'
        % (number)
    )


def call_hash(number: int) -> str:
    """Return what the door makes of the n-th call's args."""
    return args_hash(read_object(b'{"args":%b}' % arguments(number)).fields["args"].canonical)


def step_of(execution_id: str, number: int) -> str:
    """Return the id of the n-th call's step, where the call was made once."""
    return step_id(execution_id, KIND, TARGET, call_hash(number), 0)


def submit(held: Held, number: int, *, settles: str = "") -> bytes:
    """Return the submission of the n-th call; `settles` is the step whose outcome travels with it."""
    settle = b', "settle": [{"step_id": "%b", "result": %b}]' % (settles.encode(), RESULT) if settles else b""
    body = b'{"kind": "%b", "target": "%b", "args": %b, "idempotency": "safe_to_retry"%b}' % (
        KIND.encode(),
        TARGET.encode(),
        arguments(number),
        settle,
    )
    return signed(held, f"/v0/executions/{held.execution_id}/steps", body)


def delegated(held: Held, number: int, *, token: str, api_key: str) -> bytes:
    """Return the submission of the n-th LLM call as a gateway makes it: by a token of the agent's, under a key."""
    body = (
        b'{"kind":"llm_call","target":"m","args":{"model":"m","stream":true,"n":%d,"events":3,"gap_ms":5},'
        b'"idempotency":"safe_to_retry"}' % number
    )
    return _post(
        f"/v0/executions/{held.execution_id}/steps",
        body,
        f"Authorization: Bearer {api_key}",
        f"Rebuno-Agent-Id: {held.agent_id}",
        f"Rebuno-Delegation: {token}",
        f"Rebuno-Dispatch-Id: {held.lease.dispatch_id}",
        f"Rebuno-Dispatch-Attempt: {held.lease.attempt}",
        f"Idempotency-Key: gateway-{hashlib.sha256(body).hexdigest()}-0",
    )


def refused(held: Held, number: int) -> bytes:
    """Return a submission whose kind does not exist: the last thing that the door looks at before the log."""
    body = b'{"kind": "none", "target": "%b", "args": %b, "idempotency": "safe_to_retry"}' % (
        TARGET.encode(),
        arguments(number),
    )
    return signed(held, f"/v0/executions/{held.execution_id}/steps", body)


def signed(held: Held, target: str, body: bytes) -> bytes:
    """Return a POST that the agent signs now, good for five minutes."""
    timestamp, attempt = str(int(time.time())), str(held.lease.attempt)
    signature = sign_request(
        SECRET,
        method="POST",
        target=target,
        timestamp=timestamp,
        dispatch_id=held.lease.dispatch_id,
        attempt=attempt,
        body=body,
    )
    return _post(
        target,
        body,
        f"Rebuno-Agent-Id: {held.agent_id}",
        f"Rebuno-Signature: {signature}",
        f"Rebuno-Timestamp: {timestamp}",
        f"Rebuno-Dispatch-Id: {held.lease.dispatch_id}",
        f"Rebuno-Dispatch-Attempt: {attempt}",
    )


def register(api_key: str, agent_id: str, webhook_url: str) -> bytes:
    return post_request(api_key, "/v0/agents", {"id": agent_id, "webhook_url": webhook_url, "secret": SECRET.decode()})


def create(api_key: str, agent_id: str, given: object = QUESTION) -> bytes:
    return post_request(api_key, "/v0/executions", {"agent_id": agent_id, "input": given})


def put_tenant(operator_key: str, tenant: str, **quotas: int) -> bytes:
    return post_request(operator_key, "/v0/tenants", {"id": tenant, "quotas": quotas})


async def make_key(connection: Connection, operator_key: str, tenant: str) -> str:
    """Make a bearer key for a tenant's executions and agents."""
    document = {"name": "bench", "tenant": tenant, "scopes": ["executions:read", "executions:write", "agents:admin"]}
    return json.loads(await connection.exchange(post_request(operator_key, "/v0/keys", document)))["key"]


def post_request(key: str, target: str, document: object) -> bytes:
    return _post(target, json.dumps(document).encode(), f"Authorization: Bearer {key}")


def get_request(key: str, target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\r\n".encode()


def _post(target: str, body: bytes, *headers: str) -> bytes:
    lines: Sequence[str] = (
        f"POST {target} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    )
    return "\r\n".join((*lines, "", "")).encode() + body
