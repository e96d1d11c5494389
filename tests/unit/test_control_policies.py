"""Policies as doors use them: compiled once per version, at once the newest, and denied where nothing compiles."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from kernel.control.bundles import CompiledBundle, compiled
from kernel.control.control import Control
from kernel.control.policies import COMPILED_MAX, Policies, Policy
from kernel.control.sealing import Sealer
from kernel.domain.errors import NotFound, Unavailable
from kernel.log.memory import MemoryLog
from schemas.control import PolicySet
from schemas.ids import new_uuid7
from tests.support.control import POLL_SECONDS, SECONDS, deleted, following, put

DENY = "default_action: deny"
ALLOW = "default_action: allow"


class Compiler:
    """What turns text into bundles, beside the loop; it may be held up."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.threads: set[str] = set()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self, text: str) -> CompiledBundle:
        self.texts.append(text)
        self.threads.add(threading.current_thread().name)
        self.may_go_on.wait(SECONDS)
        return compiled(text)


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    compiler = Compiler()
    yield compiler
    compiler.may_go_on.set()


@pytest.fixture
def policies(compiler: Compiler) -> Policies:
    return Policies(compiler)


async def _load(policies: Policies, text: str, *, version: int, agent_id: str = "a", tenant: str = "t") -> Policy:
    return await policies.load(tenant, agent_id, version=version, text=text, timeout_seconds=SECONDS)


async def test_a_version_is_compiled_once_however_many_ask(policies: Policies, compiler: Compiler) -> None:
    found = await asyncio.gather(*(_load(policies, DENY, version=3) for _ in range(10)))

    assert compiler.texts == [DENY]
    assert compiler.threads != {threading.main_thread().name}
    assert found == [Policy(version=3, text=DENY, bundle=compiled(DENY))] * 10
    assert policies.known("t", "a", 3) == found[0]
    assert policies.known("t", "a", 4) is policies.known("other", "a", 3) is None


async def test_a_later_version_takes_the_place_of_the_one_before(policies: Policies) -> None:
    await _load(policies, DENY, version=3)
    await _load(policies, ALLOW, version=4)

    assert policies.known("t", "a", 3) is None
    assert (await _load(policies, ALLOW, version=4)).text == ALLOW


async def test_a_text_that_does_not_compile_is_a_policy_without_a_bundle(policies: Policies) -> None:
    assert await _load(policies, "broken", version=3) == Policy(version=3, text="broken", bundle=None)


async def test_only_so_many_are_kept_and_those_asked_for_last(policies: Policies, compiler: Compiler) -> None:
    for number in range(COMPILED_MAX):
        await _load(policies, DENY, version=1, agent_id=f"a{number}")
    assert policies.known("t", "a0", 1)

    await _load(policies, DENY, version=1, agent_id="more")

    assert policies.known("t", "a0", 1)
    assert policies.known("t", "a1", 1) is None
    assert len(compiler.texts) == COMPILED_MAX + 1


async def test_who_cannot_wait_any_longer_is_told_and_the_next_one_is_served(
    policies: Policies, compiler: Compiler
) -> None:
    compiler.may_go_on.clear()
    for _ in range(2):
        with pytest.raises(Unavailable):
            await policies.load("t", "a", version=1, text=DENY, timeout_seconds=0.01)
    compiler.may_go_on.set()

    assert (await _load(policies, DENY, version=1)).bundle is not None


# ---------------------------------------------------------------- through control


def _set(bundle: str, *, tenant: str = "default") -> PolicySet:
    return PolicySet(id=new_uuid7(), at=1, by="api", tenant=tenant, agent_id="a", bundle=bundle)


async def test_the_policy_of_an_agent_is_at_once_the_newest_and_ends_with_the_agent() -> None:
    sealer = Sealer("a master key of the tests")
    control = Control(MemoryLog(shards=1), sealer, poll_seconds=POLL_SECONDS)

    async def policy() -> Policy | None:
        return await control.policy("default", "a", timeout_seconds=SECONDS)

    async with following(control):
        with pytest.raises(NotFound):
            await control.submit(_set(DENY), timeout_seconds=SECONDS)
        assert await policy() is None
        assert control.policy_text("default", "a") is None

        await control.submit(put(sealer), timeout_seconds=SECONDS)
        assert await policy() is None
        assert control.policy_text("default", "a") == ("", 0)

        for text, version in ((DENY, 3), (ALLOW, 4)):
            await control.submit(_set(text), timeout_seconds=SECONDS)
            found = await policy()
            assert found is not None
            assert (found.text, found.version) == (text, version) == control.policy_text("default", "a")
            assert await policy() is found
            agent = control.agent("default", "a")
            assert agent is not None
            assert agent.policy_version == version

        await control.submit(put(sealer), timeout_seconds=SECONDS)
        assert control.policy_text("default", "a") == (ALLOW, 4)
        for entry in (deleted(), put(sealer)):
            await control.submit(entry, timeout_seconds=SECONDS)
        assert await policy() is None
        assert control.policy_text("default", "a") == ("", 0)


async def test_tenants_are_known_by_name_and_sorted() -> None:
    control = Control(MemoryLog(shards=1), Sealer("a master key of the tests"), poll_seconds=POLL_SECONDS)

    assert [each.tenant for each in control.tenants()] == ["default"]
    assert control.tenant("acme") is None
