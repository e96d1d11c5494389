"""Judging answers: statuses, refusals and the envelope they come in."""

import json
from collections.abc import Iterator
from typing import Any

import httpx

JSON_TYPE = "application/json; charset=utf-8"
CODES = {
    400: {"validation_error"},
    401: {"unauthorized"},
    403: {"forbidden"},
    404: {"not_found"},
    405: {"method_not_allowed"},
    409: {"conflict", "execution_terminal", "lease_superseded"},
    413: {"payload_too_large"},
    429: {"rate_limited"},
    503: {"unavailable"},
    504: {"outcome_unknown"},
}
_MEMBERS = {"code", "message", "details"}
_NULLABLE = (
    {"input", "output", "args", "result", "error", "payload", "usage", "approval_id", "parent_execution_id"}
    | {"forked_from", "restoration", "spawned_by", "binding", "state"}
    | {"description", "input_schema", "output_schema"}
)


def envelope(response: httpx.Response, status: int | None = None, code: str | None = None) -> dict[str, Any]:
    """Assert that this is a refusal in the envelope, of this status and code, and return it."""
    shown = f"{response.request.method} {response.request.url}: {response.status_code} {response.text[:500]}"
    assert status is None or response.status_code == status, shown
    assert response.status_code in CODES, shown
    assert response.headers.get("content-type") == JSON_TYPE, shown
    found = response.json()
    assert isinstance(found, dict), shown
    assert {"code", "message"} <= found.keys() <= _MEMBERS, shown
    assert isinstance(found["message"], str), shown
    assert found["code"] in CODES[response.status_code], shown
    assert code is None or found["code"] == code, shown
    assert isinstance(found.get("details", {}), dict), shown
    if response.status_code in {429, 503, 504}:
        assert int(response.headers["retry-after"]) >= 1, shown
    if response.status_code == 405:
        assert response.headers["allow"], shown
    return found


def details(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """The details of a refusal; empty where it has none."""
    return envelope(response, status, code).get("details", {})


def path_of(response: httpx.Response) -> str | None:
    """The path that a validation error names."""
    return details(response, 400, "validation_error").get("path")


def accepted(response: httpx.Response, status: int = 200) -> Any:
    """Assert the status, and return the body: its JSON value, None where it must be empty."""
    shown = f"{response.request.method} {response.request.url}: {response.status_code} {response.text[:500]}"
    assert response.status_code == status, shown
    if status == 204:
        assert response.content == b"", shown
        return None
    assert response.headers.get("content-type") == JSON_TYPE, shown
    return response.json()


def null_members(value: object, path: str = "") -> Iterator[str]:
    """The paths of members that are null and may not be, in a whole answer.

    What a client sent (args, results and the like) is its own and not looked into.
    """
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from null_members(item, f"{path}[{index}]")
    if not isinstance(value, dict):
        return
    for name, member in value.items():
        if member is None and name not in _NULLABLE:
            yield f"{path}.{name}"
        if name not in _NULLABLE or name in {"payload", "usage"}:
            yield from null_members(member, f"{path}.{name}")


def exact(text: bytes | str) -> Any:
    """A JSON text with all that fidelity promises: numbers by their literals, objects with the order of members."""
    return json.loads(
        text,
        parse_int=lambda literal: ("number", literal),
        parse_float=lambda literal: ("number", literal),
        object_pairs_hook=lambda pairs: ("object", pairs),
    )


def exact_member(text: bytes | str, *path: str | int) -> Any:
    """What stands at a path of a JSON text, as `exact` shows it."""
    found = exact(text)
    for part in path:
        found = found[part] if isinstance(part, int) else dict(found[1])[part]
    return found
