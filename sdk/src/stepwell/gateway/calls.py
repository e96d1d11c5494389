"""LLM calls under way in this gateway: each is one step, and one question to the provider, whoever waits for it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from itertools import chain
from typing import Any, TypeVar

from stepwell.errors import RebunoError
from stepwell.exchange import Exchange
from stepwell.gateway.callers import Caller, Delegated
from stepwell.gateway.ordinals import Kind, Ordinals
from stepwell.gateway.upstreams import Forward, Unreachable
from stepwell.kernel import GIVE_UP_SECONDS, KernelClient, Outcome
from stepwell.llm.asking import content_type_of, final, no_answer
from stepwell.llm.calls import LlmCall
from stepwell.llm.reading import Reading
from stepwell.llm.records import Answer, failure
from stepwell.llm.scrubbing import Scrub
from stepwell.llm.step import LlmStep, Unrecordable, begin, refused, replayed
from stepwell.types import StepDecision
from stepwell.values import encode, encode_recorded

CALLS_MAX = 1000
"""Under way at once; each holds an answer of up to 32 MiB until it is recorded."""
EARLIER_MAX = 1000
"""Calls of the same words in one attempt that are looked through for the first that is not taken yet."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Busy(Exception):
    """No other call can begin now."""


class Overtaken(RebunoError):
    """Another gateway has recorded an answer of the same call before."""

    def __init__(self, recorded: StepDecision) -> None:
        super().__init__("another answer of this call is in the record")
        self.recorded = recorded


class _Beside:
    """What goes on beside a call runs on the gateway's own loop."""

    def begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        return asyncio.ensure_future(work)

    def call_soon(self, act: Callable[[], None]) -> None:
        act()


class DelegatedAttempt:
    """The attempt of a caller, as far as one call of a kind needs it."""

    def __init__(self, kernel: KernelClient, caller: Caller, keys: Iterator[str]) -> None:
        """`keys` are tried in order, until one is not that of an earlier call; the last one is taken in any case."""
        self.keeper = _Beside()
        self._kernel = kernel
        self._caller = caller
        self._keys = keys

    async def begin_llm(self, target: str, args: Any) -> StepDecision:
        decision = await self._submit(target, args, next(self._keys))
        for key in self._keys if decision.is_repeat else ():
            decision = await self._submit(target, args, key)
            if not decision.is_repeat:
                break
        return decision

    async def record_llm(self, step_id: str, record: dict[str, Any]) -> None:
        await self._record(Outcome(step_id=step_id, member="result", json=encode_recorded(record, what="record")))

    async def fail_llm(self, step_id: str, message: str) -> None:
        await self._record(Outcome(step_id=step_id, member="error", json=encode({"message": message}, what="error")))

    async def publish_delta(self, step_id: str, seq: int, data: str) -> None:
        caller = self._caller
        await self._kernel.publish_delta(caller.execution_id, step_id, lease=caller.lease, seq=seq, data=data)

    async def _submit(self, target: str, args: Any, key: str) -> StepDecision:
        return await self._kernel.submit_step(
            self._caller.execution_id, lease=self._caller.lease, kind="llm_call", target=target, args=args, key=key
        )

    async def _record(self, outcome: Outcome) -> None:
        caller = self._caller
        decision = await self._kernel.record(
            caller.execution_id, outcome, lease=caller.lease, give_up_seconds=GIVE_UP_SECONDS
        )
        if decision.decision == "replay":
            raise Overtaken(decision)


