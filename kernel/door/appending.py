"""Turning a checked request into an entry and its answer: stamp, size, ownership, then the log."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TypedDict, TypeVar

import msgspec

from kernel.domain.errors import InvariantBroken, OutcomeUnknown, TooLarge, Unavailable
from kernel.domain.identity import shard_of
from kernel.door.auth import Auth
from kernel.door.exchange import Request, tenant_of
from kernel.door.pipeline import Pipeline
from kernel.door.quotas import Quotas
from kernel.door.refusals import error_of
from kernel.door.spilling import NOTHING_STORED, Spilling, may_spill
from kernel.ports import Outgoing
from kernel.settings import Settings
from schemas.answers import AnyAnswer, Created, Decided, DecidedBefore, Done, Recorded, Refusal
from schemas.entries import (
    AnyEntry,
    ExecutionCancelled,
    ExecutionCompleted,
    ExecutionFailed,
    HeartbeatReceived,
    StepCompleted,
    StepFailed,
    StepSubmitted,
    encode_entry,
)
from schemas.ids import new_uuid7

GIVE_UP_SECONDS = 1.0
"""What is left of a request's time when its entry is no longer published, so that a late one is never taken."""

OwnedEntry = (
    StepSubmitted
    | StepCompleted
    | StepFailed
    | HeartbeatReceived
    | ExecutionCompleted
    | ExecutionFailed
    | ExecutionCancelled
)
Answer = TypeVar("Answer", Created, Decided, Recorded, Done)


class Stamp(TypedDict):
    """What the door itself puts on an entry. `tenant` is the caller's as far as the credential alone tells."""

    id: str
    tenant: str
    execution_id: str
    at: int
    expires: int


@contextmanager
def decided() -> Generator[None]:
    """What is missing in here is missing after the decision: the request happened and is not refused as undone."""
    try:
        yield
    except Unavailable as error:
        raise OutcomeUnknown(f"decided, and not answered in time: {error}") from error


class Appending:
    """Appends the entries of requests."""

    def __init__(
        self, *, settings: Settings, auth: Auth, quotas: Quotas, pipeline: Pipeline, spilling: Spilling, name: str
    ) -> None:
        self._shards = settings.shards
        self._spilling = spilling
        self._auth = auth
        self._quotas = quotas
        self._pipeline = pipeline
        self._name = name
        self._entry_bytes_max = settings.entry_bytes_max
        self._give_up_seconds = min(GIVE_UP_SECONDS, settings.budget_seconds / 2)
        self._expires_micros = round((settings.budget_seconds - self._give_up_seconds) * 1_000_000)

    def stamp(self, request: Request, execution_id: str) -> Stamp:
        """Return a fresh stamp. One request makes one entry, whose id stays the same however often it is sent."""
        return Stamp(
            id=new_uuid7(),
            tenant=tenant_of(request.caller),
            execution_id=execution_id,
            at=time.time_ns() // 1000,
            expires=request.arrived_at + self._expires_micros,
        )

    async def to_owned(self, request: Request, entry: OwnedEntry, expected: type[Answer]) -> Answer:
        """Append an entry to the caller's own execution and return what the fold answers, or raise its refusal."""
        shard = shard_of(entry.execution_id, self._shards)
        await self._quotas.admit(request)
        owner = await self._auth.owner(request, entry.execution_id, shard)
        if owner.tenant != entry.tenant:
            # The signature verified in several tenants, and another one than the first owns the execution.
            entry = msgspec.structs.replace(entry, tenant=owner.tenant)
        return await self.append(request, entry, shard=shard, expected=expected)

    def encoded(self, entry: AnyEntry) -> bytes:
        """Return the entry's bytes. Raises TooLarge where the log does not take them."""
        payload = encode_entry(entry)
        if len(payload) > self._entry_bytes_max:
            raise TooLarge(self._entry_bytes_max)
        return payload

    async def append(self, request: Request, entry: AnyEntry, *, shard: int, expected: type[Answer]) -> Answer:
        """Append an entry whose right to be there is settled, its large bodies before it."""
        give_up_at = request.deadline - self._give_up_seconds
        stored = NOTHING_STORED
        if may_spill(len(request.body)):
            entry, stored = await self._spilling.spilled(entry, shard=shard, deadline=give_up_at)
        outgoing = Outgoing(
            shard=shard,
            tenant=entry.tenant,
            execution_id=entry.execution_id,
            entry_id=entry.id,
            payload=self.encoded(entry),
            reply_to=self._name,
        )
        answer: AnyAnswer = await self._pipeline.decide(outgoing, give_up_at=give_up_at, deadline=request.deadline)
        self._spilling.keep(stored)
        if isinstance(answer, expected):
            return answer
        if isinstance(answer, Refusal | DecidedBefore):
            raise error_of(answer)
        raise InvariantBroken(f"the fold answered {type(answer).__name__} to {type(entry).__name__}")
