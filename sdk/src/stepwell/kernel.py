"""The kernel as an agent sees it: its steps, its lease and the end of its execution, all signed."""

import os
import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from stepwell import signing
from stepwell.errors import Terminated
from stepwell.exchange import Answer, Call, Exchange
from stepwell.signing import Lease, Scheme, sign_request
from stepwell.types import Execution, StepDecision
from stepwell.values import encode, read

DEFAULT_URL = "http://localhost:8080"
TIMEOUT_SECONDS = 35.0
GIVE_UP_SECONDS = 120.0
"""How long a request is repeated where its caller names no other time: a lease."""
KEY_BYTES = 16
DELEGATION_SECONDS = 12 * 3600
"""How long a token for a gateway is good. With its attempt it ends in any case."""
HEARTBEAT_SECONDS_MAX = 20.0
"""A heartbeat that found no answer by then is followed by the next one."""

Idempotency = Literal["safe_to_retry", "at_most_once"]
Kind = Literal["tool_call", "llm_call", "local"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a step ended. `member` is `result` or `error`, with its JSON."""

    step_id: str
    member: Literal["result", "error"]
    json: bytes


class AgentCredentials:
    """Signs requests as an agent. The lease goes along where one is held."""

    def __init__(self, agent_id: str, secret: str, scheme: Scheme = "v1") -> None:
        self.agent_id = agent_id
        self._secret = secret
        self._scheme: Scheme = scheme

    def headers(self, call: Call, target: str) -> dict[str, str]:
        lease = call.lease if isinstance(call, LeasedCall) else None
        timestamp = int(time.time())
        headers = {
            "Rebuno-Agent-Id": self.agent_id,
            "Rebuno-Timestamp": str(timestamp),
            "Rebuno-Signature": sign_request(
                self._secret,
                method=call.method,
                target=target,
                timestamp=timestamp,
                lease=lease,
                body=call.body,
                scheme=self._scheme,
            ),
        }
        if lease is not None:
            headers["Rebuno-Dispatch-Id"] = lease.dispatch_id
            headers["Rebuno-Dispatch-Attempt"] = str(lease.attempt)
        return headers

    def delegation(self, execution_id: str, lease: Lease) -> str:
        """Return a token that lets a gateway act in this attempt."""
        return signing.delegation(
            self._secret,
            agent_id=self.agent_id,
            execution_id=execution_id,
            lease=lease,
            expires_at=int(time.time()) + DELEGATION_SECONDS,
        )


class LeasedCall(Call, frozen=True, kw_only=True):
    """A request under a lease."""

    lease: Lease


class KernelClient:
    """One agent's access to its kernel, on one event loop. Several addresses are doors of one kernel."""

    def __init__(
        self,
        *,
        agent_id: str,
        secret: str,
        base_url: str | Sequence[str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        scheme: Scheme = "v1",
        exchange: Exchange | None = None,
    ) -> None:
        """`exchange` is one that acts for the agent by itself; then nothing is signed here."""
        self._credentials = AgentCredentials(agent_id, secret, scheme)
        self._exchange = exchange or Exchange(
            addresses(base_url), credentials=self._credentials, timeout_seconds=timeout
        )
        self._agent_id = agent_id

    async def close(self) -> None:
        await self._exchange.close()

    def delegation(self, execution_id: str, lease: Lease) -> str:
        """Return a token that lets a gateway act in this attempt, for `DELEGATION_SECONDS` at most."""
        return self._credentials.delegation(execution_id, lease)

    # ------------------------------------------------------------ executions

    async def get_execution(self, execution_id: str, *, give_up_seconds: float = GIVE_UP_SECONDS) -> Execution:
        raw = await self._exchange.send(
            Call(method="GET", path=f"/v0/executions/{execution_id}"), give_up_seconds=give_up_seconds
        )
        return read(raw, Execution)

    async def complete_execution(
        self,
        execution_id: str,
        *,
        lease: Lease,
        output: Any,
        state: Any = None,
        settle: Sequence[Outcome] = (),
        give_up_seconds: float = GIVE_UP_SECONDS,
    ) -> None:
        """End the execution with an output. Raises Terminated where it has ended already."""
        members = [("output", encode(output, what="output"))]
        if state is not None:
            members.append(("state", encode(state, what="state")))
        await self._change(execution_id, "/complete", lease, members, settle, give_up_seconds)

    async def fail_execution(
        self,
        execution_id: str,
        *,
        lease: Lease,
        error: str,
        settle: Sequence[Outcome] = (),
        give_up_seconds: float = GIVE_UP_SECONDS,
    ) -> None:
        """End the execution with a reason. Raises Terminated where it has ended already."""
        members = [("error", encode(error, what="error"))]
        await self._change(execution_id, "/fail", lease, members, settle, give_up_seconds)

    # ------------------------------------------------------------ steps

    async def submit_step(
        self,
        execution_id: str,
        *,
        lease: Lease,
        kind: Kind,
        target: str,
        args: Any,
        idempotency: Idempotency = "safe_to_retry",
        settle: Sequence[Outcome] = (),
        give_up_seconds: float = GIVE_UP_SECONDS,
        key: str = "",
    ) -> StepDecision:
        """Ask whether a step may happen. Outcomes of earlier steps travel along, and are durable before the decision.

        Submissions under one key are one step in this attempt; without one each is a step of its own. Raises TypeError,
        before anything is sent, where JSON cannot carry the arguments.
        """
        members = [
            ("kind", encode(kind, what="kind")),
            ("target", encode(target, what="target")),
            ("args", encode(args, what="args")),
            ("idempotency", encode(idempotency, what="idempotency")),
        ]
        answer = await self._change(execution_id, "/steps", lease, members, settle, give_up_seconds, key=key)
        decision = read(answer.body, StepDecision)
        # After a try that may have happened, the earlier submission may well have been this one.
        is_repeat = answer.headers.get("Idempotent-Replayed") == "true" and not answer.is_doubtful
        return msgspec.structs.replace(decision, is_repeat=True) if is_repeat else decision

    async def complete_step(
        self, execution_id: str, step_id: str, *, lease: Lease, result: Any, give_up_seconds: float = GIVE_UP_SECONDS
    ) -> None:
        """Record a result. The first outcome of a step is kept; a later one changes nothing."""
        outcome = Outcome(step_id=step_id, member="result", json=encode(result, what="result"))
        await self.record(execution_id, outcome, lease=lease, give_up_seconds=give_up_seconds)

    async def fail_step(
        self, execution_id: str, step_id: str, *, lease: Lease, error: Any, give_up_seconds: float = GIVE_UP_SECONDS
    ) -> None:
        """Record an error, any JSON value but null."""
        outcome = Outcome(step_id=step_id, member="error", json=encode(error, what="error"))
        await self.record(execution_id, outcome, lease=lease, give_up_seconds=give_up_seconds)

    async def record(
        self, execution_id: str, outcome: Outcome, *, lease: Lease, give_up_seconds: float = GIVE_UP_SECONDS
    ) -> StepDecision:
        """Record an outcome by a request of its own. Raises Terminated where the execution has ended.

        Return `recorded`, or `replay` with the outcome that was there before.
        """
        verb = "complete" if outcome.member == "result" else "fail"
        answer = await self._change(
            execution_id,
            f"/steps/{outcome.step_id}/{verb}",
            lease,
            [(outcome.member, outcome.json)],
            (),
            give_up_seconds,
        )
        decision = read(answer.body, StepDecision)
        if decision.decision == "execution_terminal":
            raise Terminated("the execution has ended")
        return decision

    async def publish_delta(self, execution_id: str, step_id: str, *, lease: Lease, seq: int, data: str) -> None:
        """Show a piece of a running step to those who watch: tried once, up to 64 KiB."""
        members = [("seq", encode(seq, what="seq")), ("data", encode(data, what="data"))]
        path = f"/v0/executions/{execution_id}/steps/{step_id}/stream"
        call = LeasedCall(method="POST", path=path, body=_object(members), lease=lease)
        await self._exchange.send(call, give_up_seconds=0)

    async def heartbeat(
        self, execution_id: str, *, lease: Lease, give_up_seconds: float = HEARTBEAT_SECONDS_MAX
    ) -> None:
        """Let the lease run anew. Raises LeaseSuperseded where it is not current any more."""
        call = LeasedCall(method="POST", path=f"/v0/executions/{execution_id}/heartbeat", lease=lease)
        await self._exchange.send(call, give_up_seconds=give_up_seconds)

    async def set_metadata(
        self, *, description: str | None, input_schema: dict[str, Any] | None, output_schema: dict[str, Any] | None
    ) -> None:
        """Say what the agent is, what it takes and what it returns."""
        members = [
            ("description", encode(description, what="description")),
            ("input_schema", encode(input_schema, what="input_schema")),
            ("output_schema", encode(output_schema, what="output_schema")),
        ]
        call = Call(method="PUT", path=f"/v0/agents/{self._agent_id}/metadata", body=_object(members))
        await self._exchange.send(call, give_up_seconds=GIVE_UP_SECONDS)

    async def _change(
        self,
        execution_id: str,
        path: str,
        lease: Lease,
        members: list[tuple[str, bytes]],
        settle: Sequence[Outcome],
        give_up_seconds: float,
        *,
        key: str = "",
    ) -> Answer:
        """Send a change; its body is made once, so that every repeat is the same to the byte."""
        if settle:
            items = (_object([("step_id", f'"{each.step_id}"'.encode()), (each.member, each.json)]) for each in settle)
            members = [*members, ("settle", b"[" + b",".join(items) + b"]")]
        call = LeasedCall(
            method="POST",
            path=f"/v0/executions/{execution_id}{path}",
            body=_object(members),
            key=key or secrets.token_hex(KEY_BYTES),
            lease=lease,
        )
        return await self._exchange.ask(call, give_up_seconds=give_up_seconds)


def addresses(base_url: str | Sequence[str] | None) -> Sequence[str]:
    """Return the doors that are meant: those given, else `REBUNO_URL` (commas between several), else this machine's."""
    if base_url is None:
        base_url = os.environ.get("REBUNO_URL") or DEFAULT_URL
    if isinstance(base_url, str):
        return [url.strip() for url in base_url.split(",")]
    return base_url


def _object(members: list[tuple[str, bytes]]) -> bytes:
    return b"{" + b",".join(b'"%b":%b' % (name.encode(), raw) for name, raw in members) + b"}"
