"""RedisView as doors use it: reads that say how fresh they are, heartbeats, and the doors' own sign of life."""

from collections.abc import Sequence
from typing import cast

from kernel.domain.errors import InvariantBroken, ViewUnavailable
from kernel.ports import ApprovalQuery, ExecutionQuery, ListedApproval, Located, Seen, T
from kernel.view.changes import lease_prefix
from kernel.view.client import Argument, Client, Command
from kernel.view.commands import parse_watermark
from kernel.view.connections import Reply, unavailable
from kernel.view.headers import check_header, checked_header
from kernel.view.keys import (
    answer_slice,
    answers_key,
    approvals_key,
    bucket_key,
    directory_field,
    directory_key,
    execution_key,
    list_key,
    live_key,
    located,
    parse_approval_member,
    shard_keys,
    spent_key,
)
from kernel.view.limits import SILENCE_MS_MAX, SPENT_KEPT_MS
from kernel.view.ranges import approval_range, created_range, is_approval_match, is_match
from kernel.view.scripts import BEAT, BUCKET, LIST, LIST_APPROVALS, RENEW, SPEND
from schemas.entries import Lease
from schemas.events import EXECUTION_STATUSES, TERMINAL_EXECUTION
from schemas.records import HEADER_FIELD, Header, decode_approval

_EVICTION_REFUSED = (
    "the server may drop keys by itself (maxmemory-policy is {policy}); set maxmemory-policy to noeviction"
)

LIVE_STATUSES = tuple(status for status in EXECUTION_STATUSES if status not in TERMINAL_EXECUTION)


class Evicting(ViewUnavailable):
    """The server answers, and no time will make it fit: a start is refused at once."""


