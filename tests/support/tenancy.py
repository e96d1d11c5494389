"""Tenants and keys of tests, made through a door as operators make them."""

from typing import Any

from schemas.scopes import OPERATOR, SCOPES
from tests.support.door import OPERATOR_KEY, Rig

ALL_BUT_OPERATOR = tuple(scope for scope in SCOPES if scope != OPERATOR)


async def make_tenant(rig: Rig, tenant: str = "acme", **members: Any) -> None:
    response = await rig.call("POST", "/v0/tenants", key=OPERATOR_KEY, json={"id": tenant, **members})
    assert response.status_code in (200, 201), response.text


async def make_key(rig: Rig, *scopes: str, tenant: str = "default", name: str = "test", **members: Any) -> Any:
    """Create a key of a tenant, with every scope but operator where none is named, and return the whole answer."""
    body = {"name": name, "scopes": scopes or ALL_BUT_OPERATOR, "tenant": tenant, **members}
    response = await rig.call("POST", "/v0/keys", key=OPERATOR_KEY, json=body)
    assert response.status_code == 201, response.text
    return response.json()
