"""A model provider on loopback that speaks OpenAI's wire formats, with the answers that a test writes."""

import asyncio
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from kernel.listener import Listener
from stepwell import Approval
from stepwell.testing import LocalKernel, Running
from tests.support.openai_wire import (
    Answer,
    Asked,
    Calls,
    Turn,
    chat_completion,
    chat_stream,
    read_chat,
    read_response,
    response,
    response_stream,
)
from tests.support.wait import wait_until_async

_NUMBERED = re.compile(r"(?<=[a-z])_\d+(_|\b)")

ROUNDS_MAX = 30

Script = Callable[[Asked], Turn]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def turns(*answers: Turn) -> Script:
    """Answer a conversation turn by turn, each of them the same however often it is asked for."""
    return lambda asked: answers[asked.turn]


def calls(*tools: tuple[str, Any]) -> Calls:
    """Call tools beside each other."""
    return Calls(tools)


class Provider:
    """Answers by a script. Ids, times and fingerprints are new in every answer, as a real one's are."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.faults: Iterator[int] = iter(())
        """Statuses that the next requests are answered with; the script is not asked then."""
        self.hits: Counter[str] = Counter()
        """By logical call, which is a request but for how it is to be answered: how often the script was asked."""
        self.refused = 0
        """Requests that were answered with a fault."""
        self.authorizations: set[str] = set()
        self.url = ""
        self._numbers = itertools.count(1)

    def assert_asked_once_each(self, number: int) -> None:
        """So many logical calls were made, and none of them twice."""
        assert list(self.hits.values()) == [1] * number, self.hits

    def told(self) -> list[str]:
        """Return what was asked, each request once and without the numbers that answers have in their ids."""
        return list(dict.fromkeys(_NUMBERED.sub("_N_", body) for body in self.hits))

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Any]], send: Send
    ) -> None:
        body = json.loads(await _body(receive))
        headers = dict(scope["headers"])
        self.authorizations.add(headers.get(b"authorization", b"").decode())
        fault = next(self.faults, None)
        if fault is not None:
            self.refused += 1
            error = {"message": f"scripted fault {fault}", "type": "server_error", "param": None, "code": None}
            await _send(send, fault, b"application/json", [json.dumps({"error": error})])
            return
        is_streamed, options = body.pop("stream", False), body.pop("stream_options", None) or {}
        self.hits[json.dumps(body, sort_keys=True)] += 1
        is_chat = scope["path"] == "/v1/chat/completions"
        asked = read_chat(body) if is_chat else read_response(body)
        answer = Answer(
            turn=self.script(asked), number=next(self._numbers), created=int(time.time()), model=body["model"]
        )
        if is_streamed:
            has_usage = bool(options.get("include_usage"))
            lines = chat_stream(answer, has_usage=has_usage) if is_chat else response_stream(answer)
            await _send(send, 200, b"text/event-stream", lines)
        else:
            whole = chat_completion(answer) if is_chat else response(answer)
            await _send(send, 200, b"application/json", [json.dumps(whole)])


@asynccontextmanager
async def providing(script: Script) -> AsyncIterator[Provider]:
    """Serve a script on a free port."""
    provider = Provider(script)
    listener = Listener(host="127.0.0.1", port=0)
    provider.url = f"{listener.url}/v1"
    serving = asyncio.create_task(listener.run(provider))
    try:
        yield provider
    finally:
        serving.cancel()
        await asyncio.wait((serving,))


async def beside(kernel: LocalKernel, start: Callable[[], Awaitable[Running]], target: str) -> tuple[Running, Approval]:
    """Start runs until one waits for a person while its step of this target runs: which comes first is chance."""
    for _ in range(ROUNDS_MAX):
        running = await start()
        approval = await running.approval()
        if target in [step.target for step in await kernel.client.list_steps(running.execution_id)]:
            return running, approval
        await kernel.client.cancel(running.execution_id)
    raise AssertionError(f"in {ROUNDS_MAX} runs {target} was never submitted first")


async def recorded(kernel: LocalKernel, execution_id: str, target: str) -> None:
    """Return once a step with a target has a result."""

    async def is_there() -> bool:
        steps = await kernel.client.list_steps(execution_id)
        return any(step.target == target and step.status == "succeeded" for step in steps)

    await wait_until_async(is_there, f"the result of {target} to be recorded")


async def _body(receive: Callable[[], Awaitable[Any]]) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body


async def _send(send: Send, status: int, content_type: bytes, parts: Iterable[str]) -> None:
    # So that clients that try again do so at once.
    headers = [(b"content-type", content_type), (b"retry-after-ms", b"1"), (b"x-request-id", b"req_1")]
    # Frameworks keep clients of their own, which nobody closes: none of their connections may outlive its loop.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for part in parts:
        await send({"type": "http.response.body", "body": part.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
