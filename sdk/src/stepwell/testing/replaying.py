"""An agent whose handler is entered again after every step, with everything recorded so far replayed."""

import asyncio
import inspect
import logging
from contextvars import ContextVar
from functools import wraps
from typing import Any

from kernel.inprocess import InProcessKernel
from stepwell.agent import Agent, Handler
from stepwell.context import ExecutionContext, Held, Run
from stepwell.errors import Blocked, ToolError
from stepwell.kernel import Idempotency, KernelClient, Kind, Outcome
from stepwell.testing.comparing import Diverged, Divergence, Trace, made
from stepwell.testing.places import Lane, Spot, on_lane, own_lane, spot
from stepwell.types import Execution, StepDecision

PAUSE_SECONDS_MAX = 5.0

_log = logging.getLogger(__name__)
_spot: ContextVar[Spot | None] = ContextVar("stepwell_spot", default=None)


class TracedContext(ExecutionContext):
    """Notes where each step is made, and whether it was made there before."""

    def __init__(self, *, trace: Trace, **parts: Any) -> None:
        super().__init__(**parts)
        self._trace = trace
        self._spots: dict[str, Spot] = {}
        """By step, where an LLM call was made."""

    def enter(self, call: Any) -> Any:
        # The line is on the caller's stack, which the handler's loop does not see of another thread.
        here = self.here()

        async def placed() -> Any:
            token = _spot.set(here)
            try:
                return await call()
            finally:
                _spot.reset(token)

        return super().enter(placed)

    async def invoke_tool(
        self,
        target: str,
        args: Any,
        *,
        idempotency: Idempotency = "safe_to_retry",
        run: Run,
        kind: Kind = "tool_call",
    ) -> Any:
        here = self.here()
        is_fresh = False

        async def ran() -> Any:
            nonlocal is_fresh
            is_fresh = True
            on_lane(Lane(here.lane, is_in_body=True))
            _spot.set(None)
            try:
                return await self._body(run, target)
            finally:
                on_lane(here.lane)

        self.check()
        self._note(here, kind, target, args)
        try:
            result = await super().invoke_tool(target, args, idempotency=idempotency, run=ran, kind=kind)
        except ToolError:
            self._after(here, is_fresh=is_fresh)
            raise
        self._after(here, is_fresh=is_fresh)
        return result

    def here(self) -> Spot:
        """Return where the step that is being made was asked for."""
        return _spot.get() or spot()

    async def begin_llm(self, target: str, args: Any) -> StepDecision:
        here = self.here()
        self.check()
        self._note(here, "llm_call", target, args)
        decision = await super().begin_llm(target, args)
        self._spots[decision.step_id] = here
        return decision

    async def _end_call(self, outcome: Outcome) -> None:
        await super()._end_call(outcome)
        self._after(self._spots[outcome.step_id], is_fresh=True)

    async def complete(self, output: Any, state: Any) -> None:
        self._finish()
        await super().complete(output, state)

    async def fail(self, reason: str) -> None:
        self._finish()
        await super().fail(reason)

    async def pause(self) -> None:
        try:
            async with asyncio.timeout(PAUSE_SECONDS_MAX):
                await super().pause()
        except TimeoutError:
            _log.warning(
                "execution %s: a step waits for another one that this attempt does not make", self.execution_id
            )

    async def _body(self, run: Run, target: str) -> Any:
        return await run()

    def _after(self, here: Spot, *, is_fresh: bool) -> None:
        """A step has an outcome: a fresh one, or a recorded one."""

    def _note(self, here: Spot, kind: str, target: str, args: Any) -> None:
        try:
            self._trace.note(here, made(kind, target, args, here.place))
        except Divergence as divergence:
            self.diverge(divergence)

    def _finish(self) -> None:
        try:
            self._trace.finish()
        except Divergence as divergence:
            self.diverge(divergence)

    def diverge(self, divergence: Divergence) -> None:
        """End the attempt for good."""
        signal = Diverged(divergence)
        self.note(signal)
        raise signal


class TracedAgent(Agent):
    """Works on one execution of a kernel in this process; `divergence` is what was found."""

    def __init__(self, agent_id: str, *, secret: str, webhook_path: str, kernel: InProcessKernel) -> None:
        super().__init__(agent_id, secret=secret, webhook_path=webhook_path, base_url=kernel.url)
        self._in_process = kernel
        self._trace = Trace()
        self.divergence: Divergence | None = None

    def bind(self, process: Handler) -> None:
        super().bind(process)
        if not inspect.iscoroutinefunction(process):
            # Known only once it runs; its first steps may be those of other threads, beside each other.
            @wraps(process)
            def owned(**arguments: Any) -> Any:
                own_lane()
                return process(**arguments)

            self._handler = owned

    def _context(self, kernel: KernelClient, execution: Execution, held: Held) -> ExecutionContext:
        self._trace.begin()
        lane = Lane()
        if inspect.iscoroutinefunction(self._handler):
            lane.owner = asyncio.current_task()
        on_lane(lane)
        return self._traced(kernel=kernel, keeper=self._keeper, execution=execution, held=held, trace=self._trace)

    def _traced(self, **parts: Any) -> TracedContext:
        return TracedContext(**parts)

    async def _work(self, execution_id: str, held: Held) -> None:
        try:
            await super()._work(execution_id, held)
        except Diverged as signal:
            await self._end(execution_id, held, signal.divergence)

    async def _end(self, execution_id: str, held: Held, divergence: Divergence) -> None:
        self.divergence = divergence
        await self._client().fail_execution(execution_id, lease=held.lease, error="diverged")

    async def _again(self, execution_id: str) -> None:
        """Let another attempt follow."""
        await asyncio.to_thread(self._in_process.end_lease, execution_id)


class Reentered(Blocked):
    """A step was recorded: the attempt ends here, and the next one replays it. Parks a run as a pause does."""


class ReplayingContext(TracedContext):
    """Ends the attempt after every fresh step."""

    def _after(self, here: Spot, *, is_fresh: bool) -> None:
        # A body is not entered again in its middle: what it did outside of its own steps would be done twice.
        if is_fresh and not here.lane.is_in_body:
            self.note(Reentered("another attempt replays what is recorded"))
            self.check()


class ReplayingAgent(TracedAgent):
    """Replays always: the handler is entered again after every step until it makes no fresh one."""

    def _traced(self, **parts: Any) -> TracedContext:
        return ReplayingContext(**parts)

    async def _work(self, execution_id: str, held: Held) -> None:
        try:
            await super()._work(execution_id, held)
        except Reentered:
            try:
                self._trace.end()
            except Divergence as divergence:
                await self._end(execution_id, held, divergence)
            else:
                await self._again(execution_id)
