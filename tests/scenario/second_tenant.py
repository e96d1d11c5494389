"""A second tenant, written straight into the log, as a door will do it once keys of other tenants can be made.

Its agents may have the ids of the first tenant's. They sign, read and submit over HTTP as all agents do.
"""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from kernel.control.sealing import Sealer
from kernel.domain.identity import shard_of
from kernel.log.jetstream import JetStreamLog
from kernel.ports import Outgoing
from schemas.control import AgentPut, encode_control
from schemas.entries import ExecutionCreated, Limits, encode_entry
from schemas.ids import new_uuid7
from tests.conformance.harness.agent import Agent, Lease
from tests.conformance.harness.endpoint import accepting, serving
from tests.conformance.harness.kernel import Kernel
from tests.support.stack import Stack

TENANT = "second"
SHARDS = 8
SECONDS = 10.0
LIFE_SECONDS = 3600
LIMITS = Limits(
    attempts_max=5,
    lease_ms=60_000,
    unacknowledged_lease_ms=60_000,
    base_delay_ms=1000,
    delay_max_ms=10_000,
    unreachable_ms=60_000,
)


class SecondTenant:
    """Made by `second_tenant`, which closes it."""

    def __init__(self, kernel: Kernel, log: JetStreamLog, sealer: Sealer, endpoints: AsyncExitStack) -> None:
        self._kernel = kernel
        self._log = log
        self._sealer = sealer
        self._endpoints = endpoints

    async def agent(self, agent_id: str) -> Agent:
        endpoint = await self._endpoints.enter_async_context(serving(accepting))
        secret = f"the secret of {agent_id} of the second tenant"
        entry = AgentPut(
            id=new_uuid7(),
            at=_now(),
            by="test",
            tenant=TENANT,
            agent_id=agent_id,
            webhook_url=endpoint.url,
            secret=self._sealer.seal(secret.encode(), tenant=TENANT, agent_id=agent_id, field="secret"),
        )
        await self._log.append_control(entry_id=entry.id, payload=encode_control(entry), timeout_seconds=SECONDS)
        return Agent(self._kernel, endpoint, agent_id=agent_id, secret=secret, scheme="v1")

    async def start(self, agent: Agent, given: Any) -> Lease:
        """Create an execution of one of its agents and take its first lease."""
        execution_id = new_uuid7()
        entry = ExecutionCreated(
            id=new_uuid7(),
            tenant=TENANT,
            execution_id=execution_id,
            at=_now(),
            agent_id=agent.id,
            created_by="test",
            input=msgspec.Raw(msgspec.json.encode(given)),
            dispatch_id=new_uuid7(),
            limits=LIMITS,
            deadline_at=None,
            life_ends_at=_now() + LIFE_SECONDS * 1_000_000,
        )
        outgoing = Outgoing(
            shard=shard_of(execution_id, SHARDS),
            tenant=TENANT,
            execution_id=execution_id,
            entry_id=entry.id,
            payload=encode_entry(entry),
            reply_to="",
        )
        await self._log.append(outgoing, timeout_seconds=SECONDS)
        return await agent.lease(execution_id)


@asynccontextmanager
async def second_tenant(kernel: Kernel, stack: Stack, master_key: str) -> AsyncIterator[SecondTenant]:
    """Write into the log of a stack whose STEPWELL_MASTER_KEY is known."""
    log = await JetStreamLog.connect(stack.nats.url, shards=SHARDS, name="second-tenant")
    try:
        async with AsyncExitStack() as endpoints:
            yield SecondTenant(kernel, log, Sealer(master_key), endpoints)
    finally:
        await log.close()


def _now() -> int:
    return time.time_ns() // 1000
