"""Control entries: the log of tenants, keys, agents, policies and the number of shards.

A control entry is a request like any other: the control fold judges it in log order. Secrets stand in it encrypted.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

CONTROL_SCHEMA_VERSION = 1


class SealedSecret(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An AES-GCM ciphertext with its nonce, and the id of the master key that sealed it."""

    key_id: str
    nonce: bytes
    ciphertext: bytes


class Quotas(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bounds of a tenant; None is no bound. Rates are per second, days are of UTC."""

    requests_per_second: int | None = None
    creates_per_second: int | None = None
    live_executions: int | None = None
    bytes_per_day: int | None = None
    log_bytes: int | None = None


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tenant has otherwise than the process is set up; None is as the process is."""

    no_policy: Literal["allow", "deny"] | None = None
    retention_seconds: int | None = None


class ControlEntry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """`at` is unix microseconds, `by` the principal."""

    id: str
    at: int
    by: str
    schema: int = CONTROL_SCHEMA_VERSION


class ShardsSet(ControlEntry, frozen=True, kw_only=True, tag="shards_set"):
    """The number of shards, once and for all: a second, different one is refused."""

    shards: int


class AgentPut(ControlEntry, frozen=True, kw_only=True, tag="agent_put"):
    """Registers or changes an agent; absent members stay as they were.

    An entry that sends `secret` sets both secrets. The first entry for an id has to carry one.
    """

    tenant: str
    agent_id: str
    webhook_url: str
    secret: SealedSecret | UnsetType = UNSET
    next_secret: SealedSecret | UnsetType = UNSET
    require_v1: bool | UnsetType = UNSET
    max_concurrency: int | UnsetType = UNSET


class AgentDeleted(ControlEntry, frozen=True, kw_only=True, tag="agent_deleted"):
    tenant: str
    agent_id: str


class AgentDescribed(ControlEntry, frozen=True, kw_only=True, tag="agent_described"):
    """Replaces the three members of an agent's metadata; each may be `null`."""

    tenant: str
    agent_id: str
    description: str | None
    input_schema: Raw
    output_schema: Raw


class TenantPut(ControlEntry, frozen=True, kw_only=True, tag="tenant_put"):
    """Makes or changes a tenant; absent members stay as they were, one that is sent replaces the whole of it."""

    tenant: str
    quotas: Quotas | UnsetType = UNSET
    settings: TenantSettings | UnsetType = UNSET


class KeyCreated(ControlEntry, frozen=True, kw_only=True, tag="key_created"):
    """A bearer key, of which only the SHA-256 is kept. `at` is its creation, `expires_at` unix microseconds."""

    tenant: str
    key_id: str
    name: str
    scopes: tuple[str, ...]
    hash: bytes
    expires_at: int | None = None


class KeyRevoked(ControlEntry, frozen=True, kw_only=True, tag="key_revoked"):
    tenant: str
    key_id: str


class PolicySet(ControlEntry, frozen=True, kw_only=True, tag="policy_set"):
    """Replaces an agent's bundle by this text; the empty one removes it. Its version is the sequence of this entry."""

    tenant: str
    agent_id: str
    bundle: str


AnyControlEntry = ShardsSet | AgentPut | AgentDeleted | AgentDescribed | TenantPut | KeyCreated | KeyRevoked | PolicySet

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyControlEntry)


def encode_control(entry: AnyControlEntry) -> bytes:
    """Return the bytes of the control entry as the log keeps them."""
    return _encoder.encode(entry)


def decode_control(payload: bytes) -> AnyControlEntry:
    """Return the control entry; raises msgspec.DecodeError on anything that is not one."""
    return _decoder.decode(payload)
