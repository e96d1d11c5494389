"""K3, K4, K5, K8: bodies that are too large, too deep, not JSON, or hold more than is known."""

import json
from collections.abc import Callable

import pytest

from tests.conformance.harness.answers import CODES, accepted, details, envelope, path_of
from tests.conformance.harness.calls import Call
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.routes import BY_NAME, WITH_BODY, Route, Scene
from tests.conformance.harness.wire import exchange, request_bytes

BODY_BYTES_MAX = 32 * 1024 * 1024

# Where a client's own JSON stands in a body: the route, the body around it, how many containers are open there.
Place = tuple[str, Callable[[bytes], bytes], int]
PLACES: dict[str, Place] = {
    "args": ("submit", lambda value: b'{"kind":"tool_call","target":"t","args":%s}' % value, 1),
    "result": ("complete_step", lambda value: b'{"result":%s}' % value, 1),
    "error": ("fail_step", lambda value: b'{"error":%s}' % value, 1),
    "output": ("complete_execution", lambda value: b'{"output":%s}' % value, 1),
    "input": ("create", lambda value: b'{"agent_id":"AGENT","input":%s}' % value, 1),
}
SETTLED: dict[str, Callable[[bytes, str], bytes]] = {
    "settle[0].result": lambda value, step: (
        b'{"kind":"local","target":"t","settle":[{"step_id":"%s","result":%s}]}' % (step.encode(), value)
    ),
    "settle[0].error": lambda value, step: (
        b'{"kind":"local","target":"t","settle":[{"step_id":"%s","error":%s}]}' % (step.encode(), value)
    ),
}


def _call(scene: Scene, place: str, value: bytes) -> Call:
    """The request that carries a JSON text in one of the places, signed or with the key."""
    name, around, _ = PLACES[place]
    return scene.call(BY_NAME[name], body=around(value).replace(b"AGENT", scene.agent.id.encode()))


def _nested(containers: int) -> bytes:
    """A value of this many containers, each the only member of the one around it, lists and objects in turn."""
    opening = "".join("[" if level % 2 == 0 else '{"k":' for level in range(containers))
    closing = "".join("]" if level % 2 == 0 else "}" for level in reversed(range(containers)))
    middle = "" if containers % 2 else "1"
    return f"{opening}{middle}{closing}".encode()


@pytest.mark.parametrize("is_announced", [True, False], ids=["announced", "in chunks"])
@pytest.mark.parametrize("credential", ["valid", "bad", "none"])
@pytest.mark.parametrize("name", ["submit", "create"])
async def test_k3_a_body_above_32_mib_is_413_before_anybody_is_asked_who_it_is_from(
    kernel: Kernel, name: str, credential: str, is_announced: bool
) -> None:
    scene = await Scene.of(kernel)
    body = b'{"kind":"tool_call","target":"%s"}'
    body = body % (b"x" * (BODY_BYTES_MAX + 1 - len(body) + 2))
    call = scene.call(BY_NAME[name], body=body)
    if credential == "bad":
        call = call.with_headers({"Rebuno-Signature": "v1=" + "0" * 64, "Authorization": "Bearer wrong"})
    elif credential == "none":
        call = call.without_headers("Rebuno-Signature", "Rebuno-Agent-Id", "Authorization")

    answer = await exchange(kernel.url, request_bytes(call) if is_announced else _in_chunks(call))

    assert len(body) == BODY_BYTES_MAX + 1
    assert answer.status == 413
    found = json.loads(answer.body)
    assert found["code"] in CODES[413]
    assert found["message"]
    assert len(await kernel.steps(scene.execution_id)) == 1


async def test_k3_a_large_body_below_the_limit_is_taken_and_read_back(kernel: Kernel) -> None:
    scene = await Scene.of(kernel)
    result = "x" * 4_000_000

    accepted(await scene.lease.complete(scene.step_id, result))

    assert (await kernel.step(scene.execution_id, scene.step_id))["result"] == result


@pytest.mark.parametrize("place", PLACES)
async def test_k4_512_containers_are_taken_and_read_back_and_513_are_400(kernel: Kernel, place: str) -> None:
    scene = await Scene.of(kernel)
    room = 512 - PLACES[place][2]
    before = await kernel.trace(scene.execution_id)

    for containers in (room + 1, room + 2, 5_000, 200_000):
        details(await kernel.send(_call(scene, place, _nested(containers))), 400, "validation_error")
    assert await kernel.trace(scene.execution_id) == before
    response = await kernel.send(_call(scene, place, _nested(room)))

    assert response.status_code in {200, 201, 204}, response.text
    execution_id = response.json()["id"] if place == "input" else scene.execution_id
    target = f"/v0/executions/{execution_id}" + ("" if place in {"input", "output"} else "/steps")
    shown = _nested(room) if place != "error" else b'{"message":'
    assert shown in (await kernel.get(target)).content
    await kernel.cancel(execution_id)


