"""Agents as doors and dispatchers use them, their secrets unsealed. Nothing here is ever written anywhere."""

from collections.abc import Iterable

import msgspec

from kernel.control.sealing import Sealer
from kernel.control.state import AgentRecord, ControlState
from schemas.bodies import NULL


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """One registered agent. `secrets` all verify signatures, the first one signs. Times are unix microseconds."""

    tenant: str
    agent_id: str
    webhook_url: str
    secrets: tuple[bytes, ...]
    require_v1: bool = False
    max_concurrency: int = 64
    policy_version: int = 0
    """0 without a bundle."""
    description: str | None = None
    input_schema: bytes = NULL
    output_schema: bytes = NULL
    registered_seq: int = 0
    registered_at: int = 0
    updated_at: int = 0

    def __repr__(self) -> str:
        return f"Agent(tenant={self.tenant!r}, agent_id={self.agent_id!r})"


class Agents:
    """The agents of one control state, found by tenant and by name."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self._by_tenant: dict[str, dict[str, Agent]] = {}
        self._by_name: dict[str, tuple[Agent, ...]] = {}

    def get(self, tenant: str, agent_id: str) -> Agent | None:
        return self._by_tenant.get(tenant, {}).get(agent_id)

    def of_tenant(self, tenant: str) -> list[Agent]:
        """Sorted by id."""
        return [agent for _, agent in sorted(self._by_tenant.get(tenant, {}).items())]

    def named(self, agent_id: str) -> tuple[Agent, ...]:
        """Over all tenants, in order of registration."""
        return self._by_name.get(agent_id, ())

    def follow(self, state: ControlState, changed: Iterable[tuple[str, str]]) -> None:
        """Take over what the state says about the agents that may have changed.

        Raises Misconfigured where a secret cannot be unsealed; then nothing is taken over.
        """
        records = {key: state.agents.get(key[0], {}).get(key[1]) for key in changed}
        fresh = {key: record and self._unsealed(record) for key, record in records.items()}
        for (tenant, agent_id), agent in fresh.items():
            self._replace(tenant, agent_id, agent)

    def _replace(self, tenant: str, agent_id: str, agent: Agent | None) -> None:
        others = tuple(other for other in self.named(agent_id) if other.tenant != tenant)
        of_tenant = self._by_tenant.setdefault(tenant, {})
        if agent is None:
            of_tenant.pop(agent_id, None)
            self._by_name[agent_id] = others
        else:
            of_tenant[agent_id] = agent
            self._by_name[agent_id] = tuple(sorted((*others, agent), key=lambda each: each.registered_seq))
        if not self._by_name[agent_id]:
            del self._by_name[agent_id]

    def _unsealed(self, record: AgentRecord) -> Agent:
        unseal = self._sealer.unseal
        secrets = [unseal(record.secret, tenant=record.tenant, agent_id=record.agent_id, field="secret")]
        if record.next_secret is not None:
            secrets.append(
                unseal(record.next_secret, tenant=record.tenant, agent_id=record.agent_id, field="next_secret")
            )
        return Agent(
            tenant=record.tenant,
            agent_id=record.agent_id,
            webhook_url=record.webhook_url,
            secrets=tuple(secrets),
            require_v1=record.require_v1,
            max_concurrency=record.max_concurrency,
            policy_version=record.policy_version,
            description=record.description,
            input_schema=record.input_schema,
            output_schema=record.output_schema,
            registered_seq=record.registered_seq,
            registered_at=record.registered_at,
            updated_at=record.updated_at,
        )
