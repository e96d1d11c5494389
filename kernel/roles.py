"""The roles of a process, put together from what they share: a door, a projector, a dispatcher."""

import asyncio
import secrets

from kernel.door.app import build_app
from kernel.listener import Listener
from kernel.process import Parts
from workers.dispatcher import Dispatcher
from workers.projector import Projector


class DoorRole:
    title = "door"

    def __init__(self, parts: Parts, listener: Listener) -> None:
        self._listener = listener
        self._ended = asyncio.Event()
        self._door = build_app(
            settings=parts.settings,
            log=parts.log,
            view=parts.view,
            wakes=parts.wakes,
            control=parts.control,
            name=_new_name("door"),
        )

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered now."""
        return self._door.is_ready()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(self._door.run(), name="pulse of the door")
                await self._listener.run(self._door)
                beating.cancel()
        finally:
            self._ended.set()

    async def drain(self) -> None:
        """Answer 503 to what is new while what is open is answered."""
        await self._door.drain()

    async def stop(self) -> None:
        """Answer 503 to what is new while what is open is answered; only then close the connections."""
        await self.drain()
        self._listener.stop()
        await self._ended.wait()


class ProjectorRole:
    title = "projector"

    def __init__(self, parts: Parts) -> None:
        self._projector = Projector(
            settings=parts.settings,
            log=parts.log,
            view=parts.view,
            wakes=parts.wakes,
            name=_new_name("projector"),
        )

    async def run(self) -> None:
        await self._projector.run()

    async def stop(self) -> None:
        """Nothing: being cancelled hands the shards over, and until then doors and dispatchers need their answers."""


class DispatcherRole:
    title = "dispatcher"

    def __init__(self, parts: Parts) -> None:
        self._ended = asyncio.Event()
        self._dispatcher = Dispatcher(
            settings=parts.settings,
            log=parts.log,
            view=parts.view,
            wakes=parts.wakes,
            control=parts.control,
            name=_new_name("dispatcher"),
        )

    async def run(self) -> None:
        try:
            await self._dispatcher.run()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Claim nothing more; open deliveries end within the dispatcher's own bound."""
        self._dispatcher.stop()
        await self._ended.wait()


def _new_name(title: str) -> str:
    """A name of its own for each role, even in one process: answers to one are no business of the others."""
    return title + secrets.token_hex(6)
