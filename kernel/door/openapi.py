"""The OpenAPI 3.1 document and a page that shows it, both made from the routing table. The page needs no network."""

import html
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
from fastapi import FastAPI

from kernel.door.documentation import OPERATIONS, Operation
from kernel.door.routes import ROUTES, Route
from schemas.http import ErrorEnvelope

TITLE = "Stepwell"
API_VERSION = "0"
_DESCRIPTION = "A durable-execution kernel for AI agents."
_REFERENCES = "#/components/schemas/{name}"
_ANY_REFUSAL = (400, 429, 503)
_MEANINGS = {
    200: "Done",
    201: "Created",
    204: "Done, no body",
    400: "Malformed or out of range",
    401: "No credential, or not a valid one",
    403: "The credential lacks the scope",
    404: "Unknown, or another's",
    409: "The state says no",
    413: "The body is too large",
    429: "A quota is used up",
    503: "Unavailable: certainly not done, safe to repeat",
    504: "Done or not; repeat with the same Idempotency-Key",
}
_SECURITY: dict[str, list[dict[str, list[str]]]] = {
    "open": [],
    "bearer": [{"bearer": []}],
    "agent": [{"agent_signature": []}],
    "either": [{"bearer": []}, {"agent_signature": []}],
}
_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "agent_signature": {
        "type": "apiKey",
        "in": "header",
        "name": "Rebuno-Signature",
        "description": "`v1=` or `sha256=` HMAC by the agent's secret, with Rebuno-Agent-Id and Rebuno-Timestamp.",
    },
}

Json = dict[str, Any]


@cache
def openapi_document() -> Json:
    """Return the document as a tree."""
    app = FastAPI(title=TITLE, version=API_VERSION, description=_DESCRIPTION, docs_url=None, redoc_url=None)
    schemas, components = _schemas(OPERATIONS.values())
    for route in ROUTES:
        if route.is_built:
            _describe(app, route, OPERATIONS[route.operation], schemas)
    document = app.openapi()
    document["components"] = {"schemas": components, "securitySchemes": _SECURITY_SCHEMES}
    return document


def openapi_json() -> bytes:
    """Return the document as it is served."""
    return msgspec.json.encode(openapi_document())


async def _served_by_the_switch() -> None:
    """Stands in the document for a handler: requests never come through FastAPI's router."""


def _describe(app: FastAPI, route: Route, operation: Operation, schemas: dict[Any, Json]) -> None:
    success = min(operation.answers)
    app.add_api_route(
        route.path,
        _served_by_the_switch,
        methods=[route.method],
        operation_id=route.operation,
        summary=operation.summary,
        description=f"Contract {route.section}.",
        status_code=success,
        response_model=None,
        response_description=_MEANINGS[success],
        responses={str(status): answer for status, answer in _responses(route, operation, schemas).items()},
        openapi_extra=_extra(route, operation, schemas),
    )


def _responses(route: Route, operation: Operation, schemas: dict[Any, Json]) -> dict[int, Json]:
    found: dict[int, Json] = {}
    for status, body in operation.answers.items():
        found[status] = {"description": _MEANINGS[status]}
        if body is not None:
            found[status]["content"] = {operation.media_type: {"schema": schemas[body]}}
    for status in _refusals(route, operation):
        content = {"application/json": {"schema": schemas[ErrorEnvelope]}}
        found.setdefault(status, {"description": _MEANINGS[status], "content": content})
    return dict(sorted(found.items()))


def _refusals(route: Route, operation: Operation) -> set[int]:
    if route.access == "open":
        return set()
    statuses = {*_ANY_REFUSAL, *operation.refusals, 401, *((403,) if route.scopes else ())}
    if route.method != "GET":
        statuses |= {413, 504}
    return statuses


def _extra(route: Route, operation: Operation, schemas: dict[Any, Json]) -> Json:
    extra: Json = {"parameters": _parameters(route, operation), "security": _SECURITY[route.access]}
    if route.scopes:
        extra["x-scopes"] = list(route.scopes)
    if operation.body is not None:
        extra["requestBody"] = {
            "required": not operation.is_body_optional,
            "content": {"application/json": {"schema": schemas[operation.body]}},
        }
    return extra


def _parameters(route: Route, operation: Operation) -> list[Json]:
    names: list[str] = re.findall(r"{(\w+)}", route.path)
    found = [_parameter(name, "path", "string", is_required=True) for name in names]
    found += [_parameter(query.name, "query", query.type, query.meaning) for query in operation.queries]
    if route.is_leased:
        found.append(_parameter("Rebuno-Dispatch-Id", "header", "string", is_required=True))
        found.append(_parameter("Rebuno-Dispatch-Attempt", "header", "integer", is_required=True))
    if route.is_keyed:
        found.append(_parameter("Idempotency-Key", "header", "string", "1 to 255 visible ASCII characters"))
    return found


def _parameter(name: str, place: str, type_name: str, meaning: str = "", *, is_required: bool = False) -> Json:
    parameter: Json = {"name": name, "in": place, "required": is_required, "schema": {"type": type_name}}
    return parameter | {"description": meaning} if meaning else parameter


def _schemas(operations: Iterable[Operation]) -> tuple[dict[Any, Json], Json]:
    """Return the schema of every type that an operation names, and the components they refer to."""
    types: list[Any] = [ErrorEnvelope]
    for operation in operations:
        types += [operation.body, *operation.answers.values()]
    wanted = [each for each in dict.fromkeys(types) if each is not None]
    found, components = msgspec.json.schema_components(wanted, ref_template=_REFERENCES)
    return dict(zip(wanted, found, strict=True)), components


def page_html() -> bytes:
    """Return the document as a plain page."""
    sections = [
        _section(path, method, operation)
        for path, methods in openapi_document()["paths"].items()
        for method, operation in methods.items()
    ]
    return _PAGE.format(title=TITLE, sections="\n".join(sections)).encode()


def _section(path: str, method: str, operation: Json) -> str:
    rows = [_row(each["name"], f"{each['in']}, {each['schema']['type']}", each) for each in operation["parameters"]]
    rows += [_row(status, "answer", answer) for status, answer in operation["responses"].items()]
    body = operation.get("requestBody")
    if body is not None:
        schema = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        rows.insert(0, _row(schema, "body", {}))
    return (
        f'<section id="{html.escape(operation["operationId"])}">'
        f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
        f"<p>{html.escape(operation['summary'])}</p><table>{''.join(rows)}</table></section>"
    )


def _row(name: str, kind: str, described: Json) -> str:
    meaning = html.escape(described.get("description", ""))
    return f"<tr><td><code>{html.escape(name)}</code></td><td>{kind}</td><td>{meaning}</td></tr>"


_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
td {{ padding: 0 1rem 0 0; vertical-align: top; }}
h2 {{ border-top: 1px solid #ccc; padding-top: 1rem; font-size: 1.1rem; }}
</style></head>
<body><h1>{title}</h1>
<p>The whole document, with every schema: <a href="/v0/openapi.json"><code>/v0/openapi.json</code></a>.</p>
{sections}
</body>
</html>
"""
