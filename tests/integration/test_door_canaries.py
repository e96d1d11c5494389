"""Secrets that are let in and must never come out: of agents, and keys, in any answer, entry, log line or metric."""

import base64
import logging
import re
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from kernel.control.keys import key_hash
from kernel.door.routes import ROUTES
from tests.support.approvals import ask
from tests.support.door import API_KEY, OPERATOR_KEY, MemoryRig, rig_in_memory
from tests.support.tenancy import make_key, make_tenant

SECRET = "canary-of-an-agent-<é>-secret"
NEXT_SECRET = "canary-of-the-secret-that-is-next"


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[MemoryRig]:
    async with rig_in_memory() as rig:
        yield rig


class Answers:
    """Every answer of the test but the ones that made a key."""

    def __init__(self, rig: MemoryRig) -> None:
        self._rig = rig
        self.texts: list[str] = []

    async def call(self, method: str, path: str, **options: object) -> httpx.Response:
        response = await self._rig.call(method, path, **options)  # type: ignore[arg-type] - options of httpx
        self.keep(response)
        return response

    def keep(self, response: httpx.Response) -> None:
        self.texts += [str(response.headers), response.text]


def spellings(secret: str) -> set[str]:
    """How a secret would look in JSON, base64, hex, or in a traceback."""
    raw = secret.encode()
    coded = {base64.b64encode(raw).decode().rstrip("="), base64.urlsafe_b64encode(raw).decode().rstrip("=")}
    return {secret, repr(secret)[1:-1], secret.encode("unicode_escape").decode(), raw.hex(), *coded}


async def test_no_secret_and_no_key_comes_out_of_the_kernel(rig: MemoryRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answers = Answers(rig)
    agent = {"id": "agent", "webhook_url": "http://8.8.8.8/", "secret": SECRET, "next_secret": NEXT_SECRET}
    assert (await answers.call("POST", "/v0/agents", json=agent)).status_code == 201
    await make_tenant(rig)
    keys = [await make_key(rig, name="one"), await make_key(rig, name="two", tenant="acme")]
    ended = await make_key(rig, name="ended")
    await rig.call("DELETE", f"/v0/keys/{ended['id']}")
    shown = [key["key"] for key in (*keys, ended)]

    run = await rig.started()
    run.secret = SECRET
    answers.keep(await run.submit("t", {"x": 1}))
    answers.keep(await run.send("PUT", "/v0/agents/agent/metadata", {"description": "d"}))
    other = await rig.started()
    await ask(other)
    await _ask_wrongly(rig, answers, shown)
    # Its streams end with it.
    answers.keep(await run.complete({"done": 1}))
    for key in (API_KEY, OPERATOR_KEY, *shown):
        names = {"execution_id": run.execution_id, "step_id": "f" * 64, "agent_id": "agent"}
        names |= {"approval_id": "x", "key_id": keys[0]["id"]}
        for route in ROUTES:
            if route.is_built and route.method == "GET":
                await answers.call("GET", route.path.format_map(names), key=key)

    control = [message.payload for message in await rig.memory_log.read_control(after_seq=0)]
    states = [(shard, await rig.log.state(shard)) for shard in range(rig.settings.shards)]
    entries = [await rig.log.get(shard, seq) for shard, state in states for seq in range(1, state.last_seq + 1)]
    haystacks = {
        "answers": "\n".join(answers.texts),
        "control": b"\n".join(control).decode(),
        "log": "\n".join(entry.payload.decode() for entry in entries if entry is not None),
        "lines": "\n".join(f"{each.getMessage()} {each.exc_text} {each.args}" for each in _ours(caplog.records)),
    }
    assert "agent_put" in haystacks["control"]
    assert '"policy_version"' in haystacks["answers"]
    assert "step_submitted" in haystacks["log"]
    for secret in (SECRET, NEXT_SECRET, API_KEY, OPERATOR_KEY, *shown):
        for where, haystack in haystacks.items():
            found = [spelling for spelling in spellings(secret) if spelling in haystack]
            assert found == [], where
    # The hash of a key is in the control stream and in nothing that anybody can ask for.
    for key in shown:
        digest = key_hash(key.encode())
        coded = base64.b64encode(digest).decode()
        assert coded in haystacks["control"]
        for where in ("answers", "log", "lines"):
            assert coded not in haystacks[where]
            assert digest.hex() not in haystacks[where]


def _ours(records: list[logging.LogRecord]) -> list[logging.LogRecord]:
    """Without the lines of the client, which tells what it asks for."""
    return [each for each in records if not each.name.startswith(("httpx", "httpcore"))]


async def _ask_wrongly(rig: MemoryRig, answers: Answers, keys: list[str]) -> None:
    """Requests that are refused, each with a secret or a key where something else belongs."""
    for hidden in (SECRET, NEXT_SECRET, *keys):
        for method, path, body in (
            ("POST", "/v0/agents", {"id": hidden, "webhook_url": hidden, "secret": SECRET}),
            ("POST", "/v0/agents", {"id": "b", "webhook_url": "x", "secret": [hidden]}),
            ("POST", "/v0/agents", {"id": "b", "webhook_url": f"http://{hidden}@8.8.8.8/", "secret": hidden}),
            ("POST", "/v0/keys", {"name": "x", "scopes": [hidden]}),
            ("POST", "/v0/keys", {"name": f"\n{hidden}", "scopes": ["audit:read"]}),
            ("POST", "/v0/policies/agent", {"bundle": [hidden]}),
            ("POST", "/v0/tenants", {"id": hidden + "!"}),
            ("POST", "/v0/executions", {"agent_id": hidden}),
        ):
            await answers.call(method, path, json=body)
        safe = re.sub(r"[^A-Za-z0-9._-]", "", hidden)
        for path in (f"/v0/agents/{safe}", f"/v0/policies/{safe}", f"/v0/executions/{safe}", f"/v0/keys/{safe}"):
            await answers.call("DELETE", path)
            await answers.call("GET", path)
        await answers.call("GET", "/v0/executions", headers={"authorization": f"Basic {safe}"})
        await answers.call("GET", f"/v0/executions?status={safe}&cursor={safe}")
