"""The OpenAPI document: complete, pinned, and of the same members as what the door sends."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from kernel.door.openapi import openapi_document, openapi_json, page_html
from kernel.door.routes import ROUTES

GOLDEN = Path(__file__).parents[1] / "golden" / "openapi.json"
"""Others generate clients from it. A change that is meant is written there and noted in CHANGELOG.md."""

BUILT = [route for route in ROUTES if route.is_built]


def operation_of(operation_id: str) -> Any:
    found = [
        operation
        for methods in openapi_document()["paths"].values()
        for operation in methods.values()
        if operation["operationId"] == operation_id
    ]
    assert len(found) == 1
    return found[0]


def test_the_document_is_the_one_others_rely_on() -> None:
    assert json.loads(openapi_json()) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_it_is_openapi_3_1() -> None:
    assert openapi_document()["openapi"].startswith("3.1")


def test_every_built_route_is_described_and_no_other() -> None:
    described = {(method.upper(), path) for path, methods in openapi_document()["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in BUILT}


def test_every_variable_segment_lease_and_key_is_a_parameter() -> None:
    for route in BUILT:
        operation = operation_of(route.operation)
        found = {(each["in"], each["name"]) for each in operation["parameters"]}
        expected = {("path", name) for name in re.findall(r"{(\w+)}", route.path)}
        if route.is_leased:
            expected |= {("header", "Rebuno-Dispatch-Id"), ("header", "Rebuno-Dispatch-Attempt")}
        if route.is_keyed:
            expected.add(("header", "Idempotency-Key"))
        assert {each for each in found if each[0] != "query"} == expected, route.operation


def test_the_access_of_every_route_is_told() -> None:
    schemes = {"open": [], "bearer": ["bearer"], "agent": ["agent_signature"], "either": ["bearer", "agent_signature"]}
    for route in BUILT:
        found = [name for each in operation_of(route.operation)["security"] for name in each]
        assert found == schemes[route.access], route.operation


def test_every_reference_leads_somewhere() -> None:
    document = openapi_document()
    names = set(re.findall(r'"#/components/schemas/(\w+)"', msgspec.json.encode(document).decode()))
    assert names == set(document["components"]["schemas"])


def test_the_page_shows_every_route_and_asks_nobody_else() -> None:
    page = page_html().decode()
    for route in BUILT:
        assert f"<code>{route.method} {route.path}</code>" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page