class RedisDoorView:
    """Implements `kernel.ports.DoorView`.

    A view that was torn by a script which failed half-way is as good as one that is being rebuilt.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def losses(self) -> int:
        return self._client.losses

    async def locate(self, shard: int, execution_id: str) -> Seen[Located | None]:
        seen = await self._see(shard, "HGET", directory_key(shard, execution_id), directory_field(execution_id))
        value = None if seen.value is None else located(cast("bytes", seen.value))
        return Seen(seen.watermark_seq, seen.is_rebuilding, value)

    async def fields(
        self, shard: int, tenant: str, execution_id: str, fields: Sequence[bytes]
    ) -> Seen[tuple[bytes | None, ...]]:
        seen = await self._see(shard, "HMGET", execution_key(shard, tenant, execution_id), *fields)
        values = cast("list[bytes | None]", seen.value)
        for name, value in zip(fields, values, strict=True):
            if name == HEADER_FIELD and value is not None:
                check_header(value, tenant=tenant, execution_id=execution_id)
        return Seen(seen.watermark_seq, seen.is_rebuilding, tuple(values))

    async def executions(self, shard: int, tenant: str, query: ExecutionQuery) -> Seen[tuple[Header, ...]]:
        keys = shard_keys(shard)
        index = list_key(shard, tenant, agent_id=query.agent_id, status=query.status)
        places = (keys.watermark, keys.rebuilding, keys.dirty, index)
        highest, lowest = created_range(query)
        prefix = execution_key(shard, tenant, "")
        headers: list[Header] = []
        steps: list[Seen[None]] = []
        for _ in range(self._client.limits.list_steps_max):
            arguments = (highest, lowest, self._client.limits.list_chunk_max, prefix)
            reply = cast("list[bytes | None]", await self._client.run(LIST, places, arguments))
            steps.append(_seen(reply[:3], None))
            ids = [cast("bytes", raw_id).decode() for raw_id in reply[3::2]]
            found = [_listed(raw, tenant, execution_id) for execution_id, raw in zip(ids, reply[4::2], strict=True)]
            headers += [header for header in found if is_match(query, header)]
            if len(headers) >= query.limit or len(ids) < self._client.limits.list_chunk_max:
                return _together(steps, tuple(headers[: query.limit]))
            highest = f"({ids[-1]}"
        raise unavailable("the list is too sparse to be read at once")

    async def approvals(self, shard: int, tenant: str, query: ApprovalQuery) -> Seen[tuple[ListedApproval, ...]]:
        keys, limits = shard_keys(shard), self._client.limits
        index = approvals_key(
            shard, tenant, status=query.status, execution_id=query.execution_id, agent_id=query.agent_id
        )
        places = (keys.watermark, keys.rebuilding, keys.dirty, index)
        lowest, highest = approval_range(query)
        prefix = execution_key(shard, tenant, "")
        found: list[ListedApproval] = []
        steps: list[Seen[None]] = []
        for _ in range(limits.list_steps_max):
            arguments = (lowest, highest, limits.list_chunk_max, prefix)
            reply = cast("list[bytes | None]", await self._client.run(LIST_APPROVALS, places, arguments))
            steps.append(_seen(reply[:3], None))
            members = [cast("bytes", raw).decode() for raw in reply[3::2]]
            listed = [_listed_approval(member, raw) for member, raw in zip(members, reply[4::2], strict=True)]
            found += [each for each in listed if is_approval_match(query, each)]
            if len(found) >= query.limit or len(members) < limits.list_chunk_max:
                return _together(steps, tuple(found[: query.limit]))
            lowest = f"({members[-1]}"
        raise unavailable("the list is too sparse to be read at once")

    async def stored_answer(self, shard: int, entry_id: str) -> Seen[bytes | None]:
        seen = await self._see(shard, "HGET", answers_key(shard, answer_slice(entry_id)), entry_id)
        return Seen(seen.watermark_seq, seen.is_rebuilding, cast("bytes | None", seen.value))

    async def renew_lease(self, shard: int, execution_id: str, lease: Lease, *, lease_ms: int) -> bool:
        keys = shard_keys(shard)
        places = (keys.leases, keys.marks, keys.due, keys.rebuilding, keys.dirty, keys.watermark)
        return await self._client.run(RENEW, places, (execution_id, lease_prefix(lease), lease_ms)) == 1

    async def live_executions(self, shard: int, tenant: str, agent_id: str) -> Seen[int]:
        seen = await self._see(shard, "SCARD", live_key(shard, tenant, agent_id))
        return Seen(seen.watermark_seq, seen.is_rebuilding, cast("int", seen.value))

    async def take_token(self, tenant: str, bucket: bytes, *, max_calls: int, window_ms: int) -> bool:
        return await self.draw_tokens(tenant, bucket, wanted=1, max_calls=max_calls, window_ms=window_ms) == 1

    async def give_token(self, tenant: str, bucket: bytes, *, max_calls: int, window_ms: int) -> None:
        await self._client.run(BUCKET, (bucket_key(tenant, bucket),), (max_calls, window_ms, -1))

    async def draw_tokens(self, tenant: str, bucket: bytes, *, wanted: int, max_calls: int, window_ms: int) -> int:
        reply = await self._client.run(BUCKET, (bucket_key(tenant, bucket),), (max_calls, window_ms, wanted))
        return cast("int", reply)

    async def spend(self, tenant: str, quota: str, *, day: int, limit: int, wanted: int, least: int) -> int:
        arguments = (limit, wanted, least, SPENT_KEPT_MS)
        return cast("int", await self._client.run(SPEND, (spent_key(tenant, quota, day),), arguments))

    async def count_live(self, shard: int, tenant: str) -> int:
        counted = await self._client.pipeline(
            [("ZCARD", list_key(shard, tenant, status=status)) for status in LIVE_STATUSES]
        )
        return sum(cast("list[int]", counted))

    async def count_log_bytes(self, shard: int, tenant: str) -> int:
        counted = await self._client.call("HGET", shard_keys(shard).log_bytes, tenant)
        return int(cast("bytes | None", counted) or 0)

    async def beat(self, shards: Sequence[int]) -> None:
        calls = [((shard_keys(shard).doors,), (SILENCE_MS_MAX,)) for shard in shards]
        if calls:
            await self._client.run_each(BEAT, calls)

    async def check(self) -> None:
        pong, memory = await self._client.pipeline([("PING",), ("INFO", "memory")])
        if pong != b"PONG":
            raise unavailable("the server does not answer PING")
        lines = cast("bytes", memory).decode(errors="replace").splitlines()
        policies = [line.partition(":")[2] for line in lines if line.startswith("maxmemory_policy:")]
        policy = policies[0] if policies else "unknown"
        if policy != "noeviction":
            raise Evicting(_EVICTION_REFUSED.format(policy=policy), reason="view_unavailable")

    async def _see(self, shard: int, *command: Argument) -> Seen[Reply]:
        keys = shard_keys(shard)
        freshness: Command = ("MGET", keys.watermark, keys.rebuilding, keys.dirty)
        found, value = await self._client.transaction(freshness, command)
        return _seen(cast("list[bytes | None]", found), value)


def _seen(freshness: list[bytes | None], value: T) -> Seen[T]:
    raw, rebuilding, dirty = freshness
    watermark = parse_watermark(raw)
    seq = -1 if watermark is None else watermark.seq
    return Seen(seq, rebuilding is not None or dirty is not None, value)


def _together(steps: Sequence[Seen[None]], value: T) -> Seen[T]:
    """Return what several reads brought: as fresh as the oldest of them."""
    return Seen(min(step.watermark_seq for step in steps), any(step.is_rebuilding for step in steps), value)


def _listed_approval(member: str, raw: bytes | None) -> ListedApproval:
    if raw is None:
        # The index knows it and its record is gone: damage, which is not "no such approval".
        raise unavailable("the record of an approval is missing")
    approval_id, execution_id, agent_id = parse_approval_member(member)
    record = decode_approval(raw)
    if record.approval_id != approval_id:
        raise InvariantBroken("a read of one approval was answered with another's record")
    return ListedApproval(execution_id=execution_id, agent_id=agent_id, record=record)


def _listed(raw: bytes | None, tenant: str, execution_id: str) -> Header:
    if raw is None:
        # The index knows it and its hash is gone: damage, which is not "no such execution".
        raise unavailable("an execution's header is missing")
    return checked_header(raw, tenant=tenant, execution_id=execution_id)
