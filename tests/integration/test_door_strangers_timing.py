"""What a door does to refuse a foreign id is what it does to refuse an unknown one: time tells no more than words do.

No clock is read: the questions to the view, the log and the control stream are noted by name and in their order. One
more or less of them is what a stranger could measure; the rest of a refusal is the same code on texts of one size.
"""

from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any, cast

import httpx
import pytest
import pytest_asyncio

from kernel.door.auth import AGENTS_TRIED_MAX
from kernel.door.routes import Route
from kernel.log.memory import MemoryLog, MemoryWakes
from kernel.view.memory import MemoryView
from tests.integration.test_door_strangers import (
    NEIGHBOUR_SECRET,
    SIGNED,
    STRANGER_SECRET,
    UNKNOWN,
    WITH_IDS,
    Owner,
    owner_of,
    same,
    strangers_agent,
)
from tests.support.door import Rig, rig_settings, running
from tests.support.tenancy import make_key, make_tenant

TIMES = 3
"""What a door has learned from the first request must not show in those that follow."""

_asked: ContextVar[list[str] | None] = ContextVar("asked", default=None)


class Counted:
    """Passes everything on to what it stands for, and notes what a request of a test asks of it.

    What a door does by itself, and the projector behind it, run in contexts of their own and are not noted.
    """

    def __init__(self, inner: Any, name: str) -> None:
        self._inner = inner
        self._name = name

    def __getattr__(self, member: str) -> Any:
        found = getattr(self._inner, member)
        if not callable(found):
            return found

        def noted(*arguments: Any, **keywords: Any) -> Any:
            asked = _asked.get()
            if asked is not None:
                asked.append(f"{self._name}.{member}")
            return found(*arguments, **keywords)

        return noted


@pytest_asyncio.fixture
async def owner() -> AsyncIterator[Owner]:
    settings = rig_settings()
    memory = MemoryLog(shards=settings.shards)
    log, view = cast("Any", Counted(memory, "log")), cast("Any", Counted(MemoryView(), "view"))
    rig = Rig(settings, log=log, control_log=log, view=view, wakes=MemoryWakes())
    async with running(rig):
        yield await owner_of(rig)


@pytest.fixture(params=["it remembers owners", "it has never met them"])
def _door(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "it has never met them":
        monkeypatch.setattr("kernel.door.auth.LOCATED_MAX", 0)


async def asked_for(sent: Any) -> tuple[httpx.Response, list[str]]:
    """Send the request, and return its answer and what the door asked for to give it."""
    asked: list[str] = []
    token = _asked.set(asked)
    try:
        return await sent, asked
    finally:
        _asked.reset(token)


async def test_what_is_asked_for_is_noted(owner: Owner) -> None:
    """Else the tests below would compare nothing."""
    path = f"/v0/executions/{owner.names['execution_id']}"
    _, read = await asked_for(owner.rig.call("GET", path))
    _, cancelled = await asked_for(owner.rig.call("POST", f"{path}/cancel"))
    _, changed = await asked_for(owner.rig.register("another"))

    assert read == ["view.fields"]
    assert "log.send" in cancelled
    assert "log.append_control" in changed


@pytest.mark.usefixtures("_door")
@pytest.mark.parametrize("route", WITH_IDS, ids=lambda route: route.operation)
async def test_a_foreign_id_costs_another_tenants_key_what_an_unknown_one_costs(owner: Owner, route: Route) -> None:
    key = (await make_key(owner.rig, tenant="acme"))["key"]
    # What a key costs when it is first used is no matter of the id.
    await owner.by_key(route, UNKNOWN, key)
    before = await owner.trace()

    for _ in range(TIMES):
        known, asked = await asked_for(owner.by_key(route, owner.names, key))
        unknown, asked_in_vain = await asked_for(owner.by_key(route, UNKNOWN, key))
        same(known, unknown)
        assert asked == asked_in_vain
        assert "log.send" not in asked

    assert await owner.trace() == before


@pytest.mark.usefixtures("_door")
@pytest.mark.parametrize("tenants", [1, AGENTS_TRIED_MAX + 1])
@pytest.mark.parametrize("route", SIGNED, ids=lambda route: route.operation)
async def test_a_foreign_id_costs_another_agents_signature_what_an_unknown_one_costs(
    owner: Owner, route: Route, tenants: int
) -> None:
    """Also where so many tenants have an agent of that name that the owner's is looked up to be tried first."""
    await strangers_agent(owner.rig, (await make_key(owner.rig, tenant="acme"))["key"])
    for number in range(1, tenants):
        await make_tenant(owner.rig, f"tenant-{number}")
        await strangers_agent(owner.rig, (await make_key(owner.rig, tenant=f"tenant-{number}"))["key"])
    before = await owner.trace()

    for agent_id, secret in (("agent", STRANGER_SECRET), ("neighbour", NEIGHBOUR_SECRET)) * TIMES:
        known, asked = await asked_for(owner.by_signature(route, owner.names, agent_id, secret))
        unknown, asked_in_vain = await asked_for(owner.by_signature(route, UNKNOWN, agent_id, secret))
        assert same(known, unknown)[0] == 404
        assert asked == asked_in_vain
        assert "log.send" not in asked

    assert await owner.trace() == before
