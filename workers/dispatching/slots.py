"""Webhook slots: what bounds an agent's open calls over all dispatchers. One is held from before the claim to the end
of the call, and given back beside whatever follows; one that nobody gives back ends by itself.
"""

import asyncio
import logging
import secrets
import time
from typing import Self

from kernel.domain.errors import ViewUnavailable
from kernel.ports import DispatcherView, DueItem

SLOT_MARGIN_SECONDS = 10.0
"""A slot is held that much longer than a call may take. Together that is less than the lease of an attempt that was
not acknowledged, so what a killed dispatcher had open finds its slot free when it is due again."""
FRESH_SECONDS = SLOT_MARGIN_SECONDS / 2
"""A call does not begin on a slot that is older: it is taken anew first. The other half of the margin is slack."""
GIVE_SECONDS = 2.0

logger = logging.getLogger(__name__)


class Slot:
    """A place among an agent's open calls. Used as a context, it has been given back at the end, or nearly so."""

    def __init__(self, view: DispatcherView, item: DueItem, *, holder: str, limit: int, hold_ms: int) -> None:
        self._view = view
        self._item = item
        self._holder = holder
        self._limit = limit
        self._hold_ms = hold_ms
        self._asked_at = 0.0
        self._giving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.give()
        if self._giving is not None:
            await self._giving

    async def take(self) -> bool:
        """Take the slot, or take it anew; False where none is free. Raises ViewUnavailable."""
        asked_at = time.monotonic()
        item = self._item
        is_taken = await self._view.take_slot(
            item.tenant, item.agent_id, holder=self._holder, limit=self._limit, hold_ms=self._hold_ms
        )
        if is_taken:
            # Counted from before the view was asked, so a pause of this process only ever makes a slot older.
            self._asked_at = asked_at
        return is_taken

    async def is_lasting(self) -> bool:
        """Make sure that the slot outlasts a call that begins now; False where it does not."""
        if time.monotonic() - self._asked_at < FRESH_SECONDS:
            return True
        try:
            return await self.take()
        except ViewUnavailable as error:
            logger.info("execution %s: its webhook slot could not be kept: %s", self._item.execution_id, error)
            return False

    def give(self) -> None:
        """Begin to give the slot back, once; the end of the context waits until that is done."""
        if self._giving is None:
            self._giving = asyncio.create_task(self._give(), name=f"give-slot-{self._holder}")

    async def _give(self) -> None:
        try:
            async with asyncio.timeout(GIVE_SECONDS):
                await self._view.give_slot(self._item.tenant, self._item.agent_id, holder=self._holder)
        except (ViewUnavailable, TimeoutError) as error:
            logger.info("execution %s: its webhook slot is left to end by itself: %s", self._item.execution_id, error)


class Slots:
    """The slots that one process takes; the view counts them."""

    def __init__(self, view: DispatcherView, *, name: str, delivery_seconds: float) -> None:
        self._view = view
        self._name = name
        self._hold_ms = int((delivery_seconds + SLOT_MARGIN_SECONDS) * 1000)

    async def take(self, item: DueItem, *, limit: int) -> Slot | None:
        """Return a slot for the delivery, None where its agent has none free. Raises ViewUnavailable."""
        # Unique for each delivery, so that what one leaves behind is never another's.
        holder = f"{self._name}.{secrets.token_hex(8)}"
        slot = Slot(self._view, item, holder=holder, limit=limit, hold_ms=self._hold_ms)
        try:
            return slot if await slot.take() else None
        except BaseException:
            # Unknown whether it was taken: nobody will hold it.
            async with slot:
                raise
