"""Bearer keys through the door: who may make, see and revoke which, and what they open while they live."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from kernel.control.state import KEYS_MAX
from schemas.control import KeyCreated
from schemas.ids import new_uuid7
from schemas.scopes import OPERATOR, SCOPES
from tests.support.door import API_KEY, OPERATOR_KEY, MemoryRig, Rig, rig_in_memory
from tests.support.tenancy import ALL_BUT_OPERATOR, make_key, make_tenant
from tests.support.wait import loop_turns, wait_until_async

UNKNOWN_ID = "0199aaaa-0000-7000-8000-0000000000ff"
KEY = re.compile(r"sw_[A-Za-z0-9_-]{43}")


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[MemoryRig]:
    async with rig_in_memory() as rig:
        yield rig


async def status(rig: Rig, key: str, path: str = "/v0/executions") -> int:
    return (await rig.call("GET", path, key=key)).status_code


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


# ---------------------------------------------------------------- create


async def test_a_key_is_shown_once_and_works(rig: Rig) -> None:
    response = await rig.call(
        "POST", "/v0/keys", json={"name": "ci", "scopes": ["executions:read", "audit:read", "executions:read"]}
    )
    made = response.json()
    assert response.status_code == 201
    assert response.headers["cache-control"] == "no-store"
    assert set(made) == {"id", "name", "tenant", "scopes", "created_at", "key"}
    assert (made["name"], made["tenant"], made["scopes"]) == ("ci", "default", ["executions:read", "audit:read"])
    assert KEY.fullmatch(made["key"])

    assert await status(rig, made["key"]) == 200
    listed = (await rig.call("GET", "/v0/keys")).json()
    assert listed == [{name: value for name, value in made.items() if name != "key"}]


async def test_whoever_holds_a_key_goes_by_its_name(rig: Rig) -> None:
    await rig.register()
    key = (await make_key(rig, name="nightly é"))["key"]

    created = await rig.call("POST", "/v0/executions", key=key, json={"agent_id": "agent"})

    assert created.json()["created_by"] == "nightly é"


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 257}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"name": " ci"}, "name"),
        ({"scopes": None}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"scopes": "executions:read"}, "scopes"),
        ({"scopes": ["executions:read", "executions"]}, "scopes[1]"),
        ({"scopes": ["Operator"]}, "scopes[0]"),
        ({"scopes": [["audit:read"]]}, "scopes[0]"),
        ({"tenant": 1}, "tenant"),
        ({"tenant": "a b"}, "tenant"),
        ({"tenant": "x" * 65}, "tenant"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"expires_at": "2030-01-01T00:00:00"}, "expires_at"),
        ({"expires_at": 1}, "expires_at"),
        ({"expires_at": None}, "expires_at"),
    ],
)
async def test_what_is_wrong_with_a_key_is_refused_by_member(rig: Rig, members: dict[str, Any], path: str) -> None:
    body = {"name": "ci", "scopes": ["audit:read"]} | members
    response = await rig.call("POST", "/v0/keys", key=OPERATOR_KEY, json=body)
    assert (response.status_code, response.json()["code"]) == (400, "validation_error")
    assert response.json()["details"] == {"path": path}
    assert (await rig.call("GET", "/v0/keys", key=OPERATOR_KEY)).json() == []


async def test_what_is_empty_counts_as_absent(rig: Rig) -> None:
    body = {"name": "ci", "scopes": ["audit:read"], "tenant": "", "expires_at": ""}
    response = await rig.call("POST", "/v0/keys", json=body)
    assert (response.status_code, response.json()["tenant"]) == (201, "default")
    assert "expires_at" not in response.json()


async def test_a_tenants_key_cannot_be_made_without_end(rig: Rig) -> None:
    for number in range(KEYS_MAX):
        entry = KeyCreated(
            id=new_uuid7(),
            at=1,
            by="test",
            tenant="default",
            key_id=new_uuid7(),
            name="x",
            scopes=("audit:read",),
            hash=number.to_bytes(32, "big"),
        )
        await rig.control.submit(entry, timeout_seconds=5)
    refused = await rig.call("POST", "/v0/keys", json={"name": "ci", "scopes": ["audit:read"]})
    assert (refused.status_code, refused.json()["details"]) == (429, {"reason": "keys"})


# ---------------------------------------------------------------- who may give what


@pytest.mark.parametrize("scope", ALL_BUT_OPERATOR)
async def test_a_tenant_admin_gives_any_scope_but_operator(rig: Rig, scope: str) -> None:
    admin = (await make_key(rig, "tenant:admin"))["key"]
    made = await rig.call("POST", "/v0/keys", key=admin, json={"name": "x", "scopes": [scope]})
    assert (made.status_code, made.json()["scopes"]) == (201, [scope])

    both = await rig.call("POST", "/v0/keys", key=admin, json={"name": "x", "scopes": [scope, OPERATOR]})
    assert (both.status_code, both.json()["code"]) == (403, "forbidden")


async def test_a_tenant_admin_cannot_name_another_tenant_and_learns_not_whether_there_is_one(rig: Rig) -> None:
    await make_tenant(rig)
    admin = (await make_key(rig, "tenant:admin", tenant="acme"))["key"]
    body = {"name": "x", "scopes": ["audit:read"]}

    answers = [
        await rig.call("POST", "/v0/keys", key=admin, json=body | {"tenant": tenant})
        for tenant in ("default", "nowhere")
    ]
    assert {(each.status_code, each.content) for each in answers} == {(403, answers[0].content)}
    own = await rig.call("POST", "/v0/keys", key=admin, json=body | {"tenant": "acme"})
    assert (own.status_code, own.json()["tenant"]) == (201, "acme")


async def test_a_tenant_admin_neither_sees_nor_revokes_what_is_not_its_own(rig: Rig) -> None:
    await make_tenant(rig)
    admin = await make_key(rig, "tenant:admin")
    operator = await make_key(rig, OPERATOR, "tenant:admin")
    foreign = await make_key(rig, "audit:read", tenant="acme")

    listed = (await rig.call("GET", "/v0/keys?tenant=acme", key=admin["key"])).json()
    assert [each["id"] for each in listed] == [admin["id"]]
    unknown = await rig.call("DELETE", f"/v0/keys/{UNKNOWN_ID}", key=admin["key"])
    assert (unknown.status_code, unknown.content) == (404, b'{"code":"not_found","message":"key not found"}')
    for key in (operator, foreign):
        response = await rig.call("DELETE", f"/v0/keys/{key['id']}", key=admin["key"])
        assert (response.status_code, response.content) == (404, unknown.content)
    assert await status(rig, operator["key"], "/v0/tenants") == 200
    assert await status(rig, foreign["key"], "/v0/keys") == 403


async def test_an_operator_reaches_the_keys_of_every_tenant(rig: Rig) -> None:
    await make_tenant(rig)
    mine, theirs = await make_key(rig, "audit:read"), await make_key(rig, "tenant:admin", tenant="acme")

    for path, expected in (("/v0/keys", [mine, theirs]), ("/v0/keys?tenant=acme", [theirs])):
        listed = (await rig.call("GET", path, key=OPERATOR_KEY)).json()
        assert {each["id"] for each in listed} == {each["id"] for each in expected}
    revoked = await rig.call("DELETE", f"/v0/keys/{theirs['id'].upper()}", key=OPERATOR_KEY)
    assert (revoked.status_code, revoked.content) == (204, b"")
    assert await status(rig, theirs["key"], "/v0/keys") == 401


async def test_the_key_of_an_unknown_tenant_is_refused(rig: Rig) -> None:
    body = {"name": "x", "scopes": ["audit:read"], "tenant": "nowhere"}
    response = await rig.call("POST", "/v0/keys", key=OPERATOR_KEY, json=body)
    assert (response.status_code, response.json()["message"]) == (404, "tenant not found")


async def test_neither_key_that_a_process_is_set_up_with_is_listed_or_can_be_revoked(rig: Rig) -> None:
    for key in (API_KEY, OPERATOR_KEY):
        assert (await rig.call("GET", "/v0/keys", key=key)).json() == []


# ---------------------------------------------------------------- pages


async def test_keys_are_paged_by_id(rig: Rig) -> None:
    made = sorted([(await make_key(rig, "audit:read"))["id"] for _ in range(5)])
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        response = await rig.call("GET", "/v0/keys", params={"limit": "2", "cursor": cursor})
        found += [key["id"] for key in response.json()]
        cursor = response.headers.get("rebuno-next-cursor")
    assert found == made
    for query in ("limit=0", "limit=x", "cursor=x", f"cursor={UNKNOWN_ID[:-1]}"):
        assert (await rig.call("GET", f"/v0/keys?{query}")).status_code == 400, query


# ---------------------------------------------------------------- the end of a key


async def test_a_revoked_key_is_refused_from_the_answer_on(rig: Rig) -> None:
    key = await make_key(rig)
    assert (await rig.call("DELETE", f"/v0/keys/{key['id']}")).status_code == 204

    assert await status(rig, key["key"]) == 401
    again = await rig.call("DELETE", f"/v0/keys/{key['id']}")
    assert (again.status_code, again.json()["message"]) == (404, "key not found")
    assert (await rig.call("DELETE", "/v0/keys/no-uuid")).json()["details"] == {"path": "key_id"}


async def test_a_key_may_revoke_itself(rig: Rig) -> None:
    key = await make_key(rig, "tenant:admin")
    assert (await rig.call("DELETE", f"/v0/keys/{key['id']}", key=key["key"])).status_code == 204
    assert (await rig.call("DELETE", f"/v0/keys/{key['id']}", key=key["key"])).status_code == 401


async def test_a_key_ends_when_it_expires(rig: Rig) -> None:
    living = await make_key(rig, expires_at=in_seconds(3600))
    ended = await make_key(rig, expires_at=in_seconds(-1))
    ending = await make_key(rig, expires_at=in_seconds(0.3))

    assert await status(rig, living["key"]) == 200
    assert await status(rig, ended["key"]) == 401

    async def is_over() -> bool:
        return await status(rig, ending["key"]) == 401

    await wait_until_async(is_over, "the key to expire", deadline_seconds=1.5)
    listed = (await rig.call("GET", "/v0/keys")).json()
    assert {each["expires_at"] for each in listed} == {each["expires_at"] for each in (living, ended, ending)}


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_a_request_that_waits_reads_nothing_more_once_its_key_has_ended(rig: Rig, how: str) -> None:
    await rig.register()
    execution_id = await rig.create()
    last = (await rig.events(execution_id))[-1]["event_seq"]
    key = await make_key(rig, expires_at=in_seconds(3600 if how == "revoked" else 0.5))
    waiting = asyncio.create_task(
        rig.call("GET", f"/v0/executions/{execution_id}/events?after_seq={last}&wait=8", key=key["key"])
    )
    await loop_turns()
    if how == "revoked":
        await rig.call("DELETE", f"/v0/keys/{key['id']}")

    async with asyncio.timeout(3):
        response = await waiting

    assert (response.status_code, response.json()["code"]) == (401, "unauthorized")


# ---------------------------------------------------------------- what a key opens


async def test_an_operator_key_opens_nothing_of_an_execution(rig: Rig) -> None:
    await rig.register()
    execution_id = await rig.create()
    made = await make_key(rig, OPERATOR)
    for key in (OPERATOR_KEY, made["key"]):
        for path in (
            "/v0/executions",
            f"/v0/executions/{execution_id}",
            f"/v0/executions/{execution_id}/events",
            "/v0/approvals",
            "/v0/agents",
            "/v0/policies/agent",
        ):
            assert await status(rig, key, path) == 403, path
        assert (await rig.call("POST", "/v0/executions", key=key, json={"agent_id": "agent"})).status_code == 403
        for path in ("/v0/keys", "/v0/tenants", "/metrics"):
            assert await status(rig, key, path) == 200, path


async def test_in_dev_everybody_has_every_scope(rig: Rig) -> None:
    async with rig_in_memory(mode="dev", api_key="", operator_key="") as dev:
        assert (await dev.client.post("/v0/tenants", json={"id": "acme"})).status_code == 201
        made = await dev.client.post("/v0/keys", json={"name": "x", "scopes": SCOPES, "tenant": "acme"})
        assert made.json()["scopes"] == list(SCOPES)


async def test_a_key_in_upper_case_or_with_anything_more_is_no_key(rig: Rig) -> None:
    key = (await make_key(rig))["key"]
    for wrong in (key.upper(), key[:-1], key + "x", key[3:], f"{key}, Bearer {key}"):
        assert await status(rig, wrong) == 401, wrong
