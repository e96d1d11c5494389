"""K114: a request with two faults is answered for the one that section 1 puts first."""

import json
from collections.abc import Callable
from itertools import combinations
from typing import Any

import msgspec
import pytest

from tests.conformance.harness.answers import accepted
from tests.conformance.harness.calls import ATTEMPT, DISPATCH_ID, KEY, SIGNATURE, Call, json_bytes
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.routes import ROUTES, UNKNOWN_ID, UNKNOWN_STEP, Route, Scene
from tests.conformance.harness.wire import WireAnswer, exchange, request_bytes

TOO_MANY_BYTES = str(32 * 1024 * 1024 + 1)
USED_KEY = "used-for-another-request"


class Stage:
    """What the requests of one route refer to: a live execution, an ended one, and keys used in both."""

    def __init__(self, kernel: Kernel, live: Scene, ended: Scene, create_key: str) -> None:
        self.kernel = kernel
        self.live = live
        self.ended = ended
        self.create_key = create_key

    @classmethod
    async def of(cls, kernel: Kernel) -> "Stage":
        agent = await kernel.agent()
        live, ended = await Scene.of(kernel, agent), await Scene.of(kernel, agent)
        for scene in (live, ended):
            # The step whose outcome is known is the one that the paths name; the scene's own stays executing.
            scene.step_id = await scene.lease.done("with an outcome")
            accepted(await scene.lease.submit("under a key", key=USED_KEY))
        accepted(await ended.lease.complete_execution(), 204)
        create_key = f"{USED_KEY}-{agent.id}"
        accepted(await kernel.create(agent.id, "under a key", headers={KEY: create_key}), 201)
        return cls(kernel, live, ended, create_key)


class Draft(msgspec.Struct):
    """A request that faults are put into before it is signed."""

    route: Route
    scene: Scene
    method: str
    names: dict[str, str] = {}
    suffix: str = ""
    body: Any = None
    headers: dict[str, str] = {}
    without: tuple[str, ...] = ()
    late_headers: dict[str, str] = {}
    """Set after the signature was made."""

    def call(self) -> Call:
        call = self.scene.unsigned(self.route, body=self.body, **self.names)
        call = call.but(method=self.method, target=call.target + self.suffix)
        call = call.with_headers(self.headers).without_headers(*self.without)
        return self.scene.authorized(self.route, call).with_headers(self.late_headers)


