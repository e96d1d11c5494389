"""An agent: it takes webhooks, runs its handler for each execution, and hands in what came of it."""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stepwell.binding import Input, schema_of
from stepwell.context import ExecutionContext, Held, Settle, entered, left
from stepwell.errors import Blocked, PolicyError, RateLimited, RebunoError, Signal, ToolError, failure_reason
from stepwell.keeper import Keeper
from stepwell.kernel import TIMEOUT_SECONDS, KernelClient
from stepwell.llm.refusals import meant_by
from stepwell.signing import Lease, Scheme
from stepwell.tools import offloaded, refuse_generator
from stepwell.types import Execution, Result, Webhook
from stepwell.values import encode_recorded
from stepwell.webhook import WebhookApp

HEARTBEAT_SECONDS_MAX = 30.0
HEARTBEATS_PER_LEASE = 3
DRAIN_SECONDS = 25.0
FLUSH_SECONDS_MAX = 2.0
ADDRESS = "0.0.0.0:5000"
"""Where `run` listens unless it is told otherwise: webhooks come from elsewhere."""

_log = logging.getLogger(__name__)
Handler = Callable[..., Any]


class _Running(msgspec.Struct, frozen=True):
    lease: Lease
    task: "asyncio.Task[None]"


class Agent:
    """One agent of a kernel.

        agent = Agent("researcher", secret="…")
        agent.run(handle)

    `app` is the same as an ASGI application, to be mounted or served by what you like.
    """

    def __init__(
        self,
        agent_id: str,
        *,
        secret: str | None = None,
        next_secret: str | None = None,
        base_url: str | Sequence[str] | None = None,
        webhook_path: str = "/webhook",
        kernel_timeout: float = TIMEOUT_SECONDS,
        description: str | None = None,
        output_schema: dict[str, Any] | type | None = None,
        settle: Settle = "linger",
        scheme: Scheme = "v1",
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        """`secret` is that of the registration, else `REBUNO_AGENT_SECRET`; webhooks signed with `next_secret` are
        accepted too. `base_url` is one door of the kernel or several, else `REBUNO_URL`.
        """
        self.agent_id = agent_id
        self._secret = secret or os.environ.get("REBUNO_AGENT_SECRET", "")
        if not self._secret:
            raise ValueError("an agent needs its secret: pass secret=, or set REBUNO_AGENT_SECRET")
        self._base_url = base_url
        self._timeout = kernel_timeout
        self._scheme: Scheme = scheme
        self._settle: Settle = settle
        self._drain_seconds = drain_seconds
        self._description = description
        self._output_schema = output_schema
        self._handler: Handler | None = None
        self._input: Input | None = None
        self._kernel: KernelClient | None = None
        self._keeper = Keeper(self._connect)
        self._running: dict[str, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_draining = False
        secrets = [each for each in (self._secret, next_secret) if each]
        self.app = WebhookApp(webhook_path, secrets, take=self.take, start=self.publish_metadata, stop=self.drain)

    def bind(self, process: Handler) -> None:
        """Name the function that does the work. Its arguments are the input's members, one model, or the raw input."""
        refuse_generator(process, "a handler")
        self._handler = process
        self._input = Input(process)

    def run(self, process: Handler, *, host: str | None = None, port: int | None = None) -> None:
        """Bind the function and serve webhooks until the process is told to end.

        What is left out is that of `REBUNO_AGENT_ADDR`, an address such as `127.0.0.1:5001`, else 0.0.0.0 and 5000.
        """
        import uvicorn

        self.bind(process)
        known_host, _, known_port = (os.environ.get("REBUNO_AGENT_ADDR") or ADDRESS).rpartition(":")
        host = known_host.strip("[]") if host is None else host
        port = int(known_port) if port is None else port
        uvicorn.run(self.app, host=host, port=port, lifespan="on", log_level="warning", ws="none")

    # ------------------------------------------------------------ webhooks

    async def take(self, webhook: Webhook) -> bool:
        """Begin the work of a webhook, unless it is under way or superseded already; False where nothing new begins."""
        if self._is_draining:
            return False
        lease = Lease(webhook.dispatch_id, webhook.dispatch_attempt)
        running = self._running.get(webhook.execution_id)
        if running is not None:
            if running.lease.dispatch_id == lease.dispatch_id and lease.attempt <= running.lease.attempt:
                return True
            running.task.cancel()
        held = Held(lease=lease, lease_seconds=webhook.lease_timeout_seconds)
        task = asyncio.create_task(self._attempt(webhook.execution_id, held), name=f"execution {webhook.execution_id}")
        self._running[webhook.execution_id] = _Running(lease, task)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finished(webhook.execution_id, done))
        return True

    async def publish_metadata(self) -> None:
        """Tell the kernel what the agent is, takes and returns. A kernel that is away hears it another time."""
        output = self._output_schema
        schema = output if output is None or isinstance(output, dict) else schema_of(output)
        try:
            async with asyncio.timeout(self._timeout):
                await self._client().set_metadata(
                    description=self._description,
                    input_schema=None if self._input is None else self._input.schema(),
                    output_schema=schema,
                )
        except (RebunoError, TimeoutError) as error:
            _log.warning("the description of agent %s could not be published: %s", self.agent_id, error)

    async def join(self) -> None:
        """Return when no execution is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def drain(self) -> None:
        """Let what is under way come to its end, as long as the limit lets it; then cut it off and close.

        What is cut off is not lost: its lease ends, and another process takes it up. New work is refused meanwhile.
        """
        self._is_draining = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._drain_seconds)
        await self.close()

    async def close(self) -> None:
        """Cut off what is under way, begin nothing new, and close the connections."""
        self._is_draining = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.to_thread(self._keeper.close)
        if self._kernel is not None:
            await self._kernel.close()
            self._kernel = None

    # ------------------------------------------------------------ one attempt

    async def _attempt(self, execution_id: str, held: Held) -> None:
        try:
            await self._work(execution_id, held)
        except Signal as signal:
            _log.info("execution %s: this attempt is over: %s", execution_id, signal)
        except Exception:  # noqa: BLE001 - the top of an attempt: what is left undone comes back with its lease
            _log.exception("execution %s: this attempt broke", execution_id)

    async def _work(self, execution_id: str, held: Held) -> None:
        if self._handler is None or self._input is None:
            raise RuntimeError("the agent has no handler: call bind() or run()")
        kernel = self._client()
        execution = await kernel.get_execution(execution_id, give_up_seconds=held.lease_seconds)
        if execution.is_terminal:
            return
        context = self._context(kernel, execution, held)
        try:
            arguments = self._input.bind(execution.input)
        except ValueError as error:
            await context.fail(f"input_invalid: {error}")
            return
        await self._run(context, self._handler, arguments, held)

    def _context(self, kernel: KernelClient, execution: Execution, held: Held) -> ExecutionContext:
        return ExecutionContext(kernel=kernel, keeper=self._keeper, execution=execution, held=held, settle=self._settle)

    async def _run(self, context: ExecutionContext, handler: Handler, arguments: dict[str, Any], held: Held) -> None:
        """Run the handler under its heartbeat, then end the execution as it ended."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs is run by a task
        every = min(held.lease_seconds / HEARTBEATS_PER_LEASE, HEARTBEAT_SECONDS_MAX)
        beating = self._keeper.begin(context.keep_lease(every, task.cancel))
        token = entered(context)
        try:
            try:
                result = await offloaded(handler, **arguments)
                context.check()
                if not isinstance(result, Result):
                    result = Result(output=result)
                # What JSON or the record cannot carry is the handler's failure, and is found out at once.
                encode_recorded(result.output, what="output")
                encode_recorded(result.state, what="state")
            except Exception as error:
                context.check()
                refused = meant_by(error) if context.is_delegated else None
                if isinstance(refused, Signal):
                    context.note(refused)
                    raise refused from error
                if not isinstance(refused or error, PolicyError | RateLimited | ToolError):
                    _log.exception("execution %s: the handler failed", context.execution_id)
                await context.fail(failure_reason(refused or error))
                return
            except BaseExceptionGroup:
                # A task group has put the signals of its tasks into one.
                context.check()
                raise
            await context.complete(result.output, result.state)
        except Blocked:
            await context.pause()
            raise
        except Signal:
            context.abandon()
            raise
        except asyncio.CancelledError:
            # Either the heartbeat found the lease to be another's, and this task was cancelled for that alone, or the
            # process ends: then what was done is still recorded, so that the next attempt does not do it again.
            await context.cut_off(FLUSH_SECONDS_MAX)
            raise
        finally:
            left(token)
            beating.cancel()

    def _finished(self, execution_id: str, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        running = self._running.get(execution_id)
        if running is not None and running.task is task:
            del self._running[execution_id]

    def _client(self) -> KernelClient:
        if self._kernel is None:
            self._kernel = self._connect()
        return self._kernel

    def _connect(self) -> KernelClient:
        return KernelClient(
            agent_id=self.agent_id,
            secret=self._secret,
            base_url=self._base_url,
            timeout=self._timeout,
            scheme=self._scheme,
        )
