"""The routing table against the contract, and exact matching."""

import re
from pathlib import Path

import pytest

from kernel.domain.errors import MethodNotAllowed, NotFound
from kernel.door.routes import ROUTES, Route, Router

CONTRACT = Path(__file__).parents[2] / "docs" / "contract.md"
EXECUTION = b"/v0/executions/0199aaaa-0000-7000-8000-0000000000ff"


def contract_routes() -> set[tuple[str, str]]:
    """Method and path of every route in the contract's table of endpoints, parameters unnamed."""
    rows = re.findall(r"^\| 3\.[^|]+ \| ([^|]+) \|", CONTRACT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: set[tuple[str, str]] = set()
    for cell in rows:
        # `POST and GET /a, DELETE /b` and `GET /a, /b`: a path goes with the methods since the last path but one.
        methods: list[str] = []
        has_path = False
        for word in re.findall(r"[A-Z]+(?![\w/])|[…/]\S*[\w}]", cell):
            if word.isupper():
                methods = [word] if has_path else [*methods, word]
                has_path = False
            else:
                path = re.sub(r"{\w+}", "{}", word.replace("…", "/v0/executions/{}"))
                found |= {(method, path) for method in methods}
                has_path = True
    return found


def table_routes() -> set[tuple[str, str]]:
    return {(route.method, re.sub(r"{\w+}", "{}", route.path)) for route in ROUTES}


def test_every_route_of_the_contract_is_in_the_table() -> None:
    assert table_routes() == contract_routes()


def test_access_and_scopes_are_those_of_the_contract() -> None:
    rows = {
        section: auth
        for sections, auth in re.findall(
            r"^\| (3\.[^|]+) \| [^|]+ \| ([^|]+) \|", CONTRACT.read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        for section in sections.split(", ")
    }
    for route in ROUTES:
        auth = rows[route.section]
        if route.section == "3.29":
            assert route.access == ("bearer" if route.operation == "metrics" else "open")
            continue
        expected = "either" if auth.startswith("either") else "agent" if auth.startswith("agent") else "bearer"
        if route.section == "3.20":
            assert "itself only" in auth
        assert route.access == expected, route.operation
        assert list(route.scopes) == re.findall(r"`([a-z:]+)`", auth), route.operation
        assert route.is_leased == ("lease" in auth and "optional" not in auth), route.operation


def test_operations_have_names_of_their_own() -> None:
    names = [route.operation for route in ROUTES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("method", "path", "operation", "names"),
    [
        ("POST", b"/v0/executions", "create_execution", ()),
        ("GET", EXECUTION, "get_execution", (EXECUTION[15:],)),
        ("POST", EXECUTION + b"/steps", "submit_step", (EXECUTION[15:],)),
        ("POST", EXECUTION + b"/steps/ab/complete", "complete_step", (EXECUTION[15:], b"ab")),
        ("GET", b"/v0/agents/a%3Ab", "get_agent", (b"a%3Ab",)),
        ("GET", b"/docs", "docs", ()),
    ],
)
def test_a_built_route_is_found_with_its_segments_as_received(
    method: str, path: bytes, operation: str, names: tuple[bytes, ...]
) -> None:
    route, found = Router().find(path, method)
    assert (route.operation, found) == (operation, names)


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"/",
        b"/v0",
        b"/v0/",
        b"/v0/executions/",
        b"//v0/executions",
        b"/V0/executions",
        b"/v0/%65xecutions",
        EXECUTION + b"/",
        EXECUTION + b"/steps/",
        EXECUTION + b"/steps//complete",
        EXECUTION + b"/steps/ab/complete/x",
        EXECUTION + b"/unknown",
        b"/" * 70_000,
        b"/v0/sessions",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_any_other_path_is_unknown(path: bytes, method: str) -> None:
    with pytest.raises(NotFound):
        Router().find(path, method)


@pytest.mark.parametrize("route", [route for route in ROUTES if not route.is_built], ids=lambda route: route.operation)
def test_a_route_to_come_is_not_found(route: Route) -> None:
    path = re.sub(r"{\w+}", "x", route.path).encode()
    with pytest.raises((NotFound, MethodNotAllowed)):
        Router().find(path, route.method)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", b"/v0/executions", ("GET", "POST")),
        ("HEAD", b"/v0/health", ("GET",)),
        ("OPTIONS", EXECUTION + b"/steps", ("GET", "POST")),
        ("PATCH", b"/v0/agents/a", ("DELETE", "GET")),
        ("get", b"/docs", ("GET",)),
    ],
)
def test_another_method_on_a_known_path_is_told_which_are_allowed(
    method: str, path: bytes, allow: tuple[str, ...]
) -> None:
    with pytest.raises(MethodNotAllowed) as refused:
        Router().find(path, method)
    assert refused.value.allow == allow
