"""The policies of agents as doors use them: compiled once per version, and beside the event loop."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from kernel.control.bundles import CompiledBundle, compiled
from kernel.domain.errors import BundleInvalid, Unavailable

COMPILED_MAX = 1_000
"""Bundles kept compiled; another one is compiled anew when it is asked for."""

# One thread for the process: a bundle is read in pure Python, so two would only hold up the loop more.
_COMPILER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bundles")


class Policy(msgspec.Struct, frozen=True):
    """An agent's policy. `bundle` is None where the stored text cannot be compiled: then it denies everything."""

    version: int
    text: str
    bundle: CompiledBundle | None


class Policies:
    """Compiled bundles by tenant and agent, the ones asked for last."""

    def __init__(self, compile_bundle: Callable[[str], CompiledBundle] = compiled) -> None:
        self._compile = compile_bundle
        self._compiled: OrderedDict[tuple[str, str], Policy] = OrderedDict()
        self._compiling = asyncio.Lock()

    def known(self, tenant: str, agent_id: str, version: int) -> Policy | None:
        """Return the policy if this very version of it is compiled already."""
        policy = self._compiled.get((tenant, agent_id))
        if policy is None or policy.version != version:
            return None
        self._compiled.move_to_end((tenant, agent_id))
        return policy

    async def load(self, tenant: str, agent_id: str, *, version: int, text: str, timeout_seconds: float) -> Policy:
        """Return the policy, compiled now if nobody did so before. Raises Unavailable when the time is up."""
        try:
            async with asyncio.timeout(timeout_seconds), self._compiling:
                found = self.known(tenant, agent_id, version)
                if found is None:
                    found = Policy(version=version, text=text, bundle=await self._compiled_or_none(text))
                    self._keep((tenant, agent_id), found)
                return found
        except TimeoutError as error:
            raise Unavailable("too many policies wait to be compiled") from error

    def forget(self, changed: Iterable[tuple[str, str]]) -> None:
        """Drop what may have changed."""
        for key in changed:
            self._compiled.pop(key, None)

    async def _compiled_or_none(self, text: str) -> CompiledBundle | None:
        try:
            return await asyncio.get_running_loop().run_in_executor(_COMPILER, self._compile, text)
        except BundleInvalid:
            return None

    def _keep(self, key: tuple[str, str], policy: Policy) -> None:
        self._compiled[key] = policy
        self._compiled.move_to_end(key)
        if len(self._compiled) > COMPILED_MAX:
            self._compiled.popitem(last=False)


async def check_bundle(text: str, *, timeout_seconds: float) -> None:
    """Raise BundleInvalid where the text is no bundle, Unavailable when the time is up."""
    try:
        async with asyncio.timeout(timeout_seconds):
            await asyncio.get_running_loop().run_in_executor(_COMPILER, compiled, text)
    except TimeoutError as error:
        raise Unavailable("too many policies wait to be compiled") from error
