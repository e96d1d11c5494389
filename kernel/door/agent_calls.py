"""The calls of a running agent: submit, outcomes of steps, heartbeat, the end of the execution. The hot path."""

import asyncio

from msgspec import UNSET, Raw
from msgspec.structs import replace

from kernel.domain.canonical import Plain, args_hash
from kernel.domain.errors import KernelError, NotFound, OutcomeUnknown, ViewUnavailable
from kernel.domain.identity import shard_of
from kernel.domain.json_values import Document
from kernel.domain.policy import LOCAL
from kernel.door import bodies
from kernel.door.appending import Appending, decided
from kernel.door.auth import Auth
from kernel.door.exchange import NO_CONTENT, NO_CONTENT_REPLAYED, Request, Response
from kernel.door.fetching import NO_TEXTS, Shelf, Texts
from kernel.door.freshness import POLL_SECONDS_MAX
from kernel.door.large_bodies import read_document, read_into
from kernel.door.policing import Policing
from kernel.door.quotas import Quotas
from kernel.door.rendering import decision_response, outcome_response
from kernel.ports import DoorView
from kernel.settings import Settings
from schemas.answers import Decided, Done, Recorded
from schemas.bodies import NULL
from schemas.entries import (
    ExecutionCompleted,
    ExecutionFailed,
    HeartbeatReceived,
    Lease,
    StepCompleted,
    StepFailed,
    StepSubmitted,
)

_NULL_HASH = args_hash(NULL)


