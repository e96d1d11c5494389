"""RedisView as dispatchers use it: due work is taken, held and given back, all by the server's clock."""

import logging
from collections.abc import Sequence
from typing import cast

import msgspec

from kernel.domain.errors import InvariantBroken
from kernel.ports import DueItem, DueWork
from kernel.view.client import Client
from kernel.view.headers import checked_header
from kernel.view.keys import due_member, parse_due_member, place, shard_keys, slots_key
from kernel.view.limits import SILENCE_MS_MAX
from kernel.view.scripts import DEFER, TAKE_DUE, TAKE_SLOT

logger = logging.getLogger(__name__)


class RedisDispatcherView:
    """Implements `kernel.ports.DispatcherView`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def take_due(self, shard: int, *, items_max: int, hold_ms: int, lease_ms: int) -> DueWork:
        keys = shard_keys(shard)
        places = (
            *(keys.due, keys.marks, keys.floor, keys.doors, keys.polled),
            *(keys.rebuilding, keys.dirty, keys.watermark),
        )
        arguments = (items_max, hold_ms, lease_ms, SILENCE_MS_MAX, keys.executions)
        reply = await self._client.run(TAKE_DUE, places, arguments)
        next_due_ms, *found = cast("list[int | bytes]", reply)
        given = cast("list[bytes]", found)
        items = [_item(member.decode(), raw) for member, raw in zip(given[::2], given[1::2], strict=True)]
        sound = tuple(item for item in items if item is not None)
        return DueWork(items=sound, next_due_ms=None if next_due_ms == -1 else cast("int", next_due_ms))

    async def defer(self, shard: int, items: Sequence[DueItem], *, delay_ms: int) -> None:
        if items:
            members = [due_member(item.kind, place(item.tenant, item.execution_id, item.agent_id)) for item in items]
            await self._client.run(DEFER, (shard_keys(shard).due,), (delay_ms, *members))

    async def take_slot(self, tenant: str, agent_id: str, *, holder: str, limit: int, hold_ms: int) -> bool:
        return await self._client.run(TAKE_SLOT, (slots_key(tenant, agent_id),), (holder, limit, hold_ms)) == 1

    async def give_slot(self, tenant: str, agent_id: str, *, holder: str) -> None:
        await self._client.call("ZREM", slots_key(tenant, agent_id), holder)


def _item(member: str, raw: bytes) -> DueItem | None:
    """Return the item, None where its header is damaged: one execution must not hold up the others of its batch."""
    kind, tenant, execution_id, agent_id = parse_due_member(member)
    try:
        header = checked_header(raw, tenant=tenant, execution_id=execution_id)
    except (InvariantBroken, msgspec.DecodeError) as error:
        logger.critical("due work is left alone, since its execution is damaged in the view: %s", error)
        return None
    return DueItem(kind=kind, tenant=tenant, agent_id=agent_id, execution_id=execution_id, header=header)
