"""Access for those who start executions and decide approvals, with a bearer key."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from stepwell.exchange import Call, Exchange
from stepwell.kernel import TIMEOUT_SECONDS, addresses
from stepwell.types import Approval, Event, Execution, Step
from stepwell.values import encode, read

GIVE_UP_SECONDS = 60.0
WAIT_SECONDS = 20
"""How long one question for events waits at the kernel."""
EVENTS_MAX = 1000


class _Bearer:
    def __init__(self, api_key: str) -> None:
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def headers(self, call: Call, target: str) -> dict[str, str]:
        return dict(self._headers)


class Client:
    """One kernel. Every change is repeated safely: a lost answer never makes a second execution.

    async with Client("http://localhost:8080", api_key="…") as client:
        execution = await client.create("researcher", {"question": "why?"})
        print((await client.wait(execution.id)).output)
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        give_up_seconds: float = GIVE_UP_SECONDS,
    ) -> None:
        """Left out, the address is `REBUNO_URL` and the key `REBUNO_API_KEY`."""
        key = api_key if api_key is not None else os.environ.get("REBUNO_API_KEY", "")
        self._exchange = Exchange(addresses(base_url), credentials=_Bearer(key), timeout_seconds=timeout)
        self._give_up_seconds = give_up_seconds

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._exchange.close()

    # ------------------------------------------------------------ executions

    async def create(self, agent_id: str, input: Any = None, *, idempotency_key: str = "") -> Execution:
        """Start an execution. The same key gives the same execution; without one a fresh key guards the repeats."""
        body = {"agent_id": agent_id, "input": input}
        if idempotency_key:
            body["idempotency_key"] = idempotency_key
        raw = await self._send("POST", "/v0/executions", body, key="" if idempotency_key else str(uuid.uuid4()))
        return read(raw, Execution)

    async def get(self, execution_id: str) -> Execution:
        return read(await self._send("GET", f"/v0/executions/{_segment(execution_id)}"), Execution)

    async def cancel(self, execution_id: str) -> None:
        """End an execution. Raises Terminated where it has ended already."""
        await self._send("POST", f"/v0/executions/{_segment(execution_id)}/cancel")

    async def wait(self, execution_id: str, *, timeout: float | None = None) -> Execution:
        """Return the execution once it has ended. Raises TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            async for _ in self.follow(execution_id):
                pass
        return await self.get(execution_id)

    async def events(self, execution_id: str, *, after_seq: int = 0, limit: int = 100, wait: float = 0) -> list[Event]:
        """Return the events after `after_seq`; where there are none yet, the first ones within `wait` seconds."""
        query = urlencode({"after_seq": after_seq, "limit": limit, **({"wait": wait} if wait else {})})
        raw = await self._send("GET", f"/v0/executions/{_segment(execution_id)}/events?{query}")
        return read(raw, list[Event])

    async def follow(self, execution_id: str, *, after_seq: int = 0) -> AsyncIterator[Event]:
        """Give every event as it happens, until the execution has ended."""
        while True:
            events = await self.events(execution_id, after_seq=after_seq, limit=EVENTS_MAX, wait=WAIT_SECONDS)
            for event in events:
                yield event
                after_seq = event.event_seq
            if not events and (await self.get(execution_id)).is_terminal:
                return

    # ------------------------------------------------------------ steps

    async def get_step(self, execution_id: str, step_id: str) -> Step:
        return read(await self._send("GET", f"/v0/executions/{_segment(execution_id)}/steps/{_segment(step_id)}"), Step)

    async def list_steps(self, execution_id: str, *, status: str = "") -> list[Step]:
        """Return all steps by first submission, or those of one status."""
        query = f"?{urlencode({'status': status})}" if status else ""
        return read(await self._send("GET", f"/v0/executions/{_segment(execution_id)}/steps{query}"), list[Step])

    # ------------------------------------------------------------ approvals

    async def list_approvals(self, *, status: str = "pending") -> list[Approval]:
        """Return approvals by creation; `all` means every status."""
        return read(await self._send("GET", f"/v0/approvals?{urlencode({'status': status})}"), list[Approval])

    async def get_approval(self, approval_id: str) -> Approval:
        return read(await self._send("GET", f"/v0/approvals/{_segment(approval_id)}"), Approval)

    async def grant_approval(self, approval_id: str, *, decided_by: str = "", rationale: str = "") -> None:
        """Let the step run. Raises ConflictError where it was decided already."""
        await self._decide(approval_id, "grant", decided_by, rationale)

    async def deny_approval(self, approval_id: str, *, decided_by: str = "", rationale: str = "") -> None:
        """Never let the step run. Raises ConflictError where it was decided already."""
        await self._decide(approval_id, "deny", decided_by, rationale)

    async def _decide(self, approval_id: str, verb: str, decided_by: str, rationale: str) -> None:
        given = {"decided_by": decided_by, "rationale": rationale}
        body = {name: text for name, text in given.items() if text}
        await self._send("POST", f"/v0/approvals/{_segment(approval_id)}/{verb}", body, key=str(uuid.uuid4()))

    async def _send(self, method: str, path: str, body: dict[str, Any] | None = None, *, key: str = "") -> bytes:
        raw = b"" if body is None else encode(body, what="the request")
        call = Call(method=method, path=path, body=raw, key=key)
        return await self._exchange.send(call, give_up_seconds=self._give_up_seconds)


def _segment(text: str) -> str:
    return quote(text, safe="")
