"""Tenants through the door: made and changed by operators alone, with quotas and settings as data."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.door import API_KEY, OPERATOR_KEY, MemoryRig, Rig, rig_in_memory
from tests.support.tenancy import make_tenant

QUOTAS = {
    "requests_per_second": 100,
    "creates_per_second": 10,
    "live_executions": 500,
    "bytes_per_day": 2**40,
    "log_bytes": 2**53,
}


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[MemoryRig]:
    async with rig_in_memory() as rig:
        yield rig


async def put(rig: Rig, **body: Any) -> Any:
    return await rig.call("POST", "/v0/tenants", key=OPERATOR_KEY, json=body)


async def listed(rig: Rig, query: str = "") -> Any:
    return (await rig.call("GET", f"/v0/tenants{query}", key=OPERATOR_KEY)).json()


async def test_the_default_tenant_is_always_there(rig: Rig) -> None:
    assert await listed(rig) == [{"id": "default", "quotas": {}, "settings": {}}]


async def test_a_tenant_is_made_once_and_changed_from_then_on(rig: Rig) -> None:
    settings = {"no_policy": "deny", "retention_seconds": 86_400}
    whole = {"id": "acme", "quotas": QUOTAS, "settings": settings}

    made = await put(rig, **whole)
    assert (made.status_code, made.json()) == (201, whole)
    same = await put(rig, id="acme")
    assert (same.status_code, same.json()) == (200, whole)
    changed = await put(rig, id="acme", quotas={"live_executions": 1})
    assert changed.json() == {"id": "acme", "quotas": {"live_executions": 1}, "settings": settings}
    cleared = await put(rig, id="acme", settings={}, quotas={})
    assert cleared.json() == {"id": "acme", "quotas": {}, "settings": {}}
    assert [each["id"] for each in await listed(rig)] == ["acme", "default"]


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"id": None}, "id"),
        ({"id": ""}, "id"),
        ({"id": "a b"}, "id"),
        ({"id": "a.b"}, "id"),
        ({"id": "é"}, "id"),
        ({"id": "x" * 65}, "id"),
        ({"quotas": []}, "quotas"),
        ({"quotas": None}, "quotas"),
        *[({"quotas": {name: 0}}, f"quotas.{name}") for name in QUOTAS],
        ({"quotas": {"log_bytes": 1.5}}, "quotas.log_bytes"),
        ({"quotas": {"log_bytes": "1"}}, "quotas.log_bytes"),
        ({"quotas": {"log_bytes": True}}, "quotas.log_bytes"),
        ({"quotas": {"log_bytes": None}}, "quotas.log_bytes"),
        ({"quotas": {"log_bytes": 2**53 + 1}}, "quotas.log_bytes"),
        ({"settings": "x"}, "settings"),
        ({"settings": {"no_policy": "maybe"}}, "settings.no_policy"),
        ({"settings": {"no_policy": True}}, "settings.no_policy"),
        ({"settings": {"retention_seconds": -1}}, "settings.retention_seconds"),
        ({"settings": {"retention_seconds": "24h"}}, "settings.retention_seconds"),
    ],
)
async def test_what_is_wrong_with_a_tenant_is_refused_by_member(rig: Rig, members: dict[str, Any], path: str) -> None:
    response = await put(rig, **({"id": "acme"} | members))
    assert (response.status_code, response.json()["code"]) == (400, "validation_error")
    assert response.json()["details"] == {"path": path}
    assert len(await listed(rig)) == 1


async def test_unknown_members_are_ignored_and_empty_words_count_as_absent(rig: Rig) -> None:
    made = await put(
        rig, id="acme", color="red", quotas={"cows": 3}, settings={"no_policy": "", "retention_seconds": 0}
    )
    assert (made.status_code, made.json()["quotas"]) == (201, {})
    assert made.json()["settings"] == {"retention_seconds": 0}


async def test_tenants_are_paged_by_id(rig: Rig) -> None:
    for tenant in ("b", "B", "a-1", "a_2"):
        await make_tenant(rig, tenant)
    ids = ["B", "a-1", "a_2", "b", "default"]
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        response = await rig.call("GET", "/v0/tenants", key=OPERATOR_KEY, params={"limit": "2", "cursor": cursor})
        found += [each["id"] for each in response.json()]
        cursor = response.headers.get("rebuno-next-cursor")
    assert found == ids
    for query in ("?limit=0", "?limit=x", "?cursor=a%20b"):
        assert (await rig.call("GET", f"/v0/tenants{query}", key=OPERATOR_KEY)).status_code == 400, query


async def test_only_operators_reach_tenants(rig: Rig) -> None:
    for method in ("GET", "POST"):
        assert (await rig.call(method, "/v0/tenants", key=API_KEY, json={"id": "x"})).status_code == 403
        assert (await rig.client.request(method, "/v0/tenants", json={"id": "x"})).status_code == 401
    assert len(await listed(rig)) == 1
