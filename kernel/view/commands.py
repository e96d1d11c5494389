"""A batch as the arguments of the script that applies it: commands as name, key, number of arguments, arguments.

Runs for every batch, so it makes one flat list and few objects beside it.
"""

from collections.abc import Iterable
from itertools import chain

from kernel.ports import Batch, Watermark
from kernel.view.changes import ApprovalMove, Writes, translate
from kernel.view.client import Argument
from kernel.view.keys import (
    ShardKeys,
    answer_slice,
    answers_key,
    approval_member,
    approvals_key,
    create_keys_key,
    directory_field,
    directory_key,
    directory_value,
    execution_key,
    list_key,
    live_key,
    shard_keys,
)
from kernel.view.limits import ANSWER_MS
from schemas.records import Header

SOON = "SOON"
"""Name that `apply.lua` knows: ZADD with pairs of milliseconds from now and member."""
PAST = "PAST"
"""Name that `apply.lua` knows: removes the members whose time is over."""


def watermark_text(watermark: Watermark) -> str:
    """Return the watermark as the view keeps it."""
    return f"{watermark.created_at}|{watermark.seq}|{watermark.checksum}"


def parse_watermark(raw: bytes | None) -> Watermark | None:
    """Return what `watermark_text` wrote; None for anything else, which counts as lost."""
    parts = (raw or b"").decode(errors="replace").rsplit("|", 2)
    if len(parts) != 3 or not parts[1].isdecimal():
        return None
    return Watermark(created_at=parts[0], seq=int(parts[1]), checksum=parts[2])


def apply_arguments(shard: int, token: str, batch: Batch) -> list[Argument]:
    """Return the arguments of `apply.lua`."""
    arguments: list[Argument] = [
        token,
        watermark_text(batch.expected),
        watermark_text(batch.watermark),
        "1" if batch.is_rebuilding else "0",
    ]
    _write_sizes(arguments, shard, batch)
    keys = shard_keys(shard)
    writes = translate(batch.changes)
    _write_fields(arguments, shard, batch)
    _write_lists(arguments, shard, writes)
    if writes.approvals:
        _write_approvals(arguments, shard, writes.approvals)
    _write_duties(arguments, keys, writes)
    _write_answers(arguments, shard, keys, batch)
    _write_rest(arguments, shard, keys, batch)
    if batch.log_bytes:
        arguments += ("HSET", keys.log_bytes, 2 * len(batch.log_bytes), *chain.from_iterable(batch.log_bytes))
    return arguments


