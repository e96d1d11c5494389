"""The execution that a handler works on. Every primitive finds it in a context variable."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar, Token
from functools import partial
from typing import Any, Literal, TypeVar, cast

import msgspec

from stepwell.errors import (
    APIError,
    Blocked,
    LeaseSuperseded,
    PolicyError,
    RateLimited,
    Signal,
    Terminated,
    ToolError,
)
from stepwell.keeper import Keeper
from stepwell.kernel import Idempotency, KernelClient, Kind, Outcome
from stepwell.settling import Settling
from stepwell.shielding import UnderWay, undisturbed
from stepwell.signing import Lease
from stepwell.types import Execution, StepDecision
from stepwell.values import decode, encode, encode_recorded

T = TypeVar("T")
Settle = Literal["linger", "sync"]
Run = Callable[[], Awaitable[Any]]
"""The body of a step."""

_log = logging.getLogger(__name__)

_current: ContextVar["ExecutionContext"] = ContextVar("stepwell_execution")


def execution() -> "ExecutionContext":
    """Return the execution that this code runs for. Raises RuntimeError outside of a handler."""
    return current("execution()")


def entered(context: "ExecutionContext") -> Token["ExecutionContext"]:
    """Make it the execution of the code that runs from here on in this task."""
    return _current.set(context)


def left(token: Token["ExecutionContext"]) -> None:
    _current.reset(token)


def current(what: str) -> "ExecutionContext":
    """Return the same; `what` is named where there is none."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError(f"{what} was called outside of an execution: it belongs into a handler") from None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt holds, and for how long at a time."""

    lease: Lease
    lease_seconds: float


