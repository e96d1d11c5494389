"""A3 and A4: which webhooks an agent takes, in what order it looks, and one task for each execution."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from kernel.domain.signatures import sign_body
from stepwell import Agent
from stepwell.types import Webhook
from stepwell.webhook import BODY_BYTES_MAX, WebhookApp
from tests.support.wait import loop_turns

SECRET, NEXT = "a secret of an agent", "the one that comes next"
EXECUTION = "0199aaaa-0000-7000-8000-00000000aaaa"
DISPATCH, OTHER = "0199aaaa-0000-7000-8000-0000000000ff", "0199aaaa-0000-7000-8000-0000000000fe"


class Taken:
    """What the application hands over."""

    def __init__(self) -> None:
        self.webhooks: list[Webhook] = []
        self.app = WebhookApp("/webhook", [SECRET, NEXT], take=self.take, start=self.nothing, stop=self.nothing)

    async def take(self, webhook: Webhook) -> bool:
        self.webhooks.append(webhook)
        return True

    async def nothing(self) -> None: ...


def body_of(**members: Any) -> bytes:
    body = {
        "execution_id": EXECUTION,
        "dispatch_id": DISPATCH,
        "dispatch_attempt": 1,
        "lease_timeout_seconds": 30,
        "sent_at": int(time.time()),
    }
    return json.dumps({name: value for name, value in (body | members).items() if value is not None}).encode()


async def post(app: Any, body: bytes, *, secret: str = SECRET, path: str = "/webhook", **headers: str) -> int:
    signed = {"rebuno-signature": sign_body(secret.encode(), body)} | headers
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://agent") as client:
        return (await client.post(path, content=body, headers=signed)).status_code


async def test_a3_a_signed_webhook_is_taken_under_either_secret() -> None:
    taken = Taken()
    assert [await post(taken.app, body_of()), await post(taken.app, body_of(), secret=NEXT)] == [200, 200]
    assert [each.execution_id for each in taken.webhooks] == [EXECUTION] * 2


@pytest.mark.parametrize(
    ("sent", "headers", "status"),
    [
        (0, {"rebuno-signature": ""}, 401),
        (0, {"rebuno-signature": "sha256=" + "0" * 64}, 401),
        (b"no json, and not signed either", {"rebuno-signature": "x"}, 401),
        (b"no json, but signed", {}, 400),
        (b"{}", {}, 400),
        (b"[]", {}, 400),
        (-301, {}, 401),
        (303, {}, 401),
        (b" " * (BODY_BYTES_MAX + 1), {}, 413),
    ],
)
async def test_a3_what_is_not_signed_stale_or_no_webhook_is_refused(
    sent: bytes | int, headers: dict[str, str], status: int
) -> None:
    """What is sent is a body, or a good one that is so many seconds off."""
    taken = Taken()
    body = sent if isinstance(sent, bytes) else body_of(sent_at=int(time.time()) + sent)
    assert await post(taken.app, body, **headers) == status
    assert taken.webhooks == []


async def test_a3_without_a_time_of_sending_it_is_taken() -> None:
    taken = Taken()
    assert await post(taken.app, body_of(sent_at=None)) == 200
    assert len(taken.webhooks) == 1


async def test_other_paths_and_methods_are_not_served() -> None:
    taken = Taken()
    assert await post(taken.app, body_of(), path="/other") == 404
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=taken.app), base_url="http://agent") as client:
        assert (await client.get("/webhook")).status_code == 405


class Recorder(Agent):
    """An agent whose attempts only wait: what is begun, and what is cut off."""

    def __init__(self) -> None:
        super().__init__("agent", secret=SECRET, drain_seconds=0.1)
        self.begun: list[tuple[str, int]] = []
        self.ended: list[tuple[str, int]] = []

    async def _attempt(self, execution_id: str, held: Any) -> None:
        attempt = (held.lease.dispatch_id, held.lease.attempt)
        self.begun.append(attempt)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append(attempt)


async def test_a4_one_task_for_each_execution() -> None:
    agent = Recorder()

    async def sent(**members: Any) -> None:
        assert await post(agent.app, body_of(**members)) == 200
        await loop_turns()

    await sent(dispatch_attempt=2)
    await sent(dispatch_attempt=2)
    await sent(dispatch_attempt=1)
    assert (agent.begun, agent.ended) == ([(DISPATCH, 2)], [])

    await sent(dispatch_attempt=3)
    assert (agent.begun[1:], agent.ended) == ([(DISPATCH, 3)], [(DISPATCH, 2)])

    await sent(dispatch_id=OTHER, dispatch_attempt=1)
    assert (agent.begun[2:], agent.ended[1:]) == ([(OTHER, 1)], [(DISPATCH, 3)])

    await sent(execution_id="0199aaaa-0000-7000-8000-00000000bbbb")
    assert len(agent.begun) - len(agent.ended) == 2

    # It drains: nothing new begins, and what does not end by itself is cut off.
    draining = asyncio.create_task(agent.drain())
    await loop_turns()
    assert await post(agent.app, body_of(execution_id="0199aaaa-0000-7000-8000-00000000cccc")) == 503
    await draining
    assert sorted(agent.begun) == sorted(agent.ended)
