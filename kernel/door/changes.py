"""Waking the readers that wait for an execution's next event. A message is a hint: readers look by themselves too."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

import msgspec

from kernel.ports import Subscription, Wakes, changes_channel

_ids = msgspec.msgpack.Decoder(list[str])


class Changes:
    """Who waits for which execution, and the subscriptions that wake them."""

    def __init__(self, shards: int) -> None:
        self._waiting: list[dict[str, set[Callable[[], None]]]] = [{} for _ in range(shards)]

    async def listen(self, wakes: Wakes) -> list[Subscription]:
        """Hear what changes in every shard, for as long as the subscriptions stand."""
        return [
            await wakes.listen(changes_channel(shard), partial(self._hear, shard))
            for shard in range(len(self._waiting))
        ]

    @contextmanager
    def watch(self, shard: int, execution_id: str) -> Generator[asyncio.Event]:
        """Give an event that is set whenever the execution may have changed."""
        woken = asyncio.Event()
        with self.on_change(shard, execution_id, woken.set):
            yield woken

    @contextmanager
    def on_change(self, shard: int, execution_id: str, call: Callable[[], None]) -> Generator[None]:
        """Have something called whenever the execution may have changed. It must not block, or leave here."""
        waiting = self._waiting[shard]
        calls = waiting.setdefault(execution_id, set())
        calls.add(call)
        try:
            yield
        finally:
            calls.discard(call)
            if not calls:
                waiting.pop(execution_id, None)

    def _hear(self, shard: int, payload: bytes) -> None:
        waiting = self._waiting[shard]
        if not waiting:
            return
        try:
            execution_ids = _ids.decode(payload)
        except msgspec.DecodeError:
            return
        for execution_id in execution_ids:
            for call in waiting.get(execution_id, ()):
                call()