@pytest.mark.parametrize("field", SETTLED)
async def test_k4_what_is_settled_counts_the_containers_around_it(kernel: Kernel, field: str) -> None:
    scene = await Scene.of(kernel)

    details(await scene.lease.request("/steps", SETTLED[field](_nested(510), scene.step_id)), 400)
    accepted(await scene.lease.request("/steps", SETTLED[field](_nested(509), scene.step_id)))


IMPOSSIBLE = {
    "NaN": b'{"a":[1,NaN]}',
    "Infinity": b'{"a":[1,Infinity]}',
    "-Infinity": b'{"a":[1,-Infinity]}',
    "1e400": b'{"a":[1,1e400]}',
    "-1e400": b'{"a":[1,-1e400]}',
    "a long integer": b'{"a":[1,1%s]}' % (b"0" * 309),
    "bytes that are no UTF-8": b'{"a":[1,"\xff\xfe"]}',
    "an encoded surrogate": b'{"a":[1,"\xed\xa0\x80"]}',
    "an overlong encoding": b'{"a":[1,"\xc0\xaf"]}',
}
# Where the text itself cannot be read there need not be a path.
WITHOUT_PATH = {"bytes that are no UTF-8", "an encoded surrogate", "an overlong encoding"}
SURROGATES = {
    "a lone high surrogate": rb'{"a":[1,"x\ud800y"]}',
    "a lone low surrogate": rb'{"a":[1,"\udc00"]}',
    "a pair the wrong way round": rb'{"a":[1,"\udc00\ud83d"]}',
}


@pytest.mark.parametrize("place", PLACES)
async def test_k5_what_json_cannot_carry_is_400_with_its_path_and_changes_nothing(kernel: Kernel, place: str) -> None:
    scene = await Scene.of(kernel)
    before = await kernel.trace(scene.execution_id)

    values = IMPOSSIBLE if place == "error" else IMPOSSIBLE | SURROGATES
    for label, value in values.items():
        found = details(await kernel.send(_call(scene, place, value)), 400, "validation_error")
        if label not in WITHOUT_PATH:
            assert found.get("path") == f"{place}.a[1]", label

    assert await kernel.trace(scene.execution_id) == before
    assert (await kernel.get("/v0/executions", agent_id=scene.agent.id, limit=2)).json().get("next_cursor") is None


