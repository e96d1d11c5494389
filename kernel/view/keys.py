"""Every key of the view, and the members that name executions in sets of a whole shard.

All keys of a shard share the hash tag `{s<shard>}`, so a script touches one slot. A builder of a tenant's key raises
without a tenant. Tenants and execution ids hold neither `/` nor `:`; agent ids may hold `:` and so always come last.
"""

from functools import lru_cache
from typing import cast

import msgspec

from kernel.domain.errors import InvariantBroken
from kernel.ports import DutyKind, Located
from kernel.view.limits import SLICE_MS
from schemas.ids import TENANT_ID, uuid7_ms, uuid_bytes

PROJECTORS = "{stepwell}:projectors"
RELEASED = "-"
"""What an owner leaves that gave its shard back, so that nobody takes it for dead."""

_SHARDS_CACHED_MAX = 1024
_TENANTS_CACHED_MAX = 4096
_is_tenant = TENANT_ID.fullmatch


class ShardKeys(msgspec.Struct, frozen=True):
    """Keys of which a shard has one each. Members of its sets name the tenant."""

    prefix: str
    owner: str
    epoch: str
    watermark: str
    dirty: str
    """The watermark of a batch that was begun and not ended."""
    rebuilding: str
    """Present while readers have to wait; its value is the lease that the floor rises by at the end."""
    floor: str
    """No lease is expired before this time."""
    due: str
    """Score: unix ms; half a millisecond more where a dispatcher holds the item."""
    leases: str
    """Execution id to the lease that a heartbeat may renew in the view alone, and its place."""
    marks: str
    """Places of the leases that are being expired."""
    doors: str
    """`<last beat>/<last beat after a silence>`, unix ms."""
    polled: str
    parked: str
    log_bytes: str
    """Tenant to the bytes of its entries in the shard's log."""
    slices: str
    """Slices of stored answers by the time they expire."""
    executions: str
    """Prefix of the executions' hashes, for scripts that meet tenant and id in a due item."""

    def lasting(self) -> tuple[str, ...]:
        """Keys that a wipe leaves alone."""
        return (self.owner, self.epoch, self.rebuilding, self.dirty, self.floor, self.doors, self.polled)


@lru_cache(maxsize=_SHARDS_CACHED_MAX)
def shard_keys(shard: int) -> ShardKeys:
    """Return the keys of a shard."""
    prefix = f"{{s{shard}}}:"
    names = [name for name in ShardKeys.__struct_fields__ if name not in ("prefix", "executions")]
    return ShardKeys(prefix=prefix, executions=f"{prefix}x:", **{name: prefix + name for name in names})


def execution_key(shard: int, tenant: str, execution_id: str) -> str:
    """Return the hash of an execution: its header and every record, each a field."""
    return f"{{s{shard}}}:x:{_checked(tenant)}:{execution_id}"


def list_key(shard: int, tenant: str, *, agent_id: str = "", status: str = "") -> str:
    """Return the index of a tenant's executions, of all or of those of one agent, one status, or both."""
    by_status = f":status:{status}" if status else ""
    by_agent = f":agent:{agent_id}" if agent_id else ""
    return f"{{s{shard}}}:list:{_checked(tenant)}{by_status}{by_agent}"


def live_key(shard: int, tenant: str, agent_id: str) -> str:
    """Return the set of an agent's executions that have not ended."""
    return f"{{s{shard}}}:live:{_checked(tenant)}:{agent_id}"


def approvals_key(shard: int, tenant: str, *, status: str = "", execution_id: str = "", agent_id: str = "") -> str:
    """Return the index of a tenant's approvals: of all, or of one status, and of one execution or one agent.

    That of all is also the directory that leads from an approval's id to its execution.
    """
    by_status = f":status:{status}" if status else ""
    of_whom = f":execution:{execution_id}" if execution_id else f":agent:{agent_id}" if agent_id else ""
    return f"{{s{shard}}}:approvals:{_checked(tenant)}{by_status}{of_whom}"


def approval_member(approval_id: str, execution_id: str, agent_id: str) -> str:
    """Return how an approval is named in an index, sorted by its id."""
    return f"{approval_id}/{execution_id}/{agent_id}"


def parse_approval_member(member: str) -> tuple[str, str, str]:
    """Return approval id, execution id and agent id."""
    approval_id, execution_id, agent_id = member.split("/", 2)
    return approval_id, execution_id, agent_id


def create_keys_key(shard: int, tenant: str) -> str:
    """Return the hash of a tenant's create keys."""
    return f"{{s{shard}}}:createkeys:{_checked(tenant)}"


def directory_key(shard: int, execution_id: str) -> str:
    """Return the hash that says whose an execution is: the one builder without a tenant."""
    return f"{{s{shard}}}:dir:{execution_id[-2:]}"


def directory_field(execution_id: str) -> bytes:
    return uuid_bytes(execution_id)


def directory_value(tenant: str, agent_id: str) -> str:
    return f"{_checked(tenant)}/{agent_id}"


def located(value: bytes) -> Located:
    """Return what `directory_value` wrote."""
    tenant, _, agent_id = value.decode().partition("/")
    return Located(tenant=tenant, agent_id=agent_id)


def answer_slice(entry_id: str) -> int:
    """Return the number of the slice that an answer lies in. Raises InvariantBroken for an id without a time."""
    try:
        return uuid7_ms(entry_id) // SLICE_MS
    except ValueError as error:
        raise InvariantBroken("an answer is stored under the UUIDv7 of its entry") from error


def answers_key(shard: int, slice_number: int) -> str:
    return f"{{s{shard}}}:answers:{slice_number}"


def bucket_key(tenant: str, bucket: bytes) -> str:
    """Return the token bucket of a rule. It belongs to no shard: every door of every shard asks for it."""
    return f"{{t:{_checked(tenant)}}}:rate:{bucket.hex()}"


def spent_key(tenant: str, quota: str, day: int) -> str:
    """Return the counter of what a tenant has spent of a daily quota; days are counted from 1970."""
    return f"{{t:{_checked(tenant)}}}:spent:{quota}:{day}"


def slots_key(tenant: str, agent_id: str) -> str:
    """Return the set of an agent's webhook slots. It belongs to no shard: all dispatchers of all shards share it."""
    return f"{{t:{_checked(tenant)}}}:slots:{agent_id}"


def place(tenant: str, execution_id: str, agent_id: str) -> str:
    """Return how an execution is named in a set of the whole shard."""
    return f"{_checked(tenant)}/{execution_id}/{agent_id}"


def due_member(kind: DutyKind, where: str) -> str:
    """Return the due item of a duty at a `place`."""
    return f"{kind}/{where}"


def parse_due_member(member: str) -> tuple[DutyKind, str, str, str]:
    """Return kind, tenant, execution id and agent id of a due item."""
    kind, tenant, execution_id, agent_id = member.split("/", 3)
    return cast("DutyKind", kind), tenant, execution_id, agent_id


@lru_cache(maxsize=_TENANTS_CACHED_MAX)
def _checked(tenant: str) -> str:
    if not _is_tenant(tenant):
        raise InvariantBroken("a key needs the tenant that owns it")
    return tenant
