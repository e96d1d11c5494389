"""Requests made wrong at random, from a seed: methods, paths, queries, headers and bodies, over every route."""

import json
import random
import string
from collections.abc import Callable
from typing import Any

from tests.conformance.harness.calls import AGENT_ID, ATTEMPT, DISPATCH_ID, KEY, SIGNATURE, TIMESTAMP, Call
from tests.conformance.harness.routes import METHODS, ROUTES, UNKNOWN_ID, UNKNOWN_STEP, Route, Scene
from tests.conformance.harness.wire import request_bytes

_MUTATIONS_MAX = 4
_ENDING = {"cancel", "complete_execution", "fail_execution"}
_AGENT_CHANGING = {"register_agent", "delete_agent"}
_ODD_METHODS = ("get", "HEAD", "QUERY", "PURGE", "M-SEARCH", "TRACE", "CONNECT", "LINK", "X" * 40)
_ODD_TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "1e400",
    "NaN",
    "null",
    "true",
    "\x00",
    "é",
    "🙂",
    "\u2028",
    "'\"<>&",
    "../..",
    "%",
    "a" * 300,
    "9" * 400,
    UNKNOWN_ID,
    UNKNOWN_STEP,
    "2026-01-01T00:00:00Z",
)
_ODD_VALUES: tuple[Any, ...] = (
    *_ODD_TEXTS,
    None,
    True,
    0,
    -1,
    2**63,
    10**30,
    0.5,
    -0.0,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"step_id": "x"},
    [{"step_id": UNKNOWN_STEP, "result": 1}],
    [{"step_id": 1}],
    ["a", {"b": [1, {"c": None}]}],
)
_ODD_BODIES = (
    b"",
    b"{",
    b"}",
    b"[]",
    b"null",
    b'"',
    b"\xff\xfe{\x00}\x00",
    b"\xef\xbb\xbf{}",
    b"{}{}",
    b'{"a":1e999}',
    b'{"a":-}',
    b'{"a":"\\ud800"}',
    b'{"\\u0000":"\\u0000"}',
    b'{"agent_id":{},"kind":[],"error":null,"id":false}',
    b"[" * 3000,
    b'{"a":' * 3000,
    b'{"a":"' + b"\\" * 999,
    b"{" + b" " * 5000 + b"}",
)
_FIELDS = (
    *("agent_id", "input", "idempotency_key", "session", "spawned_by", "kind", "target", "args", "idempotency"),
    *("settle", "resources", "result", "usage", "error", "output", "state", "id", "webhook_url", "secret"),
    *("next_secret", "require_v1", "max_concurrency", "description", "input_schema", "output_schema", "captures"),
)
_HEADERS = (
    *(AGENT_ID, SIGNATURE, TIMESTAMP, DISPATCH_ID, ATTEMPT, KEY, "Authorization", "Rebuno-Tenant"),
    *("Rebuno-Delegation", "Content-Type", "Content-Encoding", "Accept-Encoding", "Host", "Expect", "Range", "Cookie"),
    *("If-None-Match", "X-Forwarded-For", "X-Forwarded-Prefix", "Upgrade", "TE", "Origin", "X-HTTP-Method-Override"),
)
_HEADER_VALUES = (
    *(b"", b"0", b"-1", b"1", b"99999999999999999999", b"1.5", b"\xe9", b"\xff\xfe", b"a b", b"a,b", b"x" * 3000),
    *(b"v1=", b"sha256=zz", b"v1=" + b"0" * 64, b"Bearer", b"Bearer \xe9", b"basic eDp4", b"gzip", b"identity"),
    *(b"default", b"nobody", b"a.b", b"bytes=0-", b"websocket", b"100-continue", UNKNOWN_ID.encode(), b'"'),
)
_QUERY_NAMES = (
    "limit",
    "cursor",
    "after_seq",
    "wait",
    "status",
    "agent_id",
    "created_after",
    "created_before",
    "x",
    "",
)
# A `wait` of some seconds that is right would only hold the run up.
_QUERY_VALUES = (
    "",
    "0",
    "-1",
    "x",
    "1",
    "2",
    "1e3",
    "%",
    "%zz",
    "%00",
    "%FF",
    "%F0%9F%99%82",
    "+",
    "running",
    "terminal",
)