async def test_k5_no_counter_moves_for_a_refused_submit(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()
    body = b'{"kind":"tool_call","target":"t","args":{"n":1},"note":%s}'

    for value in (b"NaN", rb'"\ud800"', b"1e999"):
        details(await lease.request("/steps", body % value), 400, "validation_error")
    step_id = accepted(await lease.request("/steps", body % b"1"))["step_id"]

    assert (await kernel.step(lease.execution_id, step_id))["occurrence"] == 0


@pytest.mark.parametrize(
    ("name", "around", "field"),
    [
        ("complete_execution", b'{"state":{"a":[1,%s]}}', "state.a[1]"),
        ("fail_execution", b'{"error":%s}', "error"),
        ("submit", b'{"kind":"tool_call","target":%s}', "target"),
        ("submit", b'{"kind":"tool_call","target":"t","anything":{"a":[1,%s]}}', "anything.a[1]"),
        ("complete_step", b'{"result":1,"anything":[%s]}', "anything[0]"),
        ("create", b'{"agent_id":"a","idempotency_key":%s}', "idempotency_key"),
        ("describe_agent", b'{"input_schema":{"a":[1,%s]}}', "input_schema.a[1]"),
        ("register_agent", b'{"id":%s,"webhook_url":"http://127.0.0.1/","secret":"0123456789abcdef"}', "id"),
        ("cancel", b'{"anything":%s}', "anything"),
    ],
)
async def test_k5_the_rest_of_every_body_is_looked_at_too(kernel: Kernel, name: str, around: bytes, field: str) -> None:
    scene = await Scene.of(kernel)

    values = (b"NaN", b"1e400") if name == "fail_execution" else (b"NaN", b"1e400", rb'"\udfff"')
    for value in values:
        assert path_of(await kernel.send(scene.call(BY_NAME[name], body=around % value))) == field


async def test_k5_a_lone_surrogate_in_an_error_becomes_the_replacement_character(kernel: Kernel) -> None:
    agent = await kernel.agent()
    failed, settled, ended = [await Scene.of(kernel, agent) for _ in range(3)]
    error = rb'{"message":"a\ud800b","\udc00":["\udfff\ud83d\ude00"]}'
    expected = {"message": "a\ufffdb", "\ufffd": ["\ufffd\U0001f600"]}

    accepted(await failed.lease.request(f"/steps/{failed.step_id}/fail", b'{"error":%s}' % error))
    accepted(await settled.lease.request("/steps", SETTLED["settle[0].error"](error, settled.step_id)))
    accepted(await ended.lease.request("/fail", rb'{"error":"lost \ud83d half"}'), 204)

    for scene in (failed, settled):
        assert (await kernel.step(scene.execution_id, scene.step_id))["error"] == expected
        step_failed = [event for event in await kernel.events(scene.execution_id) if event["type"] == "step.failed"]
        assert [event["payload"]["error"] for event in step_failed] == [expected]
    assert (await kernel.execution(ended.execution_id))["failure_reason"] == "lost \ufffd half"
    # The leniency is for the error alone, not for the rest of a body that has one.
    stray = rb'{"error":"e","note":"\ud800"}'
    assert path_of(await settled.lease.request("/fail", stray)) == "note"


@pytest.mark.parametrize("route", WITH_BODY, ids=lambda route: route.name)
async def test_k8_unknown_members_are_ignored(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)
    more = {"unknown": {"nested": [1]}, "id2": None, "": 0, "Agent_id": "other", "kind ": "x", "resources": []}

    response = await kernel.send(scene.call(route, body=scene.body(route) | more))

    assert response.status_code in {200, 201, 204}, response.text


NO_OBJECTS = {
    "a list": b"[]",
    "a list around the object": b"[{}]",
    "a string": b'"{}"',
    "a number": b"1",
    "null": b"null",
    "true": b"true",
    "white space": b" \n",
    "an open object": b"{",
    "a single quote": b"{'a':1}",
    "a trailing comma": b'{"a":1,}',
    "a comment": b'{/**/"a":1}',
    "a bare name": b"{a:1}",
    "a leading zero": b'{"a":01}',
    "a control character": b'{"a":"\n"}',
    "a NUL": b"\x00",
    "UTF-16": "{}".encode("utf-16"),
}


@pytest.mark.parametrize("route", WITH_BODY, ids=lambda route: route.name)
async def test_k8_a_body_that_is_not_one_json_object_is_400(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)
    good = scene.call(route).body
    before = await kernel.trace(scene.execution_id)

    bad = NO_OBJECTS | {
        "a BOM": b"\xef\xbb\xbf" + good,
        "two values": good + good,
        "bytes after the value": good + b"x",
        "a NUL after the value": good + b"\x00",
    }
    if route.needs_body:
        bad |= {"nothing": b""}
    for label, body in bad.items():
        response = await kernel.send(scene.call(route, body=body))
        assert response.status_code == 400, f"{label}: {response.status_code}"
        envelope(response, 400, "validation_error")

    assert await kernel.trace(scene.execution_id) == before


@pytest.mark.parametrize("route", WITH_BODY, ids=lambda route: route.name)
async def test_k8_only_a_content_encoding_other_than_identity_matters(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)
    call = scene.call(route)

    for encoding in ("gzip", "br", "deflate", "identity, gzip", "zstd"):
        details(await kernel.send(call.with_headers({"Content-Encoding": encoding})), 400, "validation_error")
    odd = {"Content-Encoding": "identity", "Content-Type": "text/plain; charset=utf-16"}
    response = await kernel.send(call.with_headers(odd))

    assert response.status_code in {200, 201, 204}, response.text


@pytest.mark.parametrize("name", [route.name for route in WITH_BODY if not route.needs_body])
async def test_k8_an_empty_body_is_an_empty_object_where_every_field_is_optional(kernel: Kernel, name: str) -> None:
    scene = await Scene.of(kernel)
    if name == "describe_agent":
        accepted(await scene.agent.request("PUT", f"/v0/agents/{scene.agent.id}/metadata", {"description": "d"}), 204)

    response = await kernel.send(scene.call(BY_NAME[name], body=b""))

    assert response.status_code in {200, 204}, response.text
    if name == "describe_agent":
        assert accepted(await kernel.get(f"/v0/agents/{scene.agent.id}"))["description"] is None


async def test_k3_a_body_of_32_mib_is_taken_and_read_back(kernel: Kernel) -> None:
    scene = await Scene.of(kernel)
    around = len(_call(scene, "input", b'""').body)
    text = "x" * (BODY_BYTES_MAX - around)

    created = accepted(await kernel.send(_call(scene, "input", b'"%s"' % text.encode())), 201)

    assert created["input"] == text
    assert accepted(await kernel.get(f"/v0/executions/{created['id']}"))["input"] == text


def _in_chunks(call: Call) -> bytes:
    """The bytes of a request whose length nothing announces."""
    head = request_bytes(call.with_headers({"Transfer-Encoding": "chunked"}).but(body=b""))
    chunk = 1024 * 1024
    parts = [call.body[start : start + chunk] for start in range(0, len(call.body), chunk)]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
