"""The pure fold of the control stream: entries in log order become tenants, keys, agents with their policies, and the
number of shards.

No clock, no randomness, no I/O: every process that reads the same entries holds the same state and the same answers.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar, assert_never, get_args

import msgspec
from msgspec import UNSET

from kernel.domain.errors import Conflict, Invalid, InvariantBroken, Misconfigured, NotFound, Refused, TooMany
from kernel.ports import ControlMessage
from schemas.bodies import NULL
from schemas.control import (
    CONTROL_SCHEMA_VERSION,
    AgentDeleted,
    AgentDescribed,
    AgentPut,
    AnyControlEntry,
    KeyCreated,
    KeyRevoked,
    PolicySet,
    Quotas,
    SealedSecret,
    ShardsSet,
    TenantPut,
    TenantSettings,
    decode_control,
)
from schemas.ids import DEFAULT_TENANT

MAX_CONCURRENCY = 64
"""What an agent has that never named its own."""
AGENTS_MAX = 10_000
"""Agents of one tenant: every process keeps all of them in memory. Part of the fold, so it changes only upwards."""
TENANTS_MAX = 10_000
KEYS_MAX = 1_000
"""Keys of one tenant that are not revoked; those that have expired count."""
BUNDLE_CHARS_MAX = 64 * 1024 * 1024
"""Of all bundles of one tenant together."""

Record = TypeVar("Record")


class AgentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One agent as the stream has it, its secrets sealed. Times are unix microseconds."""

    tenant: str
    agent_id: str
    webhook_url: str
    secret: SealedSecret
    next_secret: SealedSecret | None = None
    require_v1: bool = False
    max_concurrency: int = MAX_CONCURRENCY
    description: str | None = None
    input_schema: bytes = NULL
    output_schema: bytes = NULL
    registered_seq: int
    """The entry that registered it: agents of one name in several tenants are tried in this order."""
    registered_at: int
    updated_at: int
    bundle: str = ""
    """The text of its policy; empty without one."""
    policy_version: int = 0
    """The entry that set the bundle, 0 without one."""


