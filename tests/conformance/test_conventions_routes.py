"""K1, K2, K10, K119: paths, methods, ids and pages."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.harness.answers import accepted, details, envelope, path_of
from tests.conformance.harness.calls import KEY, NEXT_CURSOR
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.routes import (
    METHODS,
    ROUTES,
    UNKNOWN_ID,
    UNKNOWN_STEP,
    WITH_EXECUTION,
    Route,
    Scene,
)

CONTRACT = Path(__file__).resolve().parents[2] / "docs" / "contract.md"
EXECUTION_NOT_FOUND = b'{"code":"not_found","message":"execution not found"}'
STEP_NOT_FOUND = b'{"code":"not_found","message":"step not found"}'
AGENT_NOT_FOUND = b'{"code":"not_found","message":"agent not found"}'
MALFORMED_IDS = (
    "x",
    UNKNOWN_ID.replace("-", ""),
    UNKNOWN_ID[:-1],
    UNKNOWN_ID + "0",
    UNKNOWN_ID.replace("f", "g"),
    f"%7B{UNKNOWN_ID}%7D",
    f"urn:uuid:{UNKNOWN_ID}",
    f"%20{UNKNOWN_ID}",
    "0199aaaa0-000-7000-8000-0000000000ff",
    "%00",
    "%FF",
    "9" * 2000,
)


def _methods_in_the_contract(path: str) -> set[str]:
    """The methods that section 3 gives a path, built or not; the parameters' names do not matter."""
    wanted = re.sub(r"\{[a-z_]+\}", "{}", path)
    found = {"GET"} if path in {"/v0/ready", "/v0/openapi.json", "/docs", "/metrics"} else set()
    for line in CONTRACT.read_text().splitlines():
        if not line.startswith("| 3."):
            continue
        for words, spelled in re.findall(r"([A-Z][A-Za-z ]*?) (/v0/[^\s,|]+|…/[^\s,|]+)", line):
            spelled = spelled.replace("…/", "/v0/executions/{id}/")
            if re.sub(r"\{[a-z_]+\}", "{}", spelled) == wanted:
                found |= set(re.findall(r"[A-Z]+", words))
    return found


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v0",
        "/v0/",
        "/v0/nothing",
        "/v1/executions",
        "/V0/executions",
        "/v0/Executions",
        "//v0/executions",
        "/v0//executions",
        "/executions",
        "/v0/executions/%2e%2e/agents",
        "/v0/agents/x/nothing",
        f"/v0/executions/{UNKNOWN_ID}/nothing",
        f"/v0/executions/{UNKNOWN_ID}/steps/{UNKNOWN_STEP}/nothing",
        "/v0/" + "a/" * 500 + "a",
    ],
)
async def test_k1_an_unknown_route_is_404_whatever_the_method(kernel: Kernel, path: str) -> None:
    for method in METHODS:
        response = await kernel.request(method, path)

        assert envelope(response, 404, "not_found")["message"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
async def test_k1_a_trailing_slash_is_an_unknown_route(kernel: Kernel, route: Route) -> None:
    names = {"execution_id": UNKNOWN_ID, "step_id": UNKNOWN_STEP, "agent_id": "somebody", "key_id": UNKNOWN_ID}
    target = route.path.format(**names)

    for spelled in (f"{target}/", f"{target}//", f"{target}/?limit=1"):
        envelope(await kernel.request(route.method, spelled), 404, "not_found")


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
async def test_k1_another_method_is_405_and_allow_names_the_right_ones(kernel: Kernel, path: str) -> None:
    built = {route.method for route in ROUTES if route.path == path}
    named = _methods_in_the_contract(path)
    assert built <= named, "this test reads the contract wrongly"
    target = path.format(execution_id=UNKNOWN_ID, step_id=UNKNOWN_STEP, agent_id="somebody", key_id=UNKNOWN_ID)

    for method in (*METHODS, "QUERY"):
        if method in named:
            continue
        response = await kernel.request(method, target)
        envelope(response, 405, "method_not_allowed")
        allowed = {word.strip() for word in response.headers["allow"].split(",")}
        assert built <= allowed <= named
    head = await kernel.request("HEAD", target)
    assert (head.status_code, head.content) == (405, b"")


@pytest.mark.parametrize("route", WITH_EXECUTION, ids=lambda route: route.name)
async def test_k2_a_malformed_execution_id_is_400(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)

    for malformed in MALFORMED_IDS:
        response = await kernel.send(scene.call(route, execution_id=malformed))
        assert malformed not in envelope(response, 400, "validation_error")["message"]


@pytest.mark.parametrize("route", WITH_EXECUTION, ids=lambda route: route.name)
async def test_k2_an_unknown_id_and_a_foreign_one_are_the_same_404(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)

    unknown = await kernel.send(scene.call(route, execution_id=UNKNOWN_ID))

    envelope(unknown, 404, "not_found")
    assert unknown.content == EXECUTION_NOT_FOUND
    if route.is_agents:
        stranger = await kernel.agent()
        foreign = await kernel.send(scene.call(route, agent=stranger))
        assert (foreign.status_code, foreign.content) == (unknown.status_code, unknown.content)
        assert dict(foreign.headers) | {"date": ""} == dict(unknown.headers) | {"date": ""}


@pytest.mark.parametrize("route", [route for route in ROUTES if route.has_step], ids=lambda route: route.name)
async def test_k2_an_unknown_step_and_any_other_text_in_its_place_are_one_404(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)

    for step_id in (UNKNOWN_STEP, scene.step_id.upper(), scene.step_id[:-1], "x", "%20", "%FF", UNKNOWN_ID):
        response = await kernel.send(scene.call(route, step_id=step_id))
        envelope(response, 404, "not_found")
        assert response.content == STEP_NOT_FOUND


async def test_k2_an_unknown_agent_is_404(kernel: Kernel) -> None:
    agent = await kernel.agent()
    other = await kernel.agent()

    for response in (
        await kernel.get("/v0/agents/nobody-of-this-name"),
        await kernel.request("DELETE", "/v0/agents/nobody-of-this-name"),
        await agent.request("PUT", "/v0/agents/nobody-of-this-name/metadata", {}),
        await agent.request("PUT", f"/v0/agents/{other.id}/metadata", {"description": "not mine"}),
    ):
        envelope(response, 404, "not_found")
        assert response.content == AGENT_NOT_FOUND
    assert accepted(await kernel.get(f"/v0/agents/{other.id}"))["description"] is None


async def test_k2_a_dashed_id_is_read_in_either_case(kernel: Kernel) -> None:
    scene = await Scene.of(kernel)

    shouted = accepted(await kernel.get(f"/v0/executions/{scene.execution_id.upper()}"))
    shouting = scene.lease.but(
        execution_id=scene.execution_id.upper(), dispatch_id=str(scene.lease.dispatch_id).upper()
    )

    assert shouted["id"] == scene.execution_id
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", shouted["id"])
    accepted(await shouting.heartbeat(), 204)
    accepted(await shouting.submit())


LISTS = (
    ("/v0/executions", "cursor"),
    ("/v0/executions/{execution_id}/events", "after_seq"),
    ("/v0/executions/{execution_id}/steps", "cursor"),
    ("/v0/agents", "cursor"),
)


@pytest.mark.parametrize(("path", "cursor"), LISTS)
async def test_k10_a_limit_or_cursor_that_makes_no_sense_is_400(kernel: Kernel, path: str, cursor: str) -> None:
    scene = await Scene.of(kernel)
    target = path.format(execution_id=scene.execution_id)

    for limit in ("0", "x", "-1", "1.5", "1e2", "0x10", "%00", "9" * 400 + "x", "%D9%A1"):
        details(await kernel.get(f"{target}?limit={limit}"), 400, "validation_error")
    for malformed in ("!", "%FF", "%00", "a+b", "x" * 3000, "%F0%9F%99%82"):
        details(await kernel.get(f"{target}?{cursor}={malformed}"), 400, "validation_error")


@pytest.mark.parametrize(("path", "cursor"), LISTS)
async def test_k10_an_empty_limit_is_an_absent_one_and_a_great_one_is_clamped(
    kernel: Kernel, path: str, cursor: str
) -> None:
    scene = await Scene.of(kernel)
    target = path.format(execution_id=scene.execution_id)

    for query in ("limit=", f"{cursor}=", f"limit=&{cursor}=", "limit=1000000", "limit=" + "9" * 30):
        assert _items(accepted(await kernel.get(f"{target}?{query}")))


async def test_k10_a_page_of_executions_never_holds_more_than_200(kernel: Kernel) -> None:
    agent = await kernel.agent()
    created = await asyncio.gather(*(agent.create() for _ in range(201)))

    page = accepted(await kernel.get("/v0/executions", agent_id=agent.id, limit=201))
    usual = accepted(await kernel.get("/v0/executions", agent_id=agent.id))

    newest_first = sorted((each["id"] for each in created), reverse=True)
    assert [each["id"] for each in page["executions"]] == newest_first[:200]
    assert page["next_cursor"] == newest_first[199]
    assert [each["id"] for each in usual["executions"]] == newest_first[:50]


async def test_k10_a_page_of_events_or_steps_never_holds_more_than_its_maximum(kernel: Kernel) -> None:
    agent = await kernel.agent()
    lease = await agent.start()
    first = await lease.done("first")
    for start in range(0, 1000, 50):
        await asyncio.gather(*(lease.proceed("many", {"n": n}) for n in range(start, start + 50)))

    target = f"/v0/executions/{lease.execution_id}"
    steps = await kernel.get(f"{target}/steps", limit=1001)
    events = await kernel.get(f"{target}/events", limit=1001)
    usual = await kernel.get(f"{target}/events")

    assert len(accepted(steps)) == 1000
    assert accepted(steps)[0]["step_id"] == first
    assert NEXT_CURSOR in steps.headers
    assert [event["event_seq"] for event in accepted(events)] == list(range(1, 1001))
    assert events.headers[NEXT_CURSOR] == "1000"
    assert len(accepted(usual)) == 100
    assert len(await kernel.steps(lease.execution_id)) == 1001


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session", "chat-1"),
        ("concurrency_key", "chat-1"),
        ("parent_execution_id", UNKNOWN_ID),
        ("spawned_by", {"execution_id": UNKNOWN_ID, "step_id": UNKNOWN_STEP}),
    ],
)
async def test_k119_a_field_that_is_not_built_is_refused_by_name_and_an_empty_one_taken(
    kernel: Kernel, field: str, value: Any
) -> None:
    agent = await kernel.agent()

    refused = await kernel.create(agent.id, **{field: value})

    assert path_of(refused) == field
    assert (await kernel.get("/v0/executions", agent_id=agent.id)).json()["executions"] == []
    for empty in ("", None) if isinstance(value, str) else (None,):
        execution = await agent.create(**{field: empty})
        assert execution["session"] == ""
        assert execution["parent_execution_id"] is None
        assert execution["forked_from"] is None
        assert execution["spawned_by"] is None


@pytest.mark.parametrize(
    ("method", "suffix"),
    [
        ("GET", "/previous"),
        ("POST", "/fork"),
        ("POST", "/suspend"),
        ("POST", "/resources"),
        ("POST", "/resources/k/binding"),
        ("POST", "/resources/checkpoints"),
    ],
)
async def test_k119_a_route_that_is_not_built_is_404(kernel: Kernel, method: str, suffix: str) -> None:
    scene = await Scene.of(kernel)
    target = f"/v0/executions/{scene.execution_id}{suffix}"
    before = await kernel.trace(scene.execution_id)

    envelope(await kernel.request(method, target, {"at_seq": 1}, headers={KEY: "k"}), 404, "not_found")
    envelope(await kernel.send(scene.lease.call(suffix, {"key": "k"}, method=method)), 404, "not_found")

    assert await kernel.trace(scene.execution_id) == before


def _items(page: Any) -> list[Any]:
    return page["executions"] if isinstance(page, dict) else page