class Fuzzer:
    """Makes requests from one seed. The same seed makes the same mistakes, whatever the ids of the scenes are."""

    def __init__(self, seed: int, scenes: list[Scene]) -> None:
        self._random = random.Random(seed)
        self._scenes = scenes

    def request(self) -> tuple[bytes, bool]:
        """The bytes of the next request, and whether its answer has no body because it is a HEAD."""
        choose = self._random
        route, lot = choose.choice(ROUTES), choose.random()
        # The later half of the scenes is to stay live, and their agent as it is, so that the run stays deep.
        scenes = self._scenes[: len(self._scenes) // 2] if route.name in _ENDING else self._scenes
        scene = scenes[int(lot * len(scenes))]
        call = scene.unsigned(route)
        if route.name in _AGENT_CHANGING:
            own, other = scene.agent.id, "fuzzed"
            call = call.but(
                target=call.target.replace(own, other), body=call.body.replace(own.encode(), other.encode())
            )
        extra: list[bytes] = []
        for _ in range(choose.randint(1, _MUTATIONS_MAX)):
            mutate = choose.choice((self._method, self._path, self._query, self._body, self._members, self._members))
            call = mutate(call) if choose.random() < 0.75 else self._header(call, extra)
        call = self._authorized(scene, route, call)
        head, blank, body = request_bytes(call).partition(b"\r\n\r\n")
        return head + b"".join(b"\r\n" + line for line in extra) + blank + body, call.method == "HEAD"

    def _authorized(self, scene: Scene, route: Route, call: Call) -> Call:
        """Mostly rightly, so that what follows the credential is reached."""
        lot = self._random.random()
        if lot < 0.1:
            return call
        if lot < 0.2:
            return call.with_bearer(scene.kernel.api_key)
        return scene.authorized(route, call)

    def _method(self, call: Call) -> Call:
        return call.but(method=self._random.choice((*METHODS, *_ODD_METHODS)))

    def _path(self, call: Call) -> Call:
        segments = call.target.split("/")
        place = self._random.randrange(1, len(segments))
        odd = self._random.choice(
            ("", ".", "..", "%2e%2e", "%2F", "%", "%zz", "%00", "%FF", "x" * 500, ";a=b", "@", "*")
        )
        changes: tuple[Callable[[], object], ...] = (
            lambda: segments.insert(place, odd),
            lambda: segments.__setitem__(place, odd),
            lambda: segments.pop(place),
            lambda: segments.__setitem__(place, segments[place] + odd),
            lambda: segments.__setitem__(place, segments[place].upper()),
        )
        self._random.choice(changes)()
        return call.but(target="/".join(segments) or "/")

    def _query(self, call: Call) -> Call:
        count = self._random.choice((1, 1, 2, 3, 70))
        pairs = [f"{self._random.choice(_QUERY_NAMES)}={self._random.choice(_QUERY_VALUES)}" for _ in range(count)]
        joined = self._random.choice(("&", "&", "&&", ";", "?")).join(pairs)
        return call.but(target=f"{call.target}?{joined}")

    def _header(self, call: Call, extra: list[bytes]) -> Call:
        """Replace a header, or put a second one beside it."""
        name, value = self._random.choice(_HEADERS), self._random.choice(_HEADER_VALUES)
        extra.append(name.encode() + b": " + value)
        return call.without_headers(name) if self._random.random() < 0.7 else call

    def _body(self, call: Call) -> Call:
        body = bytearray(call.body or b"{}")
        lot = self._random.randrange(4)
        if lot == 0:
            return call.but(body=self._random.choice(_ODD_BODIES))
        if lot == 1:
            return call.but(body=self._random.randbytes(self._random.randrange(1, 60)))
        for _ in range(self._random.randint(1, 3)):
            place = self._random.randrange(len(body)) if body else 0
            if lot == 2 and body:
                body[place] = self._random.choice((*string.printable.encode(), 0, 0x80, 0xFF))
            else:
                body[place : place + self._random.randrange(4)] = self._random.choice(
                    (b"", b'"', b",", b"{", b"\\", b"]")
                )
        return call.but(body=bytes(body))

    def _members(self, call: Call) -> Call:
        """Give some member, mostly one that the route knows, a value that it does not expect."""
        try:
            body = json.loads(call.body or b"{}")
        except (ValueError, RecursionError):
            return call
        if not isinstance(body, dict):
            return call
        name = self._random.choice((*body, *_FIELDS))
        return call.but(body=json.dumps(body | {name: self._random.choice(_ODD_VALUES)}).encode())