Put = Callable[[Draft, Stage], None]


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong. `part` is what of the request holds it: two faults of one part exclude each other."""

    name: str
    rank: int
    part: str
    applies: Callable[[Route], bool]
    put: Put
    answer: Callable[[Route], tuple[int, str]]
    """The status, and the code of the refusal or the decision."""


def _set(**changes: Any) -> Put:
    def put(draft: Draft, _: Stage) -> None:
        for name, value in changes.items():
            setattr(draft, name, value)

    return put


def _header(**values: str) -> Put:
    named = {"lease": DISPATCH_ID, "attempt": ATTEMPT, "key": KEY}

    def put(draft: Draft, _: Stage) -> None:
        draft.headers = draft.headers | {named[name]: value for name, value in values.items()}

    return put


def _names(**values: str) -> Put:
    def put(draft: Draft, _: Stage) -> None:
        draft.names = draft.names | values

    return put


def _bad_credential(draft: Draft, _: Stage) -> None:
    draft.late_headers = draft.late_headers | {SIGNATURE: "v1=" + "0" * 64, "Authorization": "Bearer wrong"}


def _no_operator(draft: Draft, stage: Stage) -> None:
    draft.late_headers = draft.late_headers | {"Authorization": f"Bearer {stage.kernel.api_key}"}


def _too_large(draft: Draft, _: Stage) -> None:
    draft.late_headers = draft.late_headers | {"Content-Length": TOO_MANY_BYTES}


def _used_key(draft: Draft, stage: Stage) -> None:
    key = stage.create_key if draft.route.name == "create" else USED_KEY
    draft.headers = draft.headers | {KEY: key}


def _ended(draft: Draft, stage: Stage) -> None:
    draft.scene = stage.ended


def _other_agent_in_body(draft: Draft, _: Stage) -> None:
    draft.body = {"agent_id": "nobody-of-this-name"}


def _settle_unknown(draft: Draft, _: Stage) -> None:
    draft.body = draft.scene.body(draft.route) | {"settle": [{"step_id": UNKNOWN_STEP, "result": 1}]}


def _nothing(_: Draft, __: Stage) -> None:
    """The request is wrong as it stands."""


def _always(status: int, code: str) -> Callable[[Route], tuple[int, str]]:
    return lambda _: (status, code)


def _at_the_end(route: Route) -> tuple[int, str]:
    if route.name == "heartbeat":
        return 409, "lease_superseded"
    return (200 if route.name in {"submit", "complete_step", "fail_step"} else 409), "execution_terminal"


INVALID = _always(400, "validation_error")
MISSING = _always(404, "not_found")
SETTLES = {"submit", "complete_execution", "fail_execution"}
OUTCOMES = {"complete_step", "fail_step"}
WITH_LIMIT = {"list_executions", "list_events", "list_steps", "list_agents", "list_keys", "list_tenants"}
OF_AN_AGENT = {"get_agent", "delete_agent", "describe_agent", "load_policy", "read_policy"}

FAULTS = (
    Fault("unknown route", 1, "path", lambda _: True, _set(suffix="/"), MISSING),
    Fault("wrong method", 1, "path", lambda _: True, _set(method="PATCH"), _always(405, "method_not_allowed")),
    Fault("too large", 2, "length", lambda _: True, _too_large, _always(413, "payload_too_large")),
    Fault(
        "bad credential", 3, "credential", lambda r: r.access != "open", _bad_credential, _always(401, "unauthorized")
    ),
    Fault("no scope", 4, "credential", lambda r: r.is_operators, _no_operator, _always(403, "forbidden")),
    Fault("malformed id", 5, "execution", lambda r: r.has_execution, _names(execution_id="x"), INVALID),
    Fault("no object", 5, "body", lambda r: r.takes_body, _set(body=[]), INVALID),
    Fault(
        "encoded body", 5, "encoding", lambda r: r.takes_body, _set(late_headers={"Content-Encoding": "br"}), INVALID
    ),
    Fault("no lease", 5, "lease", lambda r: r.is_leased, _set(without=(DISPATCH_ID,)), INVALID),
    Fault("malformed attempt", 5, "lease", lambda r: r.is_leased, _header(attempt="0"), INVALID),
    Fault("malformed key", 5, "key", lambda r: r.is_keyed, _header(key="a b"), INVALID),
    Fault("malformed query", 5, "path", lambda r: r.name in WITH_LIMIT, _set(suffix="?limit=0"), INVALID),
    Fault("unknown execution", 6, "execution", lambda r: r.has_execution, _names(execution_id=UNKNOWN_ID), MISSING),
    Fault("unknown step", 6, "step", lambda r: r.has_step, _names(step_id=UNKNOWN_STEP), MISSING),
    Fault("unknown agent", 6, "agent", lambda r: r.name in OF_AN_AGENT, _names(agent_id="nobody"), MISSING),
    Fault("unknown agent in the body", 6, "body", lambda r: r.name == "create", _other_agent_in_body, MISSING),
    Fault("used key", 7, "key", lambda r: r.is_keyed, _used_key, _always(409, "conflict")),
    Fault("ended", 8, "execution", lambda r: r.is_leased or r.name == "cancel", _ended, _at_the_end),
    Fault("superseded", 9, "lease", lambda r: r.is_leased, _header(attempt="2"), _always(409, "lease_superseded")),
    Fault("unknown dispatch", 9, "lease", lambda r: r.is_leased, _header(lease=UNKNOWN_ID), INVALID),
    Fault("step has ended", 10, "step", lambda r: r.name in OUTCOMES, _nothing, _always(200, "replay")),
    Fault("unknown step to settle", 10, "body", lambda r: r.name in SETTLES, _settle_unknown, MISSING),
    Fault("live executions", 10, "agent", lambda r: r.name == "delete_agent", _nothing, _always(409, "conflict")),
)


async def _answered(stage: Stage, route: Route, *faults: Fault) -> tuple[int, str]:
    draft = Draft(route=route, scene=stage.live, method=route.method)
    for fault in faults:
        fault.put(draft, stage)
    answer = await exchange(stage.kernel.url, request_bytes(draft.call()))
    return answer.status, _word(answer)


def _word(answer: WireAnswer) -> str:
    body = json.loads(answer.body)
    return body.get("code") or body["decision"]


def _of(route: Route) -> list[Fault]:
    return [fault for fault in FAULTS if fault.applies(route)]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
async def test_k114_of_two_faults_the_first_by_the_order_of_section_1_answers(kernel: Kernel, route: Route) -> None:
    stage = await Stage.of(kernel)
    before = await kernel.trace(stage.live.execution_id), await kernel.trace(stage.ended.execution_id)
    wrong: list[str] = []

    for fault in _of(route):
        found = await _answered(stage, route, fault)
        if found != fault.answer(route):
            wrong.append(f"{fault.name} alone: {found}")
    for first, second in combinations(_of(route), 2):
        if first.part == second.part or first.rank == second.rank:
            continue
        # Put in either order, so that the request does not depend on it.
        found = await _answered(stage, route, second, first)
        if found != first.answer(route):
            wrong.append(f"{first.name} and {second.name}: {found}")

    assert wrong == []
    assert (await kernel.trace(stage.live.execution_id), await kernel.trace(stage.ended.execution_id)) == before
    listed = accepted(await kernel.get("/v0/executions", agent_id=stage.live.agent.id))["executions"]
    assert len(listed) == 3


@pytest.mark.parametrize("name", ["submit", "complete_step", "complete_execution", "create"])
async def test_k114_the_credential_is_judged_over_a_body_that_is_no_json(kernel: Kernel, name: str) -> None:
    stage = await Stage.of(kernel)
    route = next(route for route in ROUTES if route.name == name)
    call = stage.live.unsigned(route, body=json_bytes(b"\xff{"))

    for credential, status in ((call, 401), (stage.live.authorized(route, call), 400)):
        assert (await exchange(kernel.url, request_bytes(credential))).status == status
