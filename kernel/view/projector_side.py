"""RedisView as projectors use it: ownership, reads for the fold, and the one script that writes a batch."""

import secrets
from collections.abc import Sequence
from typing import cast

from kernel.domain.errors import InvariantBroken, OwnershipLost
from kernel.ports import Batch, Fetch, Fetched, Ownership, ViewState, Watermark
from kernel.view.client import Argument, Client, Command
from kernel.view.commands import apply_arguments, parse_watermark, watermark_text
from kernel.view.connections import Reply, unavailable
from kernel.view.headers import check_header
from kernel.view.keys import (
    PROJECTORS,
    answers_key,
    create_keys_key,
    directory_field,
    directory_key,
    execution_key,
    located,
    shard_keys,
)
from kernel.view.scripts import (
    ACQUIRE,
    ANNOUNCE,
    APPLY,
    KEEP,
    LOAD,
    RELEASE,
    WIPE_BEGIN,
    WIPE_END,
    WIPE_STEP,
    Script,
)
from schemas.records import HEADER_FIELD

_NONCE_BYTES = 8
_APPLIED = 1
_DAMAGED = -2


class RedisProjectorView:
    """Implements `kernel.ports.ProjectorView`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def acquire(self, shard: int, *, owner: str, ttl_ms: int, lease_ms: int) -> Ownership | None:
        keys = shard_keys(shard)
        arguments = (owner, secrets.token_hex(_NONCE_BYTES), ttl_ms, lease_ms)
        token = await self._client.run(ACQUIRE, (keys.owner, keys.epoch, keys.floor), arguments)
        return None if token is None else Ownership(shard=shard, token=cast("bytes", token).decode())

    async def keep(self, ownership: Ownership, *, ttl_ms: int) -> ViewState:
        keys = shard_keys(ownership.shard)
        places = (keys.owner, keys.watermark, keys.dirty, keys.rebuilding)
        found = await self._client.run(KEEP, places, (ownership.token, ttl_ms))
        if found is None:
            raise _lost(ownership)
        watermark, dirty, rebuilding = cast("list[bytes | None]", found)
        return ViewState(
            watermark=parse_watermark(watermark), is_dirty=dirty is not None, is_rebuilding=rebuilding is not None
        )

    async def release(self, ownership: Ownership) -> None:
        await self._client.run(RELEASE, (shard_keys(ownership.shard).owner,), (ownership.token,))

    async def load(self, shard: int, fetches: Sequence[Fetch]) -> list[Fetched]:
        if not fetches:
            return []
        arguments: list[Argument] = []
        for fetch in fetches:
            execution_id = fetch.execution_id
            arguments += (
                execution_key(shard, fetch.tenant, execution_id),
                directory_key(shard, execution_id),
                directory_field(execution_id),
                len(fetch.fields),
            )
            arguments += fetch.fields
        reply = await self._client.run(LOAD, (shard_keys(shard).watermark,), arguments)
        return _fetched(fetches, cast("list[Reply]", reply))

    async def load_create_keys(self, shard: int, keys: Sequence[tuple[str, bytes]]) -> list[bytes | None]:
        commands: list[Command] = [("HGET", create_keys_key(shard, tenant), digest) for tenant, digest in keys]
        return cast("list[bytes | None]", await self._client.pipeline(commands))

    async def log_bytes(self, shard: int) -> dict[str, int]:
        reply = cast("list[bytes]", await self._client.call("HGETALL", shard_keys(shard).log_bytes))
        return {tenant.decode(): int(count) for tenant, count in zip(reply[::2], reply[1::2], strict=True)}

    async def recent_entry_ids(self, shard: int) -> list[str]:
        slices = cast("list[bytes]", await self._client.call("ZRANGE", shard_keys(shard).slices, 0, -1))
        commands: list[Command] = [("HKEYS", answers_key(shard, int(number))) for number in slices]
        found = cast("list[list[bytes]]", await self._client.pipeline(commands))
        return [entry_id.decode() for entry_ids in found for entry_id in entry_ids]

    async def apply(self, ownership: Ownership, batch: Batch) -> None:
        keys = shard_keys(ownership.shard)
        places = (keys.owner, keys.watermark, keys.dirty, keys.rebuilding, keys.floor)
        reply = await self._client.run(APPLY, places, apply_arguments(ownership.shard, ownership.token, batch))
        if reply == _DAMAGED:
            raise InvariantBroken(f"shard {ownership.shard}: an execution has lost fields, or has some of its own")
        if reply != _APPLIED:
            raise _lost(ownership)

    async def wipe(self, ownership: Ownership, *, created_at: str, lease_ms: int) -> Watermark:
        keys = shard_keys(ownership.shard)
        empty = Watermark(created_at=created_at, seq=0, checksum="")
        begin = (keys.owner, keys.watermark, keys.rebuilding, keys.floor)
        await self._fenced(WIPE_BEGIN, ownership, begin, (lease_ms,))
        await self._drop_all(ownership)
        end = (keys.owner, keys.watermark, keys.dirty, keys.floor)
        await self._fenced(WIPE_END, ownership, end, (watermark_text(empty), lease_ms))
        return empty

    async def announce_projector(self, owner: str, *, ttl_ms: int) -> int:
        return cast("int", await self._client.run(ANNOUNCE, (PROJECTORS,), (owner, ttl_ms)))

    async def _drop_all(self, ownership: Ownership) -> None:
        keys, limits = shard_keys(ownership.shard), self._client.limits
        cursor: Reply = b"0"
        while True:
            where = (cast("bytes", cursor), keys.prefix + "*", limits.wipe_keys_max)
            arguments = (ownership.token, limits.wipe_hold_ms, *where, *keys.lasting())
            cursor = await self._client.run(WIPE_STEP, (keys.owner,), arguments)
            if cursor is None:
                raise _lost(ownership)
            if cursor == b"0":
                return

    async def _fenced(
        self, script: Script, ownership: Ownership, keys: Sequence[str], arguments: Sequence[Argument]
    ) -> None:
        if await self._client.run(script, keys, (ownership.token, *arguments)) != 1:
            raise _lost(ownership)


def _lost(ownership: Ownership) -> OwnershipLost:
    return OwnershipLost(f"shard {ownership.shard} is not, or not any more, owned as {ownership.token}")


def _fetched(fetches: Sequence[Fetch], reply: list[Reply]) -> list[Fetched]:
    if len(reply) != 3 * len(fetches):
        raise unavailable("a read was answered in part")
    found: list[Fetched] = []
    for at, fetch in enumerate(fetches):
        values = cast("list[bytes | None]", reply[3 * at])
        for name, value in zip(fetch.fields, values, strict=True):
            if name == HEADER_FIELD and value is not None:
                check_header(value, tenant=fetch.tenant, execution_id=fetch.execution_id)
        found.append(
            Fetched(
                values=tuple(values),
                field_count=cast("int", reply[3 * at + 1]),
                is_listed=_is_listed(cast("bytes | None", reply[3 * at + 2]), fetch.tenant),
            )
        )
    return found


def _is_listed(place: bytes | None, tenant: str) -> bool:
    return place is not None and located(place).tenant == tenant
