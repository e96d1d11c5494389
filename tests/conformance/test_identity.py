"""K41, K46: how a step gets its id."""

import pytest

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, exact_member
from tests.conformance.harness.calls import json_bytes
from tests.conformance.harness.identity import (
    VECTORS_EXECUTION_ID,
    Vector,
    args_hash_of,
    step_id_of,
    vectors,
)
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.side_by_side import side_by_side

VECTORS = vectors()

# One value, spelled as different as JSON allows without changing a number.
SPELLINGS = (
    '{"a":[1,"é/"],"b":{"x":1,"y":"\\n"}}',
    '{"b":{"y":"\\n","x":1},"a":[1,"é/"]}',
    ' {\t"b" : {"y" :"\\u000a", "x":1 } ,\r\n"a":[ 1 , "\\u00e9\\/" ]}  ',
    '{"\\u0061":[1,"\\u00E9/"],"\\u0062":{"x":1,"y":"\\u000A"}}',
)


def _body(kind: str, target: str, args: str | None) -> bytes:
    """The body of a submission with args exactly as given, without any where it is None."""
    rest = json_bytes({"kind": kind, "target": target})[1:]
    return b"{" + (b"" if args is None else b'"args":' + args.encode() + b",") + rest


async def _submitted(lease: Lease, args: str | None, *, kind: str = "tool_call", target: str = "t") -> str:
    """Submit a step that must proceed, its args as this text, and return its id."""
    decision = accepted(await lease.request("/steps", _body(kind, target, args)))
    assert decision["decision"] == "proceed", decision
    return decision["step_id"]


def test_k41_the_recipe_gives_the_vectors_of_the_contract() -> None:
    assert len(VECTORS) == 13
    for vector in VECTORS:
        assert args_hash_of(vector.canonical) == vector.args_hash
        found = step_id_of(VECTORS_EXECUTION_ID, vector.kind, vector.target, vector.args_hash, vector.occurrence)
        assert found == vector.step_id


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{each.kind}-{number}" for number, each in enumerate(VECTORS)])
async def test_k41_ids_and_hashes_are_those_of_the_vectors(kernel: Kernel, vector: Vector) -> None:
    lease = await (await kernel.agent()).start()

    ids = [
        await _submitted(lease, vector.args, kind=vector.kind, target=vector.target)
        for _ in range(vector.occurrence + 1)
    ]

    expected = [
        step_id_of(lease.execution_id, vector.kind, vector.target, vector.args_hash, number)
        for number in range(vector.occurrence + 1)
    ]
    assert ids == expected
    step = await kernel.step(lease.execution_id, ids[-1])
    assert step["args_hash"] == vector.args_hash
    assert (step["kind"], step["target"], step["occurrence"]) == (vector.kind, vector.target, vector.occurrence)


async def test_k46_the_spelling_of_args_does_not_change_the_hash(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()

    ids = [await _submitted(lease, spelling) for spelling in SPELLINGS]

    hashed = args_hash_of('{"a":[1,"é/"],"b":{"x":1,"y":"\\n"}}')
    # Each is the next occurrence of one call.
    assert ids == [step_id_of(lease.execution_id, "tool_call", "t", hashed, n) for n in range(len(SPELLINGS))]


@side_by_side
async def test_k46_the_spelling_of_args_does_not_change_the_id(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()
    step_id = await _submitted(lease, SPELLINGS[0])
    accepted(await lease.complete(step_id, "found"))

    for spelling in SPELLINGS[1:]:
        lease = await lease.expired()
        decision = accepted(await lease.request("/steps", _body("tool_call", "t", spelling)))
        assert decision == {"decision": "replay", "step_id": step_id, "result": "found", "resources": []}

    assert [step["step_id"] for step in await kernel.steps(lease.execution_id)] == [step_id]


@pytest.mark.parametrize("form", ["%s", '{"n":%s}', "[[%s]]"])
async def test_k46_the_spelling_of_a_number_does_change_the_id(kernel: Kernel, form: str) -> None:
    lease = await (await kernel.agent()).start()
    literals = ("1", "1.0", "1e0", "1E0", "10e-1", "0", "-0", "0.0")

    ids = [await _submitted(lease, form % literal) for literal in literals]

    assert ids == [
        step_id_of(lease.execution_id, "tool_call", "t", args_hash_of(form % literal), 0) for literal in literals
    ]
    assert len(set(ids)) == len(literals)
    answer = await kernel.get(f"/v0/executions/{lease.execution_id}/steps")
    for number, literal in enumerate(literals):
        expected = exact_member(f'[{{"args":{form % literal}}}]', 0, "args")
        assert exact_member(answer.content, number, "args") == expected


async def test_k46_absent_args_are_null_and_not_an_empty_object(kernel: Kernel) -> None:
    lease = await (await kernel.agent()).start()

    ids = [await _submitted(lease, args) for args in (None, "null", "{}", "[]", '""')]

    hashes = [args_hash_of(canonical) for canonical in ("null", "null", "{}", "[]", '""')]
    occurrences = (0, 1, 0, 0, 0)
    assert ids == [
        step_id_of(lease.execution_id, "tool_call", "t", hashed, occurrence)
        for hashed, occurrence in zip(hashes, occurrences, strict=True)
    ]
    steps = await kernel.steps(lease.execution_id)
    assert [step["args"] for step in steps] == [None, None, {}, [], ""]