class _UnderWay:
    """One call. It stays here until it is recorded, so that a repeat finds it and never asks the provider anew."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.ordinals: list[int] = []
        """Those that it has, or had before it was found that another call has them."""
        self.answer: asyncio.Future[Answer | Reading] = asyncio.get_running_loop().create_future()


class Calls:
    """All of them, of one process."""

    def __init__(self, exchange: Exchange, api_key: str, scrub: Scrub | None) -> None:
        self._exchange = exchange
        self._api_key = api_key
        self._scrub = scrub
        self._ordinals = Ordinals()
        self._under_way: dict[tuple[Kind, int], _UnderWay] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(
        self, caller: Caller, kind: Kind, call: LlmCall, forward: Forward, *, is_repeated: bool
    ) -> Answer | Reading:
        """Return what answers a call: whole, or as it comes. Raises Busy.

        A call goes on, and is recorded, when nobody waits for it any more.
        """
        found = self._under_way.get((kind, self._ordinals.last(kind))) if is_repeated else None
        if found is None:
            if len(self._tasks) >= CALLS_MAX:
                raise Busy
            found = _UnderWay(kind)
            keys = self._key_of_the_last(found) if is_repeated else self._new_keys(found)
            # The first is taken here and now: a repeat that comes next has to find this call.
            attempt = DelegatedAttempt(self._kernel(caller), caller, chain((next(keys),), keys))
            task = asyncio.create_task(self._carry(found, attempt, call, forward))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(found.answer)

    async def is_good(self, caller: Caller) -> None:
        """Return where the kernel accepts the caller's token. Raises what the refusal stands for."""
        await self._kernel(caller).heartbeat(caller.execution_id, lease=caller.lease)

    async def drain(self, wait_seconds: float) -> None:
        """Return when no call is under way. What is left after the time is cut off, and is asked for again later."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=wait_seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    # ------------------------------------------------------------ one call

    def _new_keys(self, found: _UnderWay) -> Iterator[str]:
        """Give keys for a new call. One may be taken: by another gateway, or by this one before it began anew."""
        for _ in range(EARLIER_MAX):
            ordinal = self._ordinals.take(found.kind)
            if (found.kind, ordinal) not in self._under_way:
                yield self._held(found, ordinal)
        raise Busy

    def _key_of_the_last(self, found: _UnderWay) -> Iterator[str]:
        yield self._held(found, self._ordinals.last(found.kind))

    def _held(self, found: _UnderWay, ordinal: int) -> str:
        found.ordinals.append(ordinal)
        self._under_way[found.kind, ordinal] = found
        return found.kind.key(ordinal)

    async def _carry(self, found: _UnderWay, attempt: DelegatedAttempt, call: LlmCall, forward: Forward) -> None:
        try:
            begun = await begin(attempt, call, self._scrub)
            result = begun if isinstance(begun, Answer) else await self._asked(begun, call, forward, found)
            if not found.answer.done():
                found.answer.set_result(result)
        except BaseException as error:
            if not found.answer.done():
                found.answer.set_exception(error if isinstance(error, Exception) else Unreachable("the gateway ends"))
                # Whoever waited may have left.
                found.answer.exception()
            if not isinstance(error, Exception):
                raise
            _log.debug("a call ended with %r", error)
        finally:
            for ordinal in found.ordinals:
                del self._under_way[found.kind, ordinal]

    async def _asked(self, step: LlmStep, call: LlmCall, forward: Forward, found: _UnderWay) -> Answer | Reading:
        """Ask the provider; return what came once it is recorded."""
        try:
            response = await final(forward.ask, call, Unreachable)
        except Unreachable as error:
            message = no_answer(error)
            lost = await step.fail(message)
            return failure(message) if lost is None else _instead(lost)
        if isinstance(response, Answer):
            lost = await step.record(response)
            return response if lost is None else _instead(lost)
        reading = Reading(step, response.status_code, content_type_of(response), is_strict=True)
        task = reading.start(response.aiter_bytes(), response.aclose, Unreachable)
        found.answer.set_result(reading)
        await _with(task)
        return reading

    def _kernel(self, caller: Caller) -> KernelClient:
        exchange = self._exchange.acting(Delegated(self._api_key, caller))
        return KernelClient(agent_id=caller.agent_id, secret="", exchange=exchange)


def _instead(lost: BaseException) -> Answer:
    """Return what a caller gets in place of an answer that is not in the record."""
    if isinstance(lost, Unrecordable) and lost.lost is not None:
        lost = lost.lost
    return replayed(lost.recorded) if isinstance(lost, Overtaken) else refused(lost)


async def _with(task: "asyncio.Task[None]") -> None:
    """Wait for a task that ends with this one."""
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        raise
