"""A kernel inside of the test's process, and runs of handlers on it."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal, Self

import msgspec

from kernel.inprocess import DEFAULTS, LEASE_SECONDS, InProcessKernel
from kernel.listener import Listener
from stepwell.agent import Agent, Handler
from stepwell.client import Client
from stepwell.errors import APIError
from stepwell.exchange import Call, Exchange
from stepwell.testing.replaying import ReplayingAgent, TracedAgent
from stepwell.types import Approval, Event, Execution, Step
from stepwell.values import encode

Replay = Literal["needed", "always"]
"""When a handler is entered again: after an interruption, or after every step."""

RUN_SECONDS = 30.0
POLL_SECONDS = 0.005


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """An execution that has ended."""

    execution: Execution
    steps: list[Step]
    """By first submission."""
    events: list[Event]

    @property
    def status(self) -> str:
        return self.execution.status

    @property
    def output(self) -> Any:
        return self.execution.output

    @property
    def failure_reason(self) -> str:
        return self.execution.failure_reason

    @property
    def targets(self) -> list[str]:
        """The targets of the steps, by first submission."""
        return [step.target for step in self.steps]


class Running:
    """An execution that was started."""

    def __init__(self, kernel: InProcessKernel, client: Client, execution_id: str, agent: Agent) -> None:
        self.execution_id = execution_id
        self._kernel = kernel
        self._client = client
        self._agent = agent

    async def wait(self, *, timeout: float = RUN_SECONDS) -> Run:
        """Return the run once it has ended.

        Raises TimeoutError after `timeout` seconds, and Divergence where the handler did not do the same again.
        """
        execution = await self._client.wait(self.execution_id, timeout=timeout)
        if isinstance(self._agent, TracedAgent):
            await self._agent.join()
            if self._agent.divergence is not None:
                raise self._agent.divergence
        steps = await self._client.list_steps(self.execution_id)
        events = [event async for event in self._client.follow(self.execution_id)]
        return Run(execution=execution, steps=steps, events=events)

    async def interrupt(self) -> None:
        """Take the execution from the attempt that has it, as if its process had died; another one follows at once."""
        await asyncio.to_thread(self._kernel.end_lease, self.execution_id)

    async def approval(self, *, timeout: float = RUN_SECONDS) -> Approval:
        """Return the approval that the execution waits for, once it does. Decide it with the kernel's `client`.

        Raises TimeoutError, and Divergence as `wait`.
        """
        async with asyncio.timeout(timeout):
            while True:
                for approval in await self._client.list_approvals():
                    if approval.execution_id == self.execution_id:
                        return approval
                if (await self._client.get(self.execution_id)).is_terminal:
                    run = await self.wait(timeout=timeout)
                    raise AssertionError(f"the execution ended without an approval: {run.status} {run.failure_reason}")
                await asyncio.sleep(POLL_SECONDS)


class _Agents:
    """The agents of one kernel, each under a path of its own."""

    def __init__(self) -> None:
        self.by_path: dict[str, Agent] = {}

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        await self.by_path[scope["path"]].app(scope, receive, send)


class _Nobody:
    """A kernel in the test asks for no key."""

    def headers(self, call: Call, target: str) -> dict[str, str]:
        return {}


class LocalKernel:
    """The whole server, in memory, in a thread of this process. Agents are served on the event loop of the test.

        async with LocalKernel() as kernel:
            run = await kernel.run(handle, {"question": "why?"}, replay="always")
        assert run.output == "because"

    Steps of agents without a policy are allowed. Nothing outlives the block.
    """

    def __init__(self, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self.kernel = InProcessKernel(msgspec.structs.replace(DEFAULTS, lease_seconds=lease_seconds))
        self.client: Client
        """For everything that a client may do: approvals, cancels, events."""
        self._exchange: Exchange
        self._agents = _Agents()
        self._numbers = itertools.count(1)
        self._listener: Listener
        self._serving: asyncio.Task[None]

    @property
    def url(self) -> str:
        return self.kernel.url

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.kernel.start)
        self.client = Client(self.url, "")
        self._exchange = Exchange((self.url,), credentials=_Nobody(), timeout_seconds=RUN_SECONDS)
        self._listener = Listener(host="127.0.0.1", port=0)
        self._serving = asyncio.create_task(self._listener.run(self._agents))
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(agent.close() for agent in self._agents.by_path.values()))
        self._serving.cancel()
        await asyncio.wait((self._serving,))
        await self.client.close()
        await self._exchange.close()
        await asyncio.to_thread(self.kernel.stop)

    async def run(
        self,
        handler: Handler,
        given: Any = None,
        *,
        policy: str = "",
        replay: Replay = "needed",
        timeout: float = RUN_SECONDS,
    ) -> Run:
        """Run a handler on an input and return how it ended.

        `policy` is a bundle. With `replay="always"` the handler is entered again after every step, and Divergence is
        raised, naming the first line that differs, where it does not make the same steps again.
        """
        running = await self.start(handler, given, policy=policy, replay=replay)
        return await running.wait(timeout=timeout)

    async def start(
        self, handler: Handler, given: Any = None, *, policy: str = "", replay: Replay = "needed"
    ) -> Running:
        """Begin the same, for a test that has something to do meanwhile: an approval, a cancel."""
        kind = ReplayingAgent if replay == "always" else None
        return await self.begin(handler, given, policy=policy, kind=kind)

    async def begin(
        self, handler: Handler, given: Any, *, policy: str = "", kind: Callable[..., TracedAgent] | None = None
    ) -> Running:
        """Begin an execution with an agent of a kind of its own."""
        agent_id, secret = f"agent-{next(self._numbers)}", secrets.token_hex(16)
        path = f"/{agent_id}"
        if kind is None:
            agent = Agent(agent_id, secret=secret, webhook_path=path, base_url=self.url)
        else:
            agent = kind(agent_id, secret=secret, webhook_path=path, kernel=self.kernel)
        agent.bind(handler)
        self._agents.by_path[path] = agent
        await self._post("/v0/agents", {"id": agent_id, "webhook_url": self._listener.url + path, "secret": secret})
        if policy:
            await self._post(f"/v0/policies/{agent_id}", {"bundle": policy})
        execution = await self.client.create(agent_id, given)
        return Running(self.kernel, self.client, execution.id, agent)

    async def _post(self, path: str, body: dict[str, str]) -> None:
        call = Call(method="POST", path=path, body=encode(body, what="the request"))
        try:
            await self._exchange.send(call, give_up_seconds=RUN_SECONDS)
        except APIError as error:
            raise ValueError(f"the kernel refuses it: {error}") from error
