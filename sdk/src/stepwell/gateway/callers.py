"""Who calls, as its token says. Nothing of that is believed here: the kernel checks the token with every step."""

import base64
import binascii
import re
from collections.abc import Mapping

import msgspec

from stepwell.exchange import Call
from stepwell.kernel import LeasedCall
from stepwell.signing import Lease

TOKEN_CHARS_MAX = 1024

_TOKEN = re.compile(r"([A-Za-z0-9_-]+)\.[0-9a-f]{64}")
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_TEXT = re.compile(rf"([A-Za-z0-9._:-]{{1,128}})\n({_UUID})\n({_UUID})\n([1-9][0-9]{{0,8}})\n[0-9]{{1,12}}", re.ASCII)


class Caller(msgspec.Struct, frozen=True):
    """The attempt that a call belongs to, and the token that lets the gateway act in it."""

    agent_id: str
    execution_id: str
    lease: Lease
    token: str


def caller_of(token: str, headers: Mapping[str, str]) -> Caller | None:
    """Return who a token names, None for what is no token. Headers that name somebody else make it none.

    The names of the headers are in lower case.
    """
    split = _TOKEN.fullmatch(token) if len(token) <= TOKEN_CHARS_MAX else None
    fields = None if split is None else _TEXT.fullmatch(_decoded(split[1]))
    if fields is None:
        return None
    agent_id, execution_id, dispatch_id, attempt = fields.groups()
    named = {
        "rebuno-agent-id": agent_id,
        "rebuno-execution-id": execution_id,
        "rebuno-dispatch-id": dispatch_id,
        "rebuno-dispatch-attempt": attempt,
    }
    if any(headers.get(name, value) != value for name, value in named.items()):
        return None
    return Caller(agent_id, execution_id, Lease(dispatch_id, int(attempt)), token)


def _decoded(encoded: str) -> str:
    try:
        return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode("latin-1")
    except binascii.Error:
        return ""


class Delegated:
    """Credentials of a gateway that acts for a caller."""

    def __init__(self, api_key: str, caller: Caller) -> None:
        self._headers = {
            "Rebuno-Agent-Id": caller.agent_id,
            "Rebuno-Delegation": caller.token,
            "Rebuno-Dispatch-Id": caller.lease.dispatch_id,
            "Rebuno-Dispatch-Attempt": str(caller.lease.attempt),
        }
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def headers(self, call: Call, target: str) -> dict[str, str]:
        if not isinstance(call, LeasedCall):
            raise TypeError(f"a gateway asks for nothing without a lease: {call.method} {call.path}")
        return dict(self._headers)
