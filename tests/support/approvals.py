"""Steps that ask for an approval, as entries of the log: what a rule of a bundle makes of a submission."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import Raw

from kernel.domain.canonical import args_hash
from kernel.domain.identity import step_id
from kernel.domain.json_values import read_value
from kernel.door.drawing import new_approval_id
from schemas.entries import ApprovalTerms, Idempotency, Lease, StepSubmitted, Verdict
from schemas.ids import new_uuid7
from tests.support.door import Rig, Run
from tests.support.wait import wait_until_async
from workers.dispatcher import Dispatcher

TARGET = "transfer"
RULE = "ask-first"
POLICY_VERSION = 3
MINUTE = ApprovalTerms(timeout_ms=60_000)


class Asked(msgspec.Struct, frozen=True):
    """An approval that was asked for, and the step that waits for it."""

    execution_id: str
    approval_id: str
    step_id: str

    @property
    def path(self) -> str:
        return f"/v0/approvals/{self.approval_id}"


def asking_entry(
    execution_id: str,
    lease: Lease,
    *,
    shards: int,
    args: Any = None,
    terms: ApprovalTerms = MINUTE,
    idempotency: Idempotency = "safe_to_retry",
    tenant: str = "default",
) -> StepSubmitted:
    """Return the submission of a step whose rule requires an approval."""
    raw = msgspec.json.encode(args)
    verdict = Verdict(
        decision="require_approval",
        rule_id=RULE,
        policy_version=POLICY_VERSION,
        approval=terms,
        approval_id=new_approval_id(execution_id, shards),
    )
    return StepSubmitted(
        id=new_uuid7(),
        tenant=tenant,
        execution_id=execution_id,
        at=time.time_ns() // 1000,
        lease=lease,
        kind="tool_call",
        target=TARGET,
        args=Raw(raw),
        args_hash=args_hash(read_value(raw).canonical),
        idempotency=idempotency,
        verdict=verdict,
    )


def asked_of(entry: StepSubmitted) -> Asked:
    """Return what a first submission of a call asks for."""
    step = step_id(entry.execution_id, entry.kind, entry.target, entry.args_hash, 0)
    return Asked(execution_id=entry.execution_id, approval_id=entry.verdict.approval_id, step_id=step)


async def ask(run: Run, args: Any = None, **options: Any) -> Asked:
    """Let a run submit a step that has to be approved, and wait until its execution is blocked.

    `options` are those of `asking_entry`. As through a door with such a rule, the agent is to stop its run then.
    """
    rig = run.rig
    entry = asking_entry(run.execution_id, run.lease, shards=rig.settings.shards, args=args, **options)
    await rig.append(entry)

    async def is_blocked() -> bool:
        pending = (await rig.header(run.execution_id)).approval
        return pending is not None and pending.approval_id == entry.verdict.approval_id

    await wait_until_async(is_blocked, "the approval to be asked for")
    return asked_of(entry)


async def approval(rig: Rig, asked: Asked) -> dict[str, Any]:
    """The approval as clients read it."""
    response = await rig.call("GET", asked.path)
    assert response.status_code == 200, response.text
    return response.json()


async def events_since(rig: Rig, run: Run, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Type and payload of every event after the first so many."""
    return [(event["type"], event["payload"]) for event in (await rig.events(run.execution_id))[count:]]


@asynccontextmanager
async def dispatching(rig: Rig) -> AsyncIterator[None]:
    """Run a dispatcher beside a rig for the length of the block."""
    dispatcher = Dispatcher(
        settings=rig.settings, log=rig.log, view=rig.view, wakes=rig.wakes, control=rig.control, name=new_uuid7()
    )
    task = asyncio.create_task(dispatcher.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()
