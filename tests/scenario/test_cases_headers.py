"""Case T3: odd bytes where a credential is expected are no credential: one 401, and never a fault of ours."""

from collections.abc import Iterator

import pytest

from tests.conformance.harness.calls import AGENT_ID, ATTEMPT, DISPATCH_ID, SIGNATURE, TIMESTAMP, Call
from tests.conformance.harness.kernel import Kernel
from tests.conformance.harness.routes import BY_NAME, Scene
from tests.conformance.harness.wire import WireAnswer, exchange, request_bytes

AUTHORIZATION = "Authorization"
TENANT, DELEGATION = "Rebuno-Tenant", "Rebuno-Delegation"
LARGE = b"x" * 100_000
NOT_HTTP = frozenset({400, 431})
"""What a server may answer, without a body of ours, to bytes that it cannot take for a request."""


def _odd(value: str) -> dict[str, bytes]:
    """Ways to spoil the right value of a header; NUL and 100 KB need not be HTTP for the server."""
    right = value.encode()
    middle = len(right) // 2
    odd = {
        "empty": b"",
        "a byte beyond ascii alone": b"\xe9",
        "a byte beyond ascii inside": right[:middle] + b"\xe9" + right[middle + 1 :],
        "a byte beyond ascii behind": right + b"\xe9",
        "utf-8": right + "\u00e9\U0001f600".encode(),
        "every high byte": bytes(range(0x80, 0x100)),
        "a prefix": right[:-1],
        "half of it": right[:middle],
        "one character changed": right[:-1] + (b"0" if right[-1:] != b"0" else b"1"),
        "in brackets": b"<" + right + b">",
        "a tab inside": right[:middle] + b"\t" + right[middle:],
        "doubled": right + right,
        "a space inside": right[:middle] + b" " + right[middle:],
        "nul alone": b"\x00",
        "nul inside": right[:middle] + b"\x00" + right[middle:],
        "nul behind": right + b"\x00",
        "100 KB": LARGE,
        "100 KB behind": right + LARGE,
    }
    # Spaces around a value are none of it.
    return {what: each for what, each in odd.items() if each.strip(b" \t") != right}


MAY_BE_NOT_HTTP = {name for name in _odd("x" * 8) if name.startswith(("nul", "100 KB"))}


def _lines(call: Call, name: str, *values: bytes) -> bytes:
    """The request with these values of a header in place of its own."""
    head, blank, body = request_bytes(call.without_headers(name)).partition(b"\r\n\r\n")
    return head + b"".join(b"\r\n%s: %s" % (name.encode(), value) for value in values) + blank + body


async def _one_401(kernel: Kernel) -> bytes:
    """The body of every 401."""
    answer = await exchange(kernel.url, request_bytes(Call("GET", "/v0/agents")))
    assert answer.status == 401
    return answer.body


async def _assert_refused(kernel: Kernel, call: Call, name: str) -> None:
    body = await _one_401(kernel)
    right = call.headers[name]
    for what, value in _odd(right).items():
        answer = await exchange(kernel.url, _lines(call, name, value))
        is_bare = what in MAY_BE_NOT_HTTP and answer.status in NOT_HTTP and answer.is_closed
        assert is_bare or (answer.status, answer.body) == (401, body), (what, answer)
    for values in ((right.encode(), b"other"), (b"other", right.encode()), (right.encode(), right.encode())):
        answer = await exchange(kernel.url, _lines(call, name, *values))
        assert (answer.status, answer.body) == (401, body), (values, answer)


async def test_t3_an_odd_authorization_is_one_401(kernel: Kernel) -> None:
    """Case T3. Keys are compared by their hashes, so time tells nothing of a prefix, and over HTTP it is all noise.

    That failures are limited in rate is not in the contract.
    """
    call = kernel.call("GET", "/v0/agents")
    await _assert_refused(kernel, call, AUTHORIZATION)

    key = kernel.api_key.encode()
    body = await _one_401(kernel)
    wrong = [
        b"Bearer" + key,
        b"Basic " + key,
        b"Bearer",
        b"Bearer ",
        key,
        b"Bearer " + key.upper(),
        b'Bearer "%s"' % key,
    ]
    for value in [*wrong, *(b"Bearer " + key[:length] for length in range(1, len(key)))]:
        answer = await exchange(kernel.url, _lines(call, AUTHORIZATION, value))
        assert (answer.status, answer.body) == (401, body), (value, answer)


