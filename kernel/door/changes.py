"""Waking the readers that wait for an execution's next event. A message is a hint: readers look by themselves too."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

import msgspec

from kernel.ports import Subscription, Wakes, changes_channel

_ids = msgspec.msgpack.Decoder(list[str])


class Changes:
    """Who waits for which execution, and the subscriptions that wake them."""

    def __init__(self, shards: int) -> None:
        self._waiting: list[dict[str, set[asyncio.Event]]] = [{} for _ in range(shards)]

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
        waiting = self._waiting[shard]
        events = waiting.setdefault(execution_id, set())
        events.add(woken)
        try:
            yield woken
        finally:
            events.discard(woken)
            if not events:
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
            for woken in waiting.get(execution_id, ()):
                woken.set()
