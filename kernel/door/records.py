"""Reading executions out of the view: fresh, of the right execution, and never an absence taken for a fact."""

from collections.abc import Sequence

import msgspec

from kernel.domain.errors import InvariantBroken, NotFound, Unavailable
from kernel.domain.identity import shard_of
from kernel.door.auth import Auth
from kernel.door.exchange import Request
from kernel.door.freshness import Freshness
from kernel.ports import DoorView
from schemas.records import (
    HEADER_FIELD,
    Header,
    StepRecord,
    decode_header,
    decode_step,
    order_field,
    step_field,
)

STEPS_READ_MAX = 250
"""Steps asked for in one read of the view."""


class Records:
    """What the door reads of one execution."""

    def __init__(self, *, shards: int, view: DoorView, auth: Auth, freshness: Freshness) -> None:
        self._shards = shards
        self._view = view
        self._auth = auth
        self._freshness = freshness

    def shard(self, execution_id: str) -> int:
        return shard_of(execution_id, self._shards)

    def check_again(self, request: Request) -> None:
        """Raise Unauthorized where the credential has ended since the request came."""
        self._auth.check_again(request.caller)

    async def read(
        self, request: Request, execution_id: str, fields: Sequence[bytes] = (), *, deadline: float | None = None
    ) -> tuple[Header, tuple[bytes | None, ...]]:
        """Return the header of the caller's execution, and fields of it as they stood at the same moment.

        Raises NotFound where it is unknown or foreign, Unavailable where the view is damaged.
        """
        ends_at = request.deadline if deadline is None else deadline
        shard = self.shard(execution_id)
        owner = await self._auth.owner(request, execution_id, shard)
        asked = (HEADER_FIELD, *fields)
        values = await self._freshness.read(
            shard, lambda: self._view.fields(shard, owner.tenant, execution_id, asked), deadline=ends_at
        )
        if values[0] is None:
            # Either it is gone since its owner was remembered, or the directory names what is not there.
            self._auth.forget(execution_id)
            await self._auth.owner(request, execution_id, shard)
            raise Unavailable("the record of this execution is damaged and being restored")
        header = _decoded_header(values[0])
        if header.execution_id != execution_id or header.tenant != owner.tenant:
            raise InvariantBroken("the view answered with another execution's record")
        return header, values[1:]

    async def steps(self, request: Request, execution_id: str, *, after: int, count: int) -> list[StepRecord]:
        """Return steps by first submission: up to `count` from the one after the ordinal `after`."""
        ordinals = [order_field(ordinal) for ordinal in range(after + 1, after + 1 + count)]
        _, order = await self.read(request, execution_id, ordinals)
        step_ids = [raw for raw in order if raw is not None]
        if not step_ids:
            return []
        _, values = await self.read(request, execution_id, [step_field(raw.hex()) for raw in step_ids])
        return [_decoded_step(raw, step_id.hex()) for step_id, raw in zip(step_ids, values, strict=True)]

    async def step(self, request: Request, execution_id: str, step_id: str) -> StepRecord:
        """Return one step of the caller's execution, or raise NotFound."""
        _, (raw,) = await self.read(request, execution_id, (step_field(step_id),))
        if raw is None:
            raise NotFound("step")
        return _decoded_step(raw, step_id)


def _decoded_header(raw: bytes) -> Header:
    try:
        return decode_header(raw)
    except msgspec.DecodeError as error:
        raise InvariantBroken("a header in the view cannot be read") from error


def _decoded_step(raw: bytes | None, step_id: str) -> StepRecord:
    if raw is None:
        raise Unavailable("the record of this execution is damaged and being restored")
    try:
        step = decode_step(raw)
    except msgspec.DecodeError as error:
        raise InvariantBroken("a step in the view cannot be read") from error
    if step.step_id != step_id:
        raise InvariantBroken("the view answered with another step's record")
    return step