async def test_t3_the_scheme_is_read_in_any_case_and_spaces_before_the_key_are_none_of_it(kernel: Kernel) -> None:
    """Case T3, where the contract accepts what the case lists among the odd ones."""
    call = kernel.call("GET", "/v0/agents")
    for scheme in ("bearer", "BEARER", "bEaReR"):
        for value in (f"{scheme} {kernel.api_key}", f"  {scheme} {kernel.api_key}", f"{scheme}   {kernel.api_key}"):
            answer = await exchange(kernel.url, _lines(call, AUTHORIZATION, value.encode()))
            assert answer.status == 200, (value, answer)


async def test_t3_spaces_behind_the_key_make_another_key(kernel: Kernel) -> None:
    """Case T3. HTTP would let a server take them off; refusing is the safe one of the two."""
    call = kernel.call("GET", "/v0/agents")
    body = await _one_401(kernel)
    for behind in (b" ", b"\t", b" \t "):
        answer = await exchange(kernel.url, _lines(call, AUTHORIZATION, b"Bearer " + kernel.api_key.encode() + behind))
        assert (answer.status, answer.body) == (401, body), (behind, answer)


@pytest.mark.parametrize("name", [AGENT_ID, SIGNATURE, TIMESTAMP])
@pytest.mark.parametrize("route", ["submit", "heartbeat", "get_execution"])
async def test_t3_an_odd_part_of_a_signature_is_the_same_401(kernel: Kernel, route: str, name: str) -> None:
    """Case T3."""
    scene = await Scene.of(kernel)
    before = await kernel.trace(scene.execution_id)

    await _assert_refused(kernel, scene.call(BY_NAME[route]), name)

    assert await kernel.trace(scene.execution_id) == before


@pytest.mark.parametrize("name", [DISPATCH_ID, ATTEMPT])
async def test_t3_an_odd_lease_under_a_signature_is_the_same_401(kernel: Kernel, name: str) -> None:
    """Case T3: what `v1=` covers was changed."""
    scene = await Scene.of(kernel)

    await _assert_refused(kernel, scene.call(BY_NAME["submit"]), name)

    assert len(await kernel.steps(scene.execution_id)) == 1


@pytest.mark.parametrize("name", [DISPATCH_ID, ATTEMPT])
async def test_t3_an_odd_lease_that_is_signed_is_malformed(kernel: Kernel, name: str) -> None:
    """Case T3: `sha256=` covers the body alone, so it is the lease that is wrong, and 400."""
    scene = await Scene.of(kernel)
    unsigned = scene.unsigned(BY_NAME["submit"])
    call = unsigned.signed(scene.agent.id, scene.agent.secret, scheme="sha256")
    # An attempt that is doubled or cut is a number still, and one that nobody has claimed.
    numbers = {"a prefix", "half of it", "one character changed", "doubled"}

    for what, value in _odd(unsigned.headers[name]).items():
        answer = await exchange(kernel.url, _lines(call, name, value))
        allowed = {400, 409} if name == ATTEMPT and what in numbers else {400}
        assert answer.status in allowed | (NOT_HTTP if what in MAY_BE_NOT_HTTP else set()), (what, answer)
    assert len(await kernel.steps(scene.execution_id)) == 1


@pytest.mark.parametrize("name", [TENANT, DELEGATION])
async def test_t3_an_odd_header_that_a_signature_does_not_need_takes_its_force(kernel: Kernel, name: str) -> None:
    """Case T3: naming no tenant that exists, or a delegation that cannot be verified, is 401 with the same body."""
    scene = await Scene.of(kernel)
    body = await _one_401(kernel)
    call = scene.call(BY_NAME["submit"])

    for what, value in _spoiled():
        answer = await exchange(kernel.url, _lines(call, name, value))
        is_bare = what in MAY_BE_NOT_HTTP and answer.status in NOT_HTTP and answer.is_closed
        assert is_bare or (answer.status, answer.body) == (401, body), (what, answer)
    assert len(await kernel.steps(scene.execution_id)) == 1


def _spoiled() -> Iterator[tuple[str, bytes]]:
    yield from _odd("default").items()


async def test_t3_the_server_goes_on_after_all_of_it(kernel: Kernel) -> None:
    """Case T3: what is not HTTP ends its own connection, and no other."""
    scene = await Scene.of(kernel)
    call = scene.call(BY_NAME["heartbeat"])

    answers: list[WireAnswer] = []
    for value in (b"\x00", LARGE, b"\xe9"):
        answers.append(await exchange(kernel.url, _lines(call, SIGNATURE, value)))
        answers.append(await exchange(kernel.url, request_bytes(scene.call(BY_NAME["heartbeat"]))))

    assert [answer.status for answer in answers[1::2]] == [204] * 3
    assert {answer.status for answer in answers[::2]} <= NOT_HTTP | {401}