class ExecutionContext:
    """One attempt at one execution."""

    def __init__(
        self, *, kernel: KernelClient, keeper: Keeper, execution: Execution, held: Held, settle: Settle = "linger"
    ) -> None:
        self.execution_id = execution.id
        self.agent_id = execution.agent_id
        self.input = execution.input
        self.dispatch_id = held.lease.dispatch_id
        self.attempt = held.lease.attempt
        self.lease = held.lease
        self._kernel = kernel
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()
        self._give_up_seconds = held.lease_seconds
        self._is_sync = settle == "sync"
        self._settling = Settling(keeper, self._record_on_keeper, self.note)
        self.is_delegated = False
        """Whether a gateway may act in this attempt: refusals then come as errors of a provider's client."""
        self._ended: BaseException | None = None
        self._steps = UnderWay()
        """From their submission to their outcome: a pause waits for them."""
        self._calls = UnderWay()
        """LLM calls whose answer is not recorded yet: the end of the execution waits for them, too."""

    @property
    def keeper(self) -> Keeper:
        """Where work of this attempt goes on, whatever the handler does."""
        return self._keeper

    @property
    def id(self) -> str:
        """The execution's, by the name that the published client has for it."""
        return self.execution_id

    @property
    def dispatch_attempt(self) -> int:
        """The attempt's number, by the name that the published client has for it."""
        return self.attempt

    # ------------------------------------------------------------ signals

    def note(self, error: BaseException) -> None:
        """Keep why this attempt is over; the first reason stays. May be called from any thread."""
        if self._ended is None:
            self._ended = error

    def check(self) -> None:
        """Raise why this attempt is over, where it is: also when the agent's code swallowed it before."""
        if self._ended is not None:
            raise self._ended

    # ------------------------------------------------------------ steps

    def enter(self, call: Callable[[], Coroutine[Any, Any, T]]) -> Any:
        """Make a call from wherever it comes.

        On the handler's own loop, and on others, the awaitable of its outcome is returned. A thread without a loop
        waits for the outcome and gets it.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(call(), self._loop).result()
        return call() if loop is self._loop else self._from_elsewhere(call)

    async def invoke_tool(
        self,
        target: str,
        args: Any,
        *,
        idempotency: Idempotency = "safe_to_retry",
        run: Run,
        kind: Kind = "tool_call",
    ) -> Any:
        """Submit a step and return its result, recorded or fresh.

        Raises TypeError where JSON cannot carry the arguments, PolicyError, RateLimited, ToolError, and the signals.
        """
        self.check()
        call = self._invoke(target, args, idempotency, run, kind)
        return await undisturbed(call, is_paused=lambda: isinstance(self._ended, Blocked))

    async def _invoke(self, target: str, args: Any, idempotency: Idempotency, run: Run, kind: Kind) -> Any:
        self._steps.begin()
        try:
            decision = await self._submit(kind, target, args, idempotency)
            return await self._decided(decision, target, idempotency, run)
        finally:
            self._steps.end()

    async def _decided(self, decision: StepDecision, target: str, idempotency: Idempotency, run: Run) -> Any:
        match decision.decision:
            case "proceed":
                return await self._perform(decision.step_id, target, idempotency, run)
            case "replay":
                return replayed(target, decision)
            case "denied":
                raise PolicyError(decision.reason, decision.rule_id)
            case "rate_limited":
                raise RateLimited(decision.reason)
            case "blocked" | "execution_blocked":
                raise self._over(Blocked("the execution waits for a person"))
            case "execution_terminal":
                raise self._over(Terminated("the execution has ended"))
            case word:
                raise APIError(f"the kernel says {word!r}, which this library does not know")

    async def begin_llm(self, target: str, args: Any) -> StepDecision:
        """Submit an LLM call. What proceeds keeps the execution from its end until `record_llm` or `fail_llm`.

        Raises TypeError where JSON cannot carry the arguments, and why the attempt is over where it is.
        """
        self.check()
        decision = await self._submit("llm_call", target, args, "safe_to_retry")
        match decision.decision:
            case "proceed":
                self._steps.begin()
                self._calls.begin()
            case "blocked" | "execution_blocked":
                self.note(Blocked("the execution waits for a person"))
            case "execution_terminal":
                self.note(Terminated("the execution has ended"))
            case _:
                pass
        return decision

    async def record_llm(self, step_id: str, record: dict[str, Any]) -> None:
        """Record what a provider answered. Raises TooLarge before anything is sent."""
        outcome = Outcome(step_id=step_id, member="result", json=encode_recorded(record, what="record"))
        await self._end_call(outcome)

    async def fail_llm(self, step_id: str, message: str) -> None:
        """Record that no answer came, or none that is whole."""
        await self._end_call(Outcome(step_id=step_id, member="error", json=encode({"message": message}, what="error")))

    def gateway_headers(self) -> Any:
        """Return the headers that let a gateway act in this attempt, as awaitable or, in a thread, at once.

        From then on every outcome is recorded before its step returns: a call through a gateway cannot carry any.
        """
        return self.enter(self._delegated)

    def gateway_url(self, base_url: str | None = None, *, path: str = "/v1") -> Any:
        """Return the base URL of a gateway for a provider's client that cannot add headers, likewise.

        `base_url` is the gateway's, else `STEPWELL_GATEWAY_URL`; `path` is what the provider's own base URL ends with.
        """
        return self.enter(lambda: self._delegated_url(base_url, path))

    async def publish_delta(self, step_id: str, seq: int, data: str) -> None:
        """Show a piece of a running step to those who watch. Runs on the keeper's loop."""
        await self._keeper.kernel.publish_delta(self.execution_id, step_id, lease=self.lease, seq=seq, data=data)

    async def _delegated(self) -> dict[str, str]:
        self.is_delegated = self._is_sync = True
        await self._settling.flushed()
        return {
            "Rebuno-Agent-Id": self.agent_id,
            "Rebuno-Execution-Id": self.execution_id,
            "Rebuno-Dispatch-Id": self.dispatch_id,
            "Rebuno-Dispatch-Attempt": str(self.attempt),
            "Rebuno-Delegation": self._kernel.delegation(self.execution_id, self.lease),
        }

    async def _delegated_url(self, base_url: str | None, path: str) -> str:
        base_url = base_url or os.environ.get("STEPWELL_GATEWAY_URL", "")
        if not base_url:
            raise ValueError("which gateway? pass its address, or set STEPWELL_GATEWAY_URL")
        return f"{base_url.rstrip('/')}/d/{(await self._delegated())['Rebuno-Delegation']}{path}"

    async def _end_call(self, outcome: Outcome) -> None:
        try:
            await self._record(outcome, "safe_to_retry")
        finally:
            self._leave_call()

    def _leave_call(self) -> None:
        self._steps.end()
        self._calls.end()

    async def _submit(self, kind: Kind, target: str, args: Any, idempotency: Idempotency) -> StepDecision:
        carried = await self._settling.board()
        is_accepted = False
        try:
            decision = await self._kernel.submit_step(
                self.execution_id,
                lease=self.lease,
                kind=kind,
                target=target,
                args=args,
                idempotency=idempotency,
                settle=carried,
                give_up_seconds=self._give_up_seconds,
            )
            is_accepted = decision.decision != "execution_terminal"
        except Signal as signal:
            self.note(signal)
            raise
        finally:
            (self._settling.arrived if is_accepted else self._settling.missed)(carried)
        return decision

    async def _perform(self, step_id: str, target: str, idempotency: Idempotency, run: Run) -> Any:
        """Run the body of a step and record how it ended."""
        try:
            raw = encode_recorded(await run(), what="result")
        except (PolicyError, RateLimited):
            # Of a step inside the body, or of the agent's own making: not the tool's failure.
            raise
        except Exception as error:
            failure = Outcome(step_id=step_id, member="error", json=encode({"message": str(error)}, what="error"))
            await self._record(failure, idempotency)
            raise ToolError(str(error), target, step_id) from error
        await self._record(Outcome(step_id=step_id, member="result", json=raw), idempotency)
        # As a replay reads it, so that both are equal.
        return decode(raw)

    async def _record(self, outcome: Outcome, idempotency: Idempotency) -> None:
        if not isinstance(self._ended, Blocked):
            # A step that ends after another one had to wait is still recorded.
            self.check()
        if not self._is_sync and idempotency != "at_most_once":
            self._settling.add(outcome)
            return
        try:
            await self._kernel.record(
                self.execution_id, outcome, lease=self.lease, give_up_seconds=self._give_up_seconds
            )
        except Signal as signal:
            self.note(signal)
            raise

    # ------------------------------------------------------------ the end

    async def complete(self, output: Any, state: Any) -> None:
        """End the execution with an output; outcomes that nobody has acknowledged yet travel along."""
        await self._end(partial(self._kernel.complete_execution, output=output, state=state))

    async def fail(self, reason: str) -> None:
        """End the execution with a reason."""
        await self._end(partial(self._kernel.fail_execution, error=reason))

    async def pause(self) -> None:
        """Leave the execution as it is, once the steps that go on beside have ended and every outcome is recorded."""
        await self._steps.ended()
        await self._settling.flushed()

    async def cut_off(self, seconds: float) -> None:
        """End in the middle and record what is known, as far as the time allows.

        Raises why the attempt was over already, where it was.
        """
        if self._ended is not None:
            self._settling.drop()
            raise self._ended
        try:
            async with asyncio.timeout(seconds):
                await self._settling.flushed()
        except TimeoutError:
            _log.warning("execution %s: outcomes are left unrecorded", self.execution_id)

    def abandon(self) -> None:
        """Leave the execution to whoever has it now."""
        self._settling.drop()

    async def _end(self, end: Callable[..., Awaitable[None]]) -> None:
        await self._calls.ended()
        # A stream that was read on for its record may have found the attempt to be over.
        self.check()
        carried = await self._settling.board()
        is_accepted = False
        try:
            await end(self.execution_id, lease=self.lease, settle=carried, give_up_seconds=self._give_up_seconds)
            is_accepted = True
        finally:
            (self._settling.arrived if is_accepted else self._settling.missed)(carried)

    # ------------------------------------------------------------ the lease

    async def keep_lease(self, every_seconds: float, superseded: Callable[[], object]) -> None:
        """Beat until the lease is another's; then say so. Runs on the keeper's loop."""
        while True:
            await asyncio.sleep(every_seconds)
            try:
                await self._keeper.kernel.heartbeat(self.execution_id, lease=self.lease)
            except LeaseSuperseded as signal:
                self.note(signal)
                self._loop.call_soon_threadsafe(superseded)
                return
            except Exception as error:  # noqa: BLE001 - the top of a loop: the next beat may get through
                _log.warning("execution %s: a heartbeat was lost: %s", self.execution_id, error)

    # ------------------------------------------------------------ other threads and loops

    async def _record_on_keeper(self, outcome: Outcome) -> None:
        await self._keeper.kernel.record(
            self.execution_id, outcome, lease=self.lease, give_up_seconds=self._give_up_seconds
        )

    async def _from_elsewhere(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._loop))

    def _over(self, signal: Signal) -> Signal:
        self.note(signal)
        return signal


def replayed(target: str, decision: StepDecision) -> Any:
    """Return the recorded result of a step, or raise its recorded error."""
    if decision.error is None:
        return decision.result
    raise ToolError(words_of(decision.error), target, decision.step_id)


def words_of(error: Any) -> str:
    """Return what a recorded error says to people."""
    words: Any = None
    if isinstance(error, dict):
        members = cast("dict[str, Any]", error)
        words = members.get("message") or members.get("reason")
    return str(words or cast("object", error))