class TenantRecord(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    quotas: Quotas = Quotas()
    settings: TenantSettings = TenantSettings()


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A bearer key that was not revoked. Times are unix microseconds."""

    tenant: str
    key_id: str
    name: str
    scopes: frozenset[str]
    hash: bytes
    """SHA-256 of the key, which itself nobody keeps."""
    created_at: int
    expires_at: int | None = None

    def __repr__(self) -> str:
        return f"KeyRecord(tenant={self.tenant!r}, key_id={self.key_id!r})"


def _only_the_default_tenant() -> dict[str, TenantRecord]:
    return {DEFAULT_TENANT: TenantRecord(tenant=DEFAULT_TENANT)}


class ControlState(msgspec.Struct, frozen=True, kw_only=True):
    """What the stream says up to `seq`: agents and keys by tenant, then id. The tenant `default` always exists."""

    seq: int = 0
    shards: int | None = None
    tenants: Mapping[str, TenantRecord] = msgspec.field(default_factory=_only_the_default_tenant)
    agents: Mapping[str, Mapping[str, AgentRecord]] = {}
    keys: Mapping[str, Mapping[str, KeyRecord]] = {}


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """The entry holds. `is_new`: it made what it names, rather than changing it."""

    is_new: bool


ControlAnswer = Accepted | Refused
"""A refusal is the very error that the one who submitted the entry gets raised."""


def read_control_entry(message: ControlMessage) -> AnyControlEntry:
    """Return the entry of a message.

    Raises Misconfigured for an entry of a later build: whoever cannot read it must stop following, because it may
    withdraw what the older entries gave. Raises InvariantBroken for what is no entry at all.
    """
    try:
        shape = _shapes.decode(message.payload)
    except msgspec.MsgspecError as error:
        raise InvariantBroken(f"control entry {message.seq} is damaged: {error}") from error
    if shape.schema != CONTROL_SCHEMA_VERSION or shape.type not in _KNOWN_TYPES:
        raise Misconfigured(
            f"control entry {message.seq} is of type {shape.type!r} and schema {shape.schema}, which this build does "
            "not know: upgrade this process"
        )
    try:
        return decode_control(message.payload)
    except msgspec.MsgspecError as error:
        raise InvariantBroken(f"control entry {message.seq} is damaged: {error}") from error


def fold_control(state: ControlState, seq: int, entry: AnyControlEntry) -> tuple[ControlState, ControlAnswer]:
    """Return the state after the entry at `seq`, and the answer to it. A refused entry moves nothing but `seq`."""
    after, answers = fold_page(state, [(seq, entry)])
    return after, answers[0]


def fold_page(
    state: ControlState, page: Iterable[tuple[int, AnyControlEntry]]
) -> tuple[ControlState, list[ControlAnswer]]:
    """`fold_control` over many entries, which copies each tenant's agents once a page instead of once an entry.

    Raises InvariantBroken where a sequence is missing: the entry that is not there may have withdrawn something.
    """
    draft = _Draft(state)
    answers = [draft.fold(seq, entry) for seq, entry in page]
    return draft.done(), answers


class _ByTenant(Generic[Record]):
    """Records by tenant and id while a page is folded: a tenant's are copied when the first of them changes."""

    def __init__(self, before: Mapping[str, Mapping[str, Record]]) -> None:
        self.now = dict(before)
        self._owned: dict[str, dict[str, Record]] = {}

    def of(self, tenant: str) -> Mapping[str, Record]:
        return self.now.get(tenant, {})

    def put(self, tenant: str, record_id: str, record: Record) -> None:
        self._own(tenant)[record_id] = record

    def drop(self, tenant: str, record_id: str) -> None:
        del self._own(tenant)[record_id]

    def _own(self, tenant: str) -> dict[str, Record]:
        if tenant not in self._owned:
            self.now[tenant] = self._owned[tenant] = dict(self.of(tenant))
        return self._owned[tenant]


class _Draft:
    """The state while a page is folded; the state it started from stays as it was."""

    def __init__(self, state: ControlState) -> None:
        self._seq = state.seq
        self._shards = state.shards
        self._tenants = dict(state.tenants)
        self._agents = _ByTenant(state.agents)
        self._keys = _ByTenant(state.keys)
        self._bundle_chars: dict[str, int] = {}

    def done(self) -> ControlState:
        return ControlState(
            seq=self._seq,
            shards=self._shards,
            tenants=self._tenants,
            agents=self._agents.now,
            keys=self._keys.now,
        )

    def fold(self, seq: int, entry: AnyControlEntry) -> ControlAnswer:
        if seq != self._seq + 1:
            raise InvariantBroken(f"control entry {self._seq + 1} is missing: the next one found is {seq}")
        self._seq = seq
        match entry:
            case ShardsSet():
                return self._set_shards(entry)
            case AgentPut():
                return self._put_agent(seq, entry)
            case AgentDeleted():
                return self._delete_agent(entry)
            case AgentDescribed():
                return self._describe_agent(entry)
            case TenantPut():
                return self._put_tenant(entry)
            case KeyCreated():
                return self._create_key(entry)
            case KeyRevoked():
                return self._revoke_key(entry)
            case PolicySet():
                return self._set_policy(seq, entry)
            case _:
                assert_never(entry)

    def _set_shards(self, entry: ShardsSet) -> ControlAnswer:
        if entry.shards < 1:
            return Invalid("there is at least one shard", path="shards")
        is_new = self._shards is None
        if self._shards not in (None, entry.shards):
            return Conflict(f"the number of shards is {self._shards} once and for all")
        self._shards = entry.shards
        return Accepted(is_new=is_new)

    def _put_agent(self, seq: int, entry: AgentPut) -> ControlAnswer:
        found = self._find(entry.tenant, entry.agent_id)
        if found is not None:
            self._write(_changed(found, entry))
            return Accepted(is_new=False)
        if entry.secret is UNSET:
            return Invalid("a new agent needs a secret", path="secret")
        if len(self._agents.of(entry.tenant)) >= AGENTS_MAX:
            return TooMany(f"the tenant has {AGENTS_MAX} agents", reason="agents", retry_after_seconds=60)
        self._write(_registered(seq, entry, entry.secret))
        return Accepted(is_new=True)

    def _delete_agent(self, entry: AgentDeleted) -> ControlAnswer:
        found = self._find(entry.tenant, entry.agent_id)
        if found is None:
            return NotFound("agent")
        self._bundle_chars[entry.tenant] = self._chars(entry.tenant) - len(found.bundle)
        self._agents.drop(entry.tenant, entry.agent_id)
        return Accepted(is_new=False)

    def _describe_agent(self, entry: AgentDescribed) -> ControlAnswer:
        found = self._find(entry.tenant, entry.agent_id)
        if found is None:
            return NotFound("agent")
        self._write(
            msgspec.structs.replace(
                found,
                description=entry.description,
                input_schema=bytes(entry.input_schema),
                output_schema=bytes(entry.output_schema),
                updated_at=max(found.updated_at, entry.at),
            )
        )
        return Accepted(is_new=False)

    def _set_policy(self, seq: int, entry: PolicySet) -> ControlAnswer:
        found = self._find(entry.tenant, entry.agent_id)
        if found is None:
            return NotFound("agent")
        chars = self._chars(entry.tenant) - len(found.bundle) + len(entry.bundle)
        if entry.bundle and chars > BUNDLE_CHARS_MAX:
            message = f"the bundles of the tenant have more than {BUNDLE_CHARS_MAX} characters together"
            return TooMany(message, reason="policies", retry_after_seconds=60)
        self._bundle_chars[entry.tenant] = chars
        self._write(
            msgspec.structs.replace(
                found,
                bundle=entry.bundle,
                policy_version=seq if entry.bundle else 0,
                updated_at=max(found.updated_at, entry.at),
            )
        )
        return Accepted(is_new=False)

    def _chars(self, tenant: str) -> int:
        """Of the tenant's bundles together: counted once a page, and kept from there on."""
        if tenant not in self._bundle_chars:
            self._bundle_chars[tenant] = sum(len(agent.bundle) for agent in self._agents.of(tenant).values())
        return self._bundle_chars[tenant]

    def _find(self, tenant: str, agent_id: str) -> AgentRecord | None:
        return self._agents.of(tenant).get(agent_id)

    def _write(self, record: AgentRecord) -> None:
        self._agents.put(record.tenant, record.agent_id, record)

    def _put_tenant(self, entry: TenantPut) -> ControlAnswer:
        found = self._tenants.get(entry.tenant)
        if found is None and len(self._tenants) >= TENANTS_MAX:
            return TooMany(f"there are {TENANTS_MAX} tenants", reason="tenants", retry_after_seconds=60)
        before = found or TenantRecord(tenant=entry.tenant)
        self._tenants[entry.tenant] = TenantRecord(
            tenant=entry.tenant,
            quotas=before.quotas if entry.quotas is UNSET else entry.quotas,
            settings=before.settings if entry.settings is UNSET else entry.settings,
        )
        return Accepted(is_new=found is None)

    def _create_key(self, entry: KeyCreated) -> ControlAnswer:
        if entry.tenant not in self._tenants:
            return NotFound("tenant")
        keys = self._keys.of(entry.tenant)
        if entry.key_id in keys:
            return Conflict("there is a key of that id")
        if len(keys) >= KEYS_MAX:
            return TooMany(f"the tenant has {KEYS_MAX} keys", reason="keys", retry_after_seconds=60)
        record = KeyRecord(
            tenant=entry.tenant,
            key_id=entry.key_id,
            name=entry.name,
            scopes=frozenset(entry.scopes),
            hash=entry.hash,
            created_at=entry.at,
            expires_at=entry.expires_at,
        )
        self._keys.put(entry.tenant, entry.key_id, record)
        return Accepted(is_new=True)

    def _revoke_key(self, entry: KeyRevoked) -> ControlAnswer:
        if entry.key_id not in self._keys.of(entry.tenant):
            return NotFound("key")
        self._keys.drop(entry.tenant, entry.key_id)
        return Accepted(is_new=False)


def _registered(seq: int, entry: AgentPut, secret: SealedSecret) -> AgentRecord:
    return AgentRecord(
        tenant=entry.tenant,
        agent_id=entry.agent_id,
        webhook_url=entry.webhook_url,
        secret=secret,
        next_secret=None if entry.next_secret is UNSET else entry.next_secret,
        require_v1=False if entry.require_v1 is UNSET else entry.require_v1,
        max_concurrency=MAX_CONCURRENCY if entry.max_concurrency is UNSET else entry.max_concurrency,
        registered_seq=seq,
        registered_at=entry.at,
        updated_at=entry.at,
    )


def _changed(found: AgentRecord, entry: AgentPut) -> AgentRecord:
    # Sending `secret` alone ends a rotation: what was the next secret is dropped with the old one.
    next_secret = found.next_secret if entry.secret is UNSET else None
    return msgspec.structs.replace(
        found,
        webhook_url=entry.webhook_url,
        secret=found.secret if entry.secret is UNSET else entry.secret,
        next_secret=next_secret if entry.next_secret is UNSET else entry.next_secret,
        require_v1=found.require_v1 if entry.require_v1 is UNSET else entry.require_v1,
        max_concurrency=found.max_concurrency if entry.max_concurrency is UNSET else entry.max_concurrency,
        # The clocks of two doors differ, and the time of a change never steps back.
        updated_at=max(found.updated_at, entry.at),
    )


class _Shape(msgspec.Struct, frozen=True):
    type: str
    schema: int


_shapes = msgspec.json.Decoder(_Shape)
_KNOWN_TYPES = frozenset(str(entry_type.__struct_config__.tag) for entry_type in get_args(AnyControlEntry))