def _write_sizes(arguments: list[Argument], shard: int, batch: Batch) -> None:
    """How many fields each execution has to have. A new one is written over whatever is there."""
    sizes: list[Argument] = []
    for change in batch.changes:
        before = change.before
        if before is not None:
            sizes += (execution_key(shard, before.tenant, before.execution_id), before.field_count)
    arguments += (len(sizes) // 2, *sizes)


def _write_fields(arguments: list[Argument], shard: int, batch: Batch) -> None:
    for change in batch.changes:
        after = change.after
        key = execution_key(shard, after.tenant, after.execution_id)
        if change.before is None:
            # Folded anew, it may have had fields that it has no more.
            arguments += ("UNLINK", key, 0)
        fields = change.fields
        if fields:
            arguments += ("HSET", key, 2 * len(fields))
            arguments += chain.from_iterable(fields.items())


def _write_lists(arguments: list[Argument], shard: int, writes: Writes) -> None:
    scores: dict[str, list[Argument]] = {}
    removals: dict[str, list[Argument]] = {}
    directory: dict[str, list[Argument]] = {}
    for header in writes.listed:
        execution_id = header.execution_id
        where = directory.setdefault(directory_key(shard, execution_id), [])
        where += (directory_field(execution_id), directory_value(header.tenant, header.agent_id))
        for key in (
            list_key(shard, header.tenant),
            list_key(shard, header.tenant, agent_id=header.agent_id),
            *_status_keys(shard, header, header.status),
        ):
            scores.setdefault(key, []).extend((0, execution_id))
    for header, status_before in writes.moved:
        for key in _status_keys(shard, header, status_before):
            removals.setdefault(key, []).append(header.execution_id)
        for key in _status_keys(shard, header, header.status):
            scores.setdefault(key, []).extend((0, header.execution_id))
    _extend(arguments, "HSET", directory)
    _extend(arguments, "ZREM", removals)
    _extend(arguments, "ZADD", scores)
    _extend(arguments, "SADD", _by_live_key(shard, writes.live))
    _extend(arguments, "SREM", _by_live_key(shard, writes.ended))


def _status_keys(shard: int, header: Header, status: str) -> tuple[str, str]:
    return (
        list_key(shard, header.tenant, status=status),
        list_key(shard, header.tenant, status=status, agent_id=header.agent_id),
    )


def _write_approvals(arguments: list[Argument], shard: int, moves: Iterable[ApprovalMove]) -> None:
    scores: dict[str, list[Argument]] = {}
    removals: dict[str, list[Argument]] = {}
    for move in moves:
        header = move.header
        member = approval_member(move.record.approval_id, header.execution_id, header.agent_id)
        if move.before is not None:
            for key in _approval_keys(shard, header, move.before):
                removals.setdefault(key, []).append(member)
        new_keys = _approval_keys(shard, header, "") if move.before is None else ()
        for key in (*new_keys, *_approval_keys(shard, header, move.record.status)):
            scores.setdefault(key, []).extend((0, member))
    _extend(arguments, "ZREM", removals)
    _extend(arguments, "ZADD", scores)


def _approval_keys(shard: int, header: Header, status: str) -> tuple[str, str, str]:
    return (
        approvals_key(shard, header.tenant, status=status),
        approvals_key(shard, header.tenant, status=status, agent_id=header.agent_id),
        approvals_key(shard, header.tenant, status=status, execution_id=header.execution_id),
    )


def _by_live_key(shard: int, headers: Iterable[Header]) -> dict[str, list[Argument]]:
    ids: dict[str, list[Argument]] = {}
    for header in headers:
        ids.setdefault(live_key(shard, header.tenant, header.agent_id), []).append(header.execution_id)
    return ids


def _write_duties(arguments: list[Argument], keys: ShardKeys, writes: Writes) -> None:
    due_at = [argument for member, unix_ms in writes.due_at for argument in (unix_ms, member)]
    due_in = [argument for member, period_ms in writes.due_in for argument in (period_ms, member)]
    for name, key, values in (
        ("ZADD", keys.due, due_at),
        (SOON, keys.due, due_in),
        ("ZREM", keys.due, writes.not_due),
        ("HSET", keys.leases, list(chain.from_iterable(writes.renewable))),
        ("HDEL", keys.leases, writes.not_renewable),
        ("SREM", keys.marks, writes.unmarked),
    ):
        if values:
            arguments += (name, key, len(values), *values)


def _write_answers(arguments: list[Argument], shard: int, keys: ShardKeys, batch: Batch) -> None:
    slices: dict[int, list[Argument]] = {}
    for stored in batch.answers:
        slices.setdefault(answer_slice(stored.entry_id), []).extend((stored.entry_id, stored.answer))
    for number, answers in slices.items():
        key = answers_key(shard, number)
        arguments += ("HSET", key, len(answers), *answers)
        arguments += ("PEXPIRE", key, 1, ANSWER_MS)
        arguments += (SOON, keys.slices, 2, ANSWER_MS, number)
    if slices:
        arguments += (PAST, keys.slices, 0)


def _write_rest(arguments: list[Argument], shard: int, keys: ShardKeys, batch: Batch) -> None:
    create_keys: dict[str, list[Argument]] = {}
    for create_key in batch.create_keys:
        where = create_keys.setdefault(create_keys_key(shard, create_key.tenant), [])
        where += (create_key.digest, create_key.record)
    _extend(arguments, "HSET", create_keys)
    if batch.parked:
        arguments += ("HSET", keys.parked, 2 * len(batch.parked))
        for parked in batch.parked:
            arguments += (parked.seq, parked.reason)


def _extend(arguments: list[Argument], name: str, values_by_key: dict[str, list[Argument]]) -> None:
    for key, values in values_by_key.items():
        arguments += (name, key, len(values), *values)
