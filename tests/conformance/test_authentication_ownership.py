"""K17 to K20: which credential opens which route, and whose executions and steps it reaches."""

import pytest

from tests.conformance.harness.answers import accepted, envelope
from tests.conformance.harness.calls import SIGNATURE, Call
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.routes import AGENT_ROUTES, BY_NAME, ROUTES, UNKNOWN_ID, Route, Scene

EITHER_ROUTES = tuple(route for route in ROUTES if route.access == "either")
BEARER_ROUTES = tuple(route for route in ROUTES if route.access == "bearer")


def _badly_signed(call: Call) -> Call:
    return call.with_headers({SIGNATURE: "v1=" + "0" * 64})


@pytest.mark.parametrize("route", EITHER_ROUTES, ids=lambda route: route.name)
async def test_k17_an_either_route_takes_one_credential_and_never_falls_back(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)
    unsigned = scene.unsigned(route)
    signed = scene.call(route)

    by_key = await kernel.send(unsigned.with_bearer(kernel.api_key))
    by_signature = await kernel.send(signed)

    assert accepted(by_key) == accepted(by_signature)
    envelope(await kernel.send(unsigned), 401, "unauthorized")
    envelope(await kernel.send(unsigned.with_bearer("wrong")), 401, "unauthorized")
    envelope(await kernel.send(_badly_signed(signed)), 401, "unauthorized")
    # Either header selects the signature, whatever else is there.
    for broken in (
        _badly_signed(signed),
        signed.without_headers(SIGNATURE),
        signed.without_headers("Rebuno-Agent-Id"),
        unsigned.with_headers({"Rebuno-Agent-Id": ""}),
        unsigned.with_headers({SIGNATURE: ""}),
    ):
        envelope(await kernel.send(broken.with_bearer(kernel.api_key)), 401, "unauthorized")
    accepted(await kernel.send(signed.with_bearer("wrong")))


async def test_k17_a_signed_read_reaches_only_the_signers_executions(kernel: Kernel) -> None:
    scene = await Scene.of(kernel)
    stranger = await kernel.agent()

    for route in EITHER_ROUTES:
        response = await kernel.send(scene.call(route, agent=stranger).with_bearer(kernel.api_key))
        assert envelope(response, 404, "not_found")["message"] == "execution not found"


@pytest.mark.parametrize("route", AGENT_ROUTES, ids=lambda route: route.name)
async def test_k18_a_bearer_on_an_agent_route_is_401(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)
    before = await kernel.trace(scene.execution_id)

    by_key = await kernel.send(scene.unsigned(route).with_bearer(kernel.api_key))
    by_both = await kernel.send(_badly_signed(scene.call(route)).with_bearer(kernel.api_key))

    for response in (by_key, by_both):
        envelope(response, 401, "unauthorized")
    assert await kernel.trace(scene.execution_id) == before
    assert (await kernel.send(scene.call(route).with_bearer("wrong"))).status_code in {200, 204}


@pytest.mark.parametrize("route", BEARER_ROUTES, ids=lambda route: route.name)
async def test_k18_a_signature_on_a_bearer_route_is_401(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)
    unsigned = scene.unsigned(route)
    before = await kernel.trace(scene.execution_id)

    for call in (
        unsigned,
        unsigned.signed(scene.agent.id, scene.agent.secret),
        unsigned.with_headers({"Authorization": f"Signature {kernel.api_key}"}),
        unsigned.with_headers({"Authorization": kernel.api_key}),
        unsigned.with_headers({"Authorization": "Bearer"}),
        unsigned.with_bearer(kernel.api_key[:-1]),
        unsigned.with_bearer(kernel.api_key + "x"),
        unsigned.with_bearer(kernel.api_key.upper()),
        unsigned.with_bearer(f"{kernel.api_key}, Bearer {kernel.api_key}"),
    ):
        envelope(await kernel.send(call), 401, "unauthorized")

    assert await kernel.trace(scene.execution_id) == before
    assert len(accepted(await kernel.get("/v0/executions", agent_id=scene.agent.id))["executions"]) == 1


async def test_k18_agent_headers_beside_a_bearer_change_nothing(kernel: Kernel) -> None:
    scene = await Scene.of(kernel)

    for route in (BY_NAME["list_executions"], BY_NAME["list_events"], BY_NAME["get_agent"]):
        call = _badly_signed(scene.unsigned(route).signed("nobody", "x")).with_headers(
            {"authorization": f"bEaReR {kernel.api_key}"}
        )
        accepted(await kernel.send(call))


@pytest.mark.parametrize("route", [r for r in ROUTES if r.is_agents and r.has_execution], ids=lambda route: route.name)
async def test_k19_another_agents_execution_is_an_unknown_one(kernel: Kernel, route: Route) -> None:
    scene = await Scene.of(kernel)
    other = await Scene.of(kernel)
    before = await kernel.trace(scene.execution_id)

    unknown = await kernel.send(scene.call(route, execution_id=UNKNOWN_ID))
    foreign = await kernel.send(scene.call(route, agent=other.agent))
    # With all that is the other's own, its lease and its step, the execution alone is foreign.
    theirs = await kernel.send(other.call(route, execution_id=scene.execution_id))

    envelope(unknown, 404, "not_found")
    for response in (foreign, theirs):
        assert (response.status_code, response.content) == (unknown.status_code, unknown.content)
    assert await kernel.trace(scene.execution_id) == before


async def test_k19_an_ended_execution_of_another_agent_is_an_unknown_one_too(kernel: Kernel) -> None:
    scene = await Scene.of(kernel)
    stranger = await kernel.agent()
    accepted(await scene.lease.complete_execution(), 204)

    for route in ROUTES:
        if route.is_agents and route.has_execution:
            response = await kernel.send(scene.call(route, agent=stranger))
            assert envelope(response, 404, "not_found")["message"] == "execution not found"


@pytest.mark.parametrize("name", ["get_step", "complete_step", "fail_step"])
async def test_k20_a_step_under_the_path_of_another_execution_is_404(kernel: Kernel, name: str) -> None:
    scene = await Scene.of(kernel)
    other = await Scene.of(kernel, scene.agent)
    before = await kernel.trace(scene.execution_id), await kernel.trace(other.execution_id)

    response = await kernel.send(scene.call(BY_NAME[name], step_id=other.step_id))

    assert envelope(response, 404, "not_found")["message"] == "step not found"
    if name == "get_step":
        response = await kernel.get(scene.target(BY_NAME[name], step_id=other.step_id))
        assert envelope(response, 404, "not_found")["message"] == "step not found"
    assert (await kernel.trace(scene.execution_id), await kernel.trace(other.execution_id)) == before


@pytest.mark.parametrize("name", ["submit", "complete_execution", "fail_execution"])
async def test_k20_a_step_of_another_execution_cannot_be_settled(kernel: Kernel, name: str) -> None:
    scene = await Scene.of(kernel)
    other = await Scene.of(kernel, scene.agent)
    before = await kernel.trace(scene.execution_id), await kernel.trace(other.execution_id)
    route = BY_NAME[name]
    settle = [{"step_id": scene.step_id, "result": 1}, {"step_id": other.step_id, "result": 2}]

    response = await kernel.send(scene.call(route, body=scene.body(route) | {"settle": settle}))

    envelope(response, 404, "not_found")
    assert (await kernel.trace(scene.execution_id), await kernel.trace(other.execution_id)) == before
