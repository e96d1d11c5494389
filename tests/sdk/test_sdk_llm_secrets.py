"""A34: credentials of providers, agents and gateways pass through, and are found nowhere afterwards."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from kernel.log.jetstream import JetStreamLog
from stepwell import execution, http_client
from stepwell.llm import asking
from tests.sdk.conftest import LEASE_SECONDS, SETTINGS, Serve, ask
from tests.support.gateway import gateway
from tests.support.stack import Stack
from tests.support.wire_provider import NoReply, Reply, WireProvider, events, streamed, wire_provider

SHARDS = 8
OPENAI_KEY, ANTHROPIC_KEY, PROVIDER_KEY = "sk-canary-of-openai", "sk-ant-canary-of-anthropic", "canary-of-the-gateway"
OTHERS = ("httpx", "httpcore", "openai", "anthropic", "asyncio")
"""Loggers of the providers' packages, which say what they send."""

STREAM = events(
    json.dumps({"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}),
    "[DONE]",
)
REPLIES = (
    Reply(pieces=(b'{"choices": []}',), headers={"content-type": "application/json", "set-cookie": "canary-cookie"}),
    Reply(status=401, pieces=(b'{"error": {"message": "no such key"}}',)),
    NoReply(),
    streamed(STREAM),
)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PAUSE_SECONDS", 0.001)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A kernel that tells everything it does."""
    with Stack.start(lease_seconds=LEASE_SECONDS, settings=SETTINGS | {"STEPWELL_LOG_LEVEL": "debug"}) as running:
        yield running


async def _call(client: AsyncOpenAI | AsyncAnthropic, provider: WireProvider, reply: Reply | NoReply) -> None:
    """Make a call that is answered so, whatever comes of it."""
    provider.replies = [reply]
    body: dict[str, Any] = {"model": "m", "messages": [], "max_tokens": 9, "n": provider.hits}
    try:
        if isinstance(client, AsyncOpenAI):
            await client.post("/chat/completions", body=body | {"stream": reply is REPLIES[3]}, cast_to=object)
        else:
            await client.post("/v1/messages", body=body, cast_to=object)
    except openai.OpenAIError:
        return
    except Exception as error:
        if not type(error).__module__.startswith("anthropic"):
            raise


async def test_a34_no_credential_is_in_any_entry_event_answer_or_log_line(
    serve: Serve, stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    gateway_key = (await ask(stack, "POST", "/v0/keys", {"name": "gateway", "scopes": ["steps:delegate"]}))["key"]
    tokens: list[str] = []

    async with (
        wire_provider() as provider,
        gateway(stack.url, provider.url, api_key=gateway_key) as passing_url,
        gateway(stack.url, provider.url, api_key=gateway_key, key=PROVIDER_KEY) as keeping_url,
    ):

        async def handle() -> None:
            tokens.append((await execution().gateway_headers())["Rebuno-Delegation"])
            base_url = f"{provider.url}/v1"
            clients: list[AsyncOpenAI | AsyncAnthropic] = [
                AsyncOpenAI(api_key=OPENAI_KEY, base_url=base_url, http_client=http_client()),
                AsyncAnthropic(api_key=ANTHROPIC_KEY, base_url=provider.url, http_client=http_client()),
                AsyncOpenAI(api_key=OPENAI_KEY, base_url=await execution().gateway_url(passing_url)),
                AsyncOpenAI(api_key=OPENAI_KEY, base_url=await execution().gateway_url(keeping_url)),
            ]
            for client in clients:
                async with client:
                    for reply in REPLIES:
                        await _call(client, provider, reply)

        served = await serve(handle)
        ended = await served.run()
        steps = await served.client.list_steps(ended.id)
        told = [str(ended), str(steps), str([event async for event in served.client.follow(ended.id)])]
        sent = b"\n".join(provider.requests).decode("latin-1")

    assert ended.status == "completed", ended.failure_reason
    assert len(steps) == 4 * len(REPLIES)
    assert {step.status for step in steps} == {"succeeded", "failed"}
    assert all(key in sent for key in (OPENAI_KEY, ANTHROPIC_KEY, PROVIDER_KEY))
    haystacks = {
        "answers": "\n".join(told),
        "entries": await _entries(stack),
        "lines of the kernel": "\n".join(stack.logs().values()),
        "lines of agent and gateway": "\n".join(
            f"{each.getMessage()} {each.exc_text}" for each in caplog.records if not each.name.startswith(OTHERS)
        ),
    }
    assert "step_submitted" in haystacks["entries"]
    secrets = [OPENAI_KEY, ANTHROPIC_KEY, PROVIDER_KEY, "canary-cookie", gateway_key, stack.api_key, *tokens]
    secrets += [token.partition(".")[2] for token in tokens] + [vars(served.agent)["_secret"]]
    for where, haystack in haystacks.items():
        assert [secret for secret in secrets if secret in haystack] == [], where


async def _entries(stack: Stack) -> str:
    """Everything that the log holds of executions."""
    found: list[str] = []
    log = await JetStreamLog.connect(stack.nats.url, shards=SHARDS, name="test")
    try:
        for shard in range(SHARDS):
            last_seq = (await log.state(shard)).last_seq
            messages = [await log.get(shard, seq) for seq in range(1, last_seq + 1)]
            found += [message.payload.decode("utf-8", "replace") for message in messages if message is not None]
    finally:
        await log.close()
    return "\n".join(found)
