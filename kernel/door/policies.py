"""Policies of agents: load a bundle, read it. One that cannot be loaded changes nothing."""

from kernel.control.control import Control
from kernel.control.policies import check_bundle
from kernel.domain.errors import Invalid, NotFound
from kernel.domain.policy.limits import BUNDLE_BYTES_MAX
from kernel.door import bodies
from kernel.door.agents import agent_id_of
from kernel.door.changing import now_micros, seconds_left, submitted
from kernel.door.exchange import NO_CONTENT, Request, Response
from kernel.door.executions import principal_of
from kernel.door.large_bodies import read_document
from kernel.door.quotas import Quotas
from schemas import http
from schemas.control import PolicySet
from schemas.http import encode_http
from schemas.ids import new_uuid7


class PolicyAdmin:
    """Handlers of the routes 3.21 and 3.22."""

    def __init__(self, *, control: Control, quotas: Quotas) -> None:
        self._control = control
        self._quotas = quotas

    async def load_policy(self, request: Request) -> Response:
        """Replace the bundle of an agent, or remove it by the empty text."""
        principal = principal_of(request)
        bundle = bodies.text((await read_document(request)).fields, "bundle")
        if len(bundle) > BUNDLE_BYTES_MAX or len(bundle.encode()) > BUNDLE_BYTES_MAX:
            raise Invalid(f"larger than {BUNDLE_BYTES_MAX} bytes", path="bundle")
        if bundle:
            await check_bundle(bundle, timeout_seconds=seconds_left(request))
        agent_id = agent_id_of(request)
        await self._quotas.admit(request)
        self._policy(principal.tenant, agent_id)
        entry = PolicySet(
            id=new_uuid7(),
            at=now_micros(),
            by=principal.name,
            tenant=principal.tenant,
            agent_id=agent_id,
            bundle=bundle,
        )
        await submitted(self._control, entry, request)
        return NO_CONTENT

    async def read_policy(self, request: Request) -> Response:
        agent_id = agent_id_of(request)
        await self._quotas.admit(request)
        bundle, version = self._policy(principal_of(request).tenant, agent_id)
        return Response(
            status=200, body=encode_http(http.Policy(agent_id=agent_id, bundle=bundle, policy_version=version))
        )

    def _policy(self, tenant: str, agent_id: str) -> tuple[str, int]:
        found = self._control.policy_text(tenant, agent_id)
        if found is None:
            raise NotFound("agent")
        return found
