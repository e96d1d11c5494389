"""Tenants, for operators: make, change, list. Nothing is ever removed: executions and the log outlive their owner."""

from collections.abc import Mapping
from typing import Literal

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from kernel.control.control import Control
from kernel.control.state import TenantRecord
from kernel.domain.errors import Invalid, InvariantBroken
from kernel.domain.json_values import Value, members
from kernel.door import bodies, paging
from kernel.door.changing import now_micros, submitted
from kernel.door.exchange import Request, Response
from kernel.door.executions import principal_of
from kernel.door.large_bodies import read_document
from kernel.door.reading import query_map
from kernel.door.rendering import array_response
from schemas import http
from schemas.control import Quotas, TenantPut, TenantSettings
from schemas.http import encode_http
from schemas.ids import TENANT_ID, new_uuid7

LIMIT_DEFAULT = 100
LIMIT_MAX = 1000
QUOTA_MAX = 2**53
"""Exact in every reader of JSON."""
RETENTION_SECONDS_MAX = 3650 * 86_400


class TenantAdmin:
    """Handlers of the routes 3.27."""

    def __init__(self, *, control: Control) -> None:
        self._control = control

    async def put_tenant(self, request: Request) -> Response:
        """Make or change a tenant. What is sent of quotas and settings replaces all of them; what is absent stays."""
        principal = principal_of(request)
        fields = (await read_document(request)).fields
        tenant = bodies.text(fields, "id")
        if not TENANT_ID.fullmatch(tenant):
            raise Invalid("1 to 64 letters, digits and _ -", path="id")
        entry = TenantPut(
            id=new_uuid7(),
            at=now_micros(),
            by=principal.name,
            tenant=tenant,
            quotas=_quotas(fields),
            settings=_settings(fields),
        )
        accepted = await submitted(self._control, entry, request)
        record = self._control.tenant(tenant)
        if record is None:
            raise InvariantBroken("a tenant that was just put is unknown")
        return Response(status=201 if accepted.is_new else 200, body=_tenant_json(record))

    async def list_tenants(self, request: Request) -> Response:
        """Answer a page, sorted by id. Its cursor is the id of its last tenant."""
        query = query_map(request.query)
        limit = paging.limit_of(query, default=LIMIT_DEFAULT, maximum=LIMIT_MAX)
        cursor = query.get("cursor", "")
        if cursor and not TENANT_ID.fullmatch(cursor):
            raise Invalid("not a cursor", path="cursor")
        tenants = [each for each in self._control.tenants() if each.tenant > cursor]
        has_more = len(tenants) > limit
        rendered = [_tenant_json(each) for each in tenants[:limit]]
        return array_response(rendered, next_cursor=tenants[limit - 1].tenant if has_more else "")


def _quotas(fields: Mapping[str, Value]) -> Quotas | UnsetType:
    value = fields.get("quotas")
    if value is None:
        return UNSET
    sent = _known(value, Quotas.__struct_fields__)
    return Quotas(**{name: bodies.integer(member, low=1, high=QUOTA_MAX) for name, member in sent.items()})


def _settings(fields: Mapping[str, Value]) -> TenantSettings | UnsetType:
    value = fields.get("settings")
    if value is None:
        return UNSET
    sent = _known(value, TenantSettings.__struct_fields__)
    retention = sent.get("retention_seconds")
    return TenantSettings(
        no_policy=_no_policy(sent["no_policy"]) if "no_policy" in sent else None,
        retention_seconds=(None if retention is None else bodies.integer(retention, low=0, high=RETENTION_SECONDS_MAX)),
    )


def _known(value: Value, names: tuple[str, ...]) -> dict[str, Value]:
    """Return the members of these names. Others are ignored, as everywhere, so a misspelled one sets nothing."""
    found = members(value)
    return {name: found[name] for name in names if name in found}


def _no_policy(value: Value) -> Literal["allow", "deny"] | None:
    match value.plain:
        case "":
            return None
        case "allow" | "deny" as word:
            return word
        case _:
            raise Invalid("one of: allow, deny", path=value.path)


def _tenant_json(record: TenantRecord) -> bytes:
    quotas = {name: quota for name, quota in asdict(record.quotas).items() if quota is not None}
    settings = {name: setting for name, setting in asdict(record.settings).items() if setting is not None}
    return encode_http(
        http.Tenant(id=record.tenant, quotas=http.Quotas(**quotas), settings=http.TenantSettings(**settings))
    )
