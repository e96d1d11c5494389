"""What lies between a simulated process and the servers: delays, lost answers, lost wake-ups, and no order at all.

A request that left is carried out though its sender was cancelled or died meanwhile, as a real server does.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from kernel.domain.errors import KernelError, LogUnavailable, ViewUnavailable
from kernel.log.appending import append_through
from kernel.log.limits import LogLimits
from kernel.log.memory import MemoryLog, MemoryWakes
from kernel.ports import (
    Acknowledged,
    ControlMessage,
    Follower,
    LogMessage,
    LogState,
    Outgoing,
    Piece,
    Rejected,
    Subscription,
)
from kernel.view.memory import MemoryView
from tests.fault.simulation.link import Link
from tests.fault.simulation.virtual import Process, VirtualLoop

T = TypeVar("T")

_LIMITS = LogLimits(republish_seconds=0.5)
_NOTICE_SECONDS = 0.05
"""Until whoever asked learns that its connection is gone."""


class Network:
    """How bad it is at present. Probabilities are 0 to 1, `slowness` stretches every delay."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.slowness = 1.0
        self.lost_answers = 0.0
        """Of the view: what was asked was done, and the answer never comes."""
        self.lost_wakes = 0.0
        self.repeated_wakes = 0.0
        self.lost_calls = 0.0
        """Of HTTP: the request or its answer is lost."""

    def delay(self) -> float:
        """Return seconds for one way: none, a little, or once in a while a lot."""
        drawn = self.rng.random()
        if drawn < 0.5:
            return 0.0
        return (0.004 * drawn if drawn < 0.97 else 0.3 * self.rng.random()) * self.slowness

    def strikes(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def later(self, seconds: float, callback: Callable[..., None], *args: object) -> None:
        """Let something happen outside of every process."""
        context = self.loop.outside.context
        if seconds > 0:
            self.loop.call_later(seconds, callback, *args, context=context)
        else:
            self.loop.call_soon(callback, *args, context=context)

    async def pause(self, seconds: float) -> None:
        """Let virtual time pass for the process that asks."""
        waiter = self.loop.create_future()
        timer = self.loop.call_later(seconds, _let_go, waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    async def ask(
        self,
        question: Callable[[], Coroutine[Any, Any, T]],
        lost: Callable[[], KernelError],
        is_cut: Callable[[], bool],
    ) -> T:
        """Ask a server: `question` is answered at once where it runs, and runs whatever becomes of who asked."""
        waiter: asyncio.Future[T] = self.loop.create_future()
        if is_cut():
            self.later(_NOTICE_SECONDS + self.delay(), _fail, waiter, lost())
        else:
            self.later(self.delay(), self._carry_out, question, lost, is_cut, waiter)
        return await waiter

    def _carry_out(
        self,
        question: Callable[[], Coroutine[Any, Any, T]],
        lost: Callable[[], KernelError],
        is_cut: Callable[[], bool],
        waiter: asyncio.Future[T],
    ) -> None:
        try:
            answer = _at_once(question())
        except KernelError as error:
            self.later(self.delay(), _fail, waiter, error)
            return
        if is_cut() or self.strikes(self.lost_answers):
            self.later(_NOTICE_SECONDS + self.delay(), _fail, waiter, lost())
        else:
            self.later(self.delay(), _give, waiter, answer)


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end what never waits."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("a memory adapter waited")


def _let_go(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _give(waiter: asyncio.Future[T], answer: T) -> None:
    if not waiter.done():
        waiter.set_result(answer)


def _fail(waiter: asyncio.Future[Any], error: Exception) -> None:
    if not waiter.done():
        waiter.set_exception(error)


def _view_gone() -> KernelError:
    return ViewUnavailable("the connection broke", reason="view_unavailable")


def _log_gone() -> KernelError:
    return LogUnavailable("the connection broke")


class RemoteView:
    """The view as one process reaches it: every method of the port goes over the network."""

    def __init__(self, network: Network, view: MemoryView, link: Link) -> None:
        self._network = network
        self._view = view
        self._link = link

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._view, name)

        def ask(*args: object, **named: object) -> Coroutine[Any, Any, Any]:
            return self._network.ask(partial(method, *args, **named), _view_gone, self._is_cut)

        setattr(self, name, ask)
        return ask

    def _is_cut(self) -> bool:
        return self._link.is_view_cut


Said = Callable[[Acknowledged | Rejected], None]
Store = Callable[[Said], None]


class RemoteLog:
    """Log and ControlLog as one process reaches them. Its connection is lost with its own way or with the log."""

    def __init__(self, network: Network, log: MemoryLog, link: Link) -> None:
        self._network = network
        self._log = log
        self._link = link
        self._lost: asyncio.Future[None] | None = None

    @property
    def is_connected(self) -> bool:
        return self._log.is_connected and not self._link.is_log_cut

    @property
    def lost(self) -> asyncio.Future[None]:
        if self._lost is None or (self._lost.done() and self.is_connected):
            lost = self._lost = self._network.loop.create_future()
            for cause in (self._log.lost, self._link.log_cut):
                if cause.done():
                    _let_go(lost)
                cause.add_done_callback(lambda _: _let_go(lost))
        return self._lost

    async def wait_connected(self) -> None:
        while not self.is_connected:
            await self._log.wait_connected()
            await self._link.wait_log()

    def is_silent(self, shard: int) -> bool:
        return self._log.is_silent(shard)

    def note_stored(self, shard: int, *, sent_at: float) -> None:
        self._log.note_stored(shard, sent_at=sent_at)

    def send(self, outgoing: Outgoing, acknowledged: Said) -> None:
        self._send(partial(self._log.send, outgoing), acknowledged)

    def _send(self, store: Store, acknowledged: Said) -> None:
        if not self.is_connected:
            raise LogUnavailable("not connected to the log")
        process = self._network.loop.current
        self._network.later(self._network.delay(), self._arrive, store, process, acknowledged)

    def _arrive(self, store: Store, process: Process, acknowledged: Said) -> None:
        if self._is_cut() and self._network.rng.random() < 0.5:
            # It was still under way; else it had arrived, and the acknowledgement is what is lost.
            return
        try:
            store(partial(self._say, process, acknowledged))
        except LogUnavailable:
            # It went under with the connection, and nobody will ever say so.
            return

    def _say(self, process: Process, acknowledged: Said, said: Acknowledged | Rejected) -> None:
        if not self._is_cut():
            loop = self._network.loop
            loop.call_later(self._network.delay(), acknowledged, said, context=process.context)

    async def append(self, outgoing: Outgoing, *, timeout_seconds: float) -> Acknowledged:
        return await append_through(self, partial(self.send, outgoing), timeout_seconds=timeout_seconds, limits=_LIMITS)

    async def get(self, shard: int, seq: int) -> LogMessage | None:
        return await self._ask(partial(self._log.get, shard, seq))

    async def state(self, shard: int) -> LogState:
        return await self._ask(partial(self._log.state, shard))

    async def mark(self, shard: int) -> bytes | None:
        return await self._ask(partial(self._log.mark, shard))

    async def put_mark(self, shard: int, payload: bytes, *, timeout_seconds: float) -> None:
        async def put() -> None:
            self._log.marks[shard] = payload

        await self._ask(put)

    async def put_piece(self, piece: Piece, *, timeout_seconds: float) -> Acknowledged:
        send = partial(self._send, partial(self._log.send_piece, piece))
        return await append_through(self, send, timeout_seconds=timeout_seconds, limits=_LIMITS)

    async def piece(self, shard: int, seq: int) -> LogMessage | None:
        return await self._ask(partial(self._log.piece, shard, seq))

    async def bodies_state(self, shard: int) -> LogState:
        return await self._ask(partial(self._log.bodies_state, shard))

    async def drop_piece(self, shard: int, seq: int) -> None:
        await self._ask(partial(self._log.drop_piece, shard, seq))

    @asynccontextmanager
    async def follow(self, shard: int, *, after_seq: int) -> AsyncGenerator[Follower]:
        async with self._log.follow(shard, after_seq=after_seq) as follower:
            yield _RemoteFollower(self._network, follower, self._link)

    async def append_control(self, *, entry_id: str, payload: bytes, timeout_seconds: float) -> int:
        return await self._log.append_control(entry_id=entry_id, payload=payload, timeout_seconds=timeout_seconds)

    async def read_control(self, *, after_seq: int) -> list[ControlMessage]:
        return await self._ask(partial(self._log.read_control, after_seq=after_seq))

    async def control_head(self) -> int:
        return await self._ask(self._log.control_head)

    async def wait_control(self, *, wait_seconds: float) -> None:
        await self._network.pause(wait_seconds)

    async def _ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._network.ask(question, _log_gone, self._is_cut)

    def _is_cut(self) -> bool:
        return self._link.is_log_cut


class _RemoteFollower:
    """Messages come late at times, never out of order, and not at all while the way is cut."""

    def __init__(self, network: Network, follower: Follower, link: Link) -> None:
        self._network = network
        self._follower = follower
        self._link = link
        self._mends_before = link.log_mends

    @property
    def restarts(self) -> int:
        return self._follower.restarts + self._link.log_mends - self._mends_before

    async def next(self, *, messages_max: int, bytes_max: int, wait_seconds: float) -> list[LogMessage]:
        delay = self._network.delay()
        if delay:
            await self._network.pause(delay)
        if self._link.is_log_cut:
            await self._network.pause(wait_seconds)
            return []
        # A short bound now and then, so that batches are cut in many ways.
        cut = self._network.rng.choice((1, 2, 3, messages_max, messages_max))
        return await self._follower.next(messages_max=cut, bytes_max=bytes_max, wait_seconds=wait_seconds)


class RemoteWakes:
    """Wake-ups as one process tells and hears them: lost, repeated, late, in any order. They go the way of the log."""

    def __init__(self, network: Network, wakes: MemoryWakes, process: Process, link: Link) -> None:
        self._network = network
        self._wakes = wakes
        self._process = process
        self._link = link

    def tell(self, channel: str, payload: bytes) -> None:
        network = self._network
        if self._link.is_log_cut or network.strikes(network.lost_wakes):
            return
        network.later(network.delay(), self._wakes.tell, channel, payload)
        if network.strikes(network.repeated_wakes):
            network.later(network.delay() + 0.02, self._wakes.tell, channel, payload)

    async def listen(self, channel: str, heard: Callable[[bytes], None], *, group: str = "") -> Subscription:
        loop, context = self._network.loop, self._process.context

        def pass_on(payload: bytes) -> None:
            if not self._link.is_log_cut:
                loop.call_soon(heard, payload, context=context)

        return await self._wakes.listen(channel, pass_on, group=group)
