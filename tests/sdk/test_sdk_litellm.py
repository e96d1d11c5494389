"""LiteLLM, as a package inside of an agent and as a proxy in front of the gateway: its calls are steps."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, AuthenticationError

from kernel.embedded import free_port
from stepwell import execution
from tests.sdk.gateway_place import COMPLETION, Place, ask, note, place
from tests.sdk.litellm_place import LITELLM, MASTER_KEY, litellm_proxy, program
from tests.support.stack import ROOT
from tests.support.wait import wait_until_async
from tests.support.wire_provider import Reply, events, streamed

PROVIDER_KEY = "sk-of-the-provider"
SECRET = "the secret of an agent that asks by LiteLLM"
ASKS = (
    "default_action: allow\nrules:\n  - id: ask\n    when: {target: confirm}\n    then: {decision: require_approval}\n"
)
START_SECONDS_MAX = 90.0
SCRIPT = Path(__file__).with_name("litellm_agent.py")

# To import LiteLLM takes a processor for seconds.
pytestmark = pytest.mark.alone


def piece(content: str | None, finish_reason: str | None = None) -> str:
    delta = {"role": "assistant", "content": content} if content is not None else {}
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return json.dumps(
        {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-x", "choices": [choice]}
    )


STREAM = events(*map(piece, ("Grü", "ße ", "🙂")), piece(None, "stop"), "[DONE]")


# ---------------------------------------------------------------- the package


async def test_calls_of_an_agent_that_is_killed_are_asked_once_and_replayed_equal(tmp_path: Path) -> None:
    whole, stream = Reply(pieces=(COMPLETION,)), streamed(STREAM, size=7)
    async with place(whole, stream, whole, stream) as found:
        port = free_port()
        await register(found, port)
        execution_id = (await found.kernel.client.create("asker", input={"question": "how are you?"})).id
        async with agent(found, port, tmp_path):
            approval = await pending(found, execution_id)
        async with agent(found, port, tmp_path):
            await found.kernel.client.grant_approval(approval)
            ended = await end_of(found, execution_id)
        steps = await found.kernel.client.list_steps(execution_id)
        hits = found.provider.hits

    assert (ended.status, ended.output) == ("completed", "Grüße 🙂"), ended.failure_reason
    assert hits == 4
    assert [(step.kind, step.status) for step in steps] == [("llm_call", "succeeded")] * 4 + [
        ("tool_call", "succeeded")
    ]
    live, replayed = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text("utf-8").splitlines()]
    assert live[0]["choices"][0]["message"]["content"] == "Grüße 🙂"
    assert without_moments(live) == without_moments(replayed)
    # By the gateway and by the client alike.
    assert without_moments(live[:2]) == without_moments(live[2:])


def without_moments(seen: Any) -> Any:
    """What was answered, less what LiteLLM makes up itself with each answer."""
    if isinstance(seen, list):
        return [without_moments(each) for each in seen]
    return {name: value for name, value in seen.items() if name not in {"id", "created", "citations"}}


async def register(found: Place, port: int) -> None:
    registration = {"id": "asker", "webhook_url": f"http://127.0.0.1:{port}/webhook", "secret": SECRET}
    async with httpx.AsyncClient(base_url=found.kernel.url, trust_env=False) as http:
        (await http.post("/v0/agents", json=registration)).raise_for_status()
        (await http.post("/v0/policies/asker", json={"bundle": ASKS})).raise_for_status()


@asynccontextmanager
async def agent(found: Place, port: int, folder: Path) -> AsyncIterator[None]:
    """A process of the agent, killed in the end."""
    environment = {
        "PYTHONPATH": str(ROOT / "sdk" / "src"),
        "KERNEL_URL": found.kernel.url,
        "SECRET": SECRET,
        "PORT": str(port),
        "PROVIDER_URL": f"{found.provider.url}/v1",
        "GATEWAY_URL": found.url,
    }
    async with program(str(LITELLM.interpreter()), str(SCRIPT), folder=folder, environment=environment) as process:

        async def is_up() -> bool:
            assert process.returncode is None, (folder / "said.txt").read_text()[-4000:]
            try:
                async with httpx.AsyncClient(trust_env=False) as http:
                    await http.get(f"http://127.0.0.1:{port}/")
            except httpx.HTTPError:
                return False
            return True

        await wait_until_async(is_up, "the agent to serve", deadline_seconds=START_SECONDS_MAX)
        yield


async def pending(found: Place, execution_id: str) -> str:
    """Wait until a person is asked."""

    async def is_asked() -> bool:
        return (await found.kernel.client.get(execution_id)).status == "blocked"

    await wait_until_async(is_asked, "the agent to ask a person", deadline_seconds=START_SECONDS_MAX)
    approvals = await found.kernel.client.list_approvals(status="pending")
    return approvals[0].id


async def end_of(found: Place, execution_id: str) -> Any:
    async def has_ended() -> bool:
        return (await found.kernel.client.get(execution_id)).status in {"completed", "failed"}

    await wait_until_async(has_ended, "the end of the execution", deadline_seconds=START_SECONDS_MAX)
    return await found.kernel.client.get(execution_id)


# ---------------------------------------------------------------- the proxy


async def test_calls_through_litellms_proxy_are_steps_and_none_passes_without_a_delegation(tmp_path: Path) -> None:
    seen: list[Any] = []
    async with (
        place(Reply(pieces=(COMPLETION,))) as found,
        litellm_proxy(found.url, tmp_path, provider_key=PROVIDER_KEY) as url,
    ):

        async def handle() -> None:
            headers = await execution().gateway_headers()
            async with AsyncOpenAI(api_key=MASTER_KEY, base_url=f"{url}/v1", default_headers=headers) as client:
                answer = await client.chat.completions.create(
                    model="gpt-5", messages=[{"role": "user", "content": "hello"}]
                )
                seen.append(answer.choices[0].message.content)
            await note(seen[-1])

        run = await found.kernel.run(handle, replay="always")
        async with AsyncOpenAI(api_key=MASTER_KEY, base_url=f"{url}/v1", max_retries=0) as stranger:
            with pytest.raises(AuthenticationError):
                await ask(stranger, "gpt-5")
        head, hits = found.provider.head_of(0), found.provider.hits

    assert run.status == "completed", run.failure_reason
    assert [(step.kind, step.target, step.status) for step in run.steps] == [
        ("llm_call", "gpt-5", "succeeded"),
        ("tool_call", "note", "succeeded"),
    ]
    assert seen == ["Grüße 🙂"] * len(seen)
    assert len(seen) > 1
    assert hits == 1
    assert head["authorization"] == f"Bearer {PROVIDER_KEY}"
    assert not [name for name in head if name.startswith("rebuno-")]
