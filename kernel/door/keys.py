"""Bearer keys: create, list, revoke. A key itself is in the one answer that made it, and in nothing else of ours."""

import base64
import secrets
from collections.abc import Mapping

from msgspec import UNSET

from kernel.control.control import Control
from kernel.control.keys import key_hash
from kernel.control.state import KeyRecord
from kernel.domain.errors import Forbidden, Invalid, NotFound
from kernel.domain.json_values import Value, items
from kernel.door import bodies, paging
from kernel.door.changing import now_micros, submitted
from kernel.door.exchange import NO_CONTENT, Principal, Request, Response
from kernel.door.executions import principal_of
from kernel.door.large_bodies import read_document
from kernel.door.quotas import Quotas
from kernel.door.reading import query_map
from kernel.door.rendering import array_response
from schemas import http
from schemas.control import KeyCreated, KeyRevoked
from schemas.http import encode_http, rfc3339
from schemas.ids import TENANT_ID, new_uuid7, parse_uuid
from schemas.scopes import OPERATOR, SCOPES, Scope

LIMIT_DEFAULT = 100
LIMIT_MAX = 1000
KEY_PREFIX = "sw_"
KEY_BYTES = 32
NAME_CHARS_MAX = 256
_ONCE = ((b"cache-control", b"no-store"),)


class KeyAdmin:
    """Handlers of the routes 3.26.

    Operators reach the keys of every tenant; a `tenant:admin` those of its own that have not the scope `operator`:
    for it the others are unknown.
    """

    def __init__(self, *, control: Control, quotas: Quotas) -> None:
        self._control = control
        self._quotas = quotas

    async def create_key(self, request: Request) -> Response:
        principal = principal_of(request)
        fields = (await read_document(request)).fields
        name = _name(fields)
        scopes = _scopes(fields)
        tenant = _tenant(fields) or principal.tenant
        expires_at = _expires_at(fields)
        if not _is_operator(principal) and (tenant != principal.tenant or OPERATOR in scopes):
            # The same whether that tenant exists or not.
            raise Forbidden("only a key with the scope operator may give that scope, or keys of another tenant")
        await self._quotas.admit(request)
        key = KEY_PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode().rstrip("=")
        entry = KeyCreated(
            id=new_uuid7(),
            at=now_micros(),
            by=principal.name,
            tenant=tenant,
            key_id=new_uuid7(),
            name=name,
            scopes=scopes,
            hash=key_hash(key.encode()),
            expires_at=expires_at,
        )
        await submitted(self._control, entry, request)
        body = http.Key(
            id=entry.key_id,
            name=name,
            tenant=tenant,
            scopes=scopes,
            created_at=rfc3339(entry.at),
            expires_at=UNSET if expires_at is None else rfc3339(expires_at),
            key=key,
        )
        return Response(status=201, body=encode_http(body), headers=_ONCE)

    async def list_keys(self, request: Request) -> Response:
        """Answer a page by id, that is by time of creation; its cursor is its last id. `tenant` is for operators."""
        principal = principal_of(request)
        query = query_map(request.query)
        limit = paging.limit_of(query, default=LIMIT_DEFAULT, maximum=LIMIT_MAX)
        cursor = query.get("cursor", "")
        after = parse_uuid(cursor) if cursor else ""
        if after is None:
            raise Invalid("not a cursor", path="cursor")
        await self._quotas.admit(request)
        tenant = query.get("tenant") if _is_operator(principal) else principal.tenant
        keys = [each for each in self._control.keys.listed(tenant) if each.key_id > after and _reaches(principal, each)]
        has_more = len(keys) > limit
        rendered = [_key_json(each) for each in keys[:limit]]
        return array_response(rendered, next_cursor=keys[limit - 1].key_id if has_more else "")

    async def revoke_key(self, request: Request) -> Response:
        """Revoke a key; who revokes the one it asks with gets its answer, and is refused from then on."""
        principal = principal_of(request)
        key_id = parse_uuid(request.names[0].decode("latin-1"))
        if key_id is None:
            raise Invalid("not a dashed UUID", path="key_id")
        await self._quotas.admit(request)
        key = self._control.keys.get(key_id)
        if key is None or not _reaches(principal, key):
            raise NotFound("key")
        entry = KeyRevoked(id=new_uuid7(), at=now_micros(), by=principal.name, tenant=key.tenant, key_id=key_id)
        await submitted(self._control, entry, request)
        return NO_CONTENT


def _is_operator(principal: Principal) -> bool:
    return OPERATOR in principal.scopes


def _reaches(principal: Principal, key: KeyRecord) -> bool:
    return _is_operator(principal) or (key.tenant == principal.tenant and OPERATOR not in key.scopes)


def _name(fields: Mapping[str, Value]) -> str:
    name = bodies.text(fields, "name")
    # It becomes the principal's name: in records, in the log of this process, in lists of approvers.
    if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable() or name != name.strip():
        raise Invalid(f"1 to {NAME_CHARS_MAX} printable characters, with no space at either end", path="name")
    return name


def _scopes(fields: Mapping[str, Value]) -> tuple[Scope, ...]:
    value = fields.get("scopes")
    if value is None:
        raise Invalid("a list of scopes is required", path="scopes")
    sent = items(value)
    if not sent:
        raise Invalid("at least one scope is required: a key without any opens nothing", path="scopes")
    for each in sent:
        if each.plain not in SCOPES:
            raise Invalid(f"one of: {', '.join(SCOPES)}", path=each.path)
    wanted = {each.plain for each in sent if isinstance(each.plain, str)}
    return tuple(scope for scope in SCOPES if scope in wanted)


def _tenant(fields: Mapping[str, Value]) -> str:
    tenant = bodies.optional_text(fields, "tenant")
    if tenant and not TENANT_ID.fullmatch(tenant):
        raise Invalid("1 to 64 letters, digits and _ -", path="tenant")
    return tenant


def _expires_at(fields: Mapping[str, Value]) -> int | None:
    text = bodies.optional_text(fields, "expires_at")
    return paging.instant(text, path="expires_at") if text else None


def _key_json(key: KeyRecord) -> bytes:
    return encode_http(
        http.Key(
            id=key.key_id,
            name=key.name,
            tenant=key.tenant,
            scopes=tuple(scope for scope in SCOPES if scope in key.scopes),
            created_at=rfc3339(key.created_at),
            expires_at=UNSET if key.expires_at is None else rfc3339(key.expires_at),
        )
    )