class AgentCalls:
    """Handlers of the routes 3.10 to 3.12 and 3.14 to 3.16."""

    def __init__(
        self,
        *,
        settings: Settings,
        auth: Auth,
        appending: Appending,
        policing: Policing,
        quotas: Quotas,
        shelf: Shelf,
        view: DoorView,
    ) -> None:
        self._auth = auth
        self._policing = policing
        self._quotas = quotas
        self._appending = appending
        self._shelf = shelf
        self._view = view
        self._shards = settings.shards
        self._lease_ms = round(settings.lease_seconds * 1000)

    async def submit_step(self, request: Request) -> Response:
        execution_id = bodies.execution_id_of(request)
        lease = bodies.lease_of(request)

        def build(document: Document) -> tuple[StepSubmitted, Plain]:
            fields = document.fields
            args = fields.get("args")
            entry = StepSubmitted(
                **self._appending.stamp(request, execution_id),
                lease=lease,
                kind=bodies.choice(fields, "kind", bodies.KINDS),
                target=bodies.target_of(fields),
                args=Raw(NULL if args is None else args.raw),
                args_hash=_NULL_HASH if args is None else args_hash(args.canonical),
                idempotency=bodies.optional_choice(fields, "idempotency", bodies.IDEMPOTENCIES),
                verdict=LOCAL,
                settle=bodies.settle_of(fields),
                key=bodies.request_key(request, document, f"/v0/executions/{execution_id}/steps"),
            )
            return entry, None if args is None else args.plain

        entry, args = await read_into(request, build, lenient=bodies.SETTLE_LENIENT)
        answer = await self._decide(request, entry, args)
        return decision_response(answer, await self._texts(request, execution_id, answer))

    async def _decide(self, request: Request, entry: StepSubmitted, args: Plain) -> Decided:
        """Append a submission with the verdict of policy on it. The one it came with stands for none."""
        await self._quotas.admit_step(request)
        shard = shard_of(entry.execution_id, self._shards)
        owner = await self._auth.owner(request, entry.execution_id, shard)
        verdict, token = await self._policing.judge(owner, entry, args, deadline=request.deadline)
        entry = replace(entry, tenant=owner.tenant, verdict=verdict)
        try:
            answer = await self._appending.append(request, entry, shard=shard, expected=Decided)
        except KernelError as error:
            if not isinstance(error, OutcomeUnknown):
                await self._policing.settle(token, None)
            raise
        await self._policing.settle(token, answer)
        return answer

    async def _texts(self, request: Request, execution_id: str, answer: Decided | Recorded) -> Texts:
        if answer.result is None and answer.error is None:
            return NO_TEXTS
        shard = shard_of(execution_id, self._shards)
        with decided():
            return await self._shelf.texts(
                shard, execution_id, (answer.result, answer.error), deadline=request.deadline
            )

    async def complete_step(self, request: Request) -> Response:
        execution_id = bodies.execution_id_of(request)
        step_id = bodies.step_id_of(request)
        lease = bodies.lease_of(request)

        def build(document: Document) -> StepCompleted:
            return StepCompleted(
                **self._appending.stamp(request, execution_id),
                lease=lease,
                step_id=step_id,
                result=bodies.raw_or_null(document.fields, "result"),
                usage=bodies.usage_of(document.fields),
                read_usage=bodies.read_usage_of(document.fields),
                key=bodies.request_key(request, document, f"/v0/executions/{execution_id}/steps/{step_id}/complete"),
            )

        return await self._record_outcome(request, await read_into(request, build, is_optional=True))

    async def fail_step(self, request: Request) -> Response:
        execution_id = bodies.execution_id_of(request)
        step_id = bodies.step_id_of(request)
        lease = bodies.lease_of(request)

        def build(document: Document) -> StepFailed:
            return StepFailed(
                **self._appending.stamp(request, execution_id),
                lease=lease,
                step_id=step_id,
                error=bodies.error_of_step(document.fields),
                key=bodies.request_key(request, document, f"/v0/executions/{execution_id}/steps/{step_id}/fail"),
            )

        return await self._record_outcome(request, await read_into(request, build, lenient=bodies.ERROR_LENIENT))

    async def _record_outcome(self, request: Request, entry: StepCompleted | StepFailed) -> Response:
        if entry.step_id == bodies.NO_STEP_ID:
            await self._quotas.admit(request)
            await self._auth.owner(request, entry.execution_id, shard_of(entry.execution_id, self._shards))
            raise NotFound("step")
        answer = await self._appending.to_owned(request, entry, Recorded)
        return outcome_response(answer, await self._texts(request, entry.execution_id, answer))

    async def heartbeat(self, request: Request) -> Response:
        """Renew the lease in the view alone where that is safe, else let the log decide."""
        execution_id = bodies.execution_id_of(request)
        lease = bodies.lease_of(request)
        await read_document(request, is_optional=True)
        shard = shard_of(execution_id, self._shards)
        await self._auth.owner(request, execution_id, shard)
        if await self._renew(shard, execution_id, lease, deadline=request.deadline):
            return NO_CONTENT
        entry = HeartbeatReceived(
            **self._appending.stamp(request, execution_id),
            lease=lease,
        )
        await self._appending.to_owned(request, entry, Done)
        return NO_CONTENT

    async def _renew(self, shard: int, execution_id: str, lease: Lease, *, deadline: float) -> bool:
        """Ask the view until it answers. Renewing twice does no harm."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await self._view.renew_lease(shard, execution_id, lease, lease_ms=self._lease_ms)
            except ViewUnavailable as error:
                if loop.time() + POLL_SECONDS_MAX >= deadline:
                    raise ViewUnavailable(str(error), reason="view_unavailable") from error
                await asyncio.sleep(POLL_SECONDS_MAX)

    async def complete_execution(self, request: Request) -> Response:
        execution_id = bodies.execution_id_of(request)
        lease = bodies.lease_of(request)

        def build(document: Document) -> ExecutionCompleted:
            fields = document.fields
            state = fields.get("state")
            return ExecutionCompleted(
                **self._appending.stamp(request, execution_id),
                lease=lease,
                output=bodies.raw_or_null(fields, "output"),
                state=UNSET if state is None or state.plain is None else Raw(state.raw),
                settle=bodies.settle_of(fields),
                key=bodies.request_key(request, document, f"/v0/executions/{execution_id}/complete"),
            )

        entry = await read_into(request, build, lenient=bodies.SETTLE_LENIENT, is_optional=True)
        return await self._end(request, entry)

    async def fail_execution(self, request: Request) -> Response:
        execution_id = bodies.execution_id_of(request)
        lease = bodies.lease_of(request)

        def build(document: Document) -> ExecutionFailed:
            return ExecutionFailed(
                **self._appending.stamp(request, execution_id),
                lease=lease,
                error=bodies.text(document.fields, "error"),
                settle=bodies.settle_of(document.fields),
                key=bodies.request_key(request, document, f"/v0/executions/{execution_id}/fail"),
            )

        return await self._end(request, await read_into(request, build, lenient=bodies.ENDING_LENIENT))

    async def _end(self, request: Request, entry: ExecutionCompleted | ExecutionFailed) -> Response:
        answer = await self._appending.to_owned(request, entry, Done)
        return NO_CONTENT_REPLAYED if answer.is_replayed else NO_CONTENT
