"""Case C7: bodies made to break a parser cost the one who sends them, and nobody beside them.

Depth at the limit itself is conformance K4, sizes above the limit K3; here are the ones in between that hurt.
"""

import asyncio
import itertools
import time

import httpx
import pytest

from tests.conformance.harness.agent import Lease
from tests.conformance.harness.answers import accepted, envelope
from tests.conformance.harness.calls import Call
from tests.conformance.harness.kernel import Kernel, connected
from tests.support.stack import Stack

MIB = 1024 * 1024
VALUE_BYTES = 4 * MIB - 1024
"""A size at which what is not read in linear time takes minutes."""
KEYS = 200_000
# What is read in linear time takes a fraction of a second. In between is room for a machine that other tests keep busy.
ANSWER_SECONDS_MAX = 5.0
NEIGHBOUR_SECONDS_MAX = 2.0


def _filled(unit: bytes, around: bytes = b"%s") -> bytes:
    return around % (unit * ((VALUE_BYTES - len(around)) // len(unit)))


REFUSED = {
    "open lists": _filled(b"["),
    "open objects": _filled(b'{"a":'),
    "mixed and open": _filled(b'[{"":'),
    "100,000 lists": b"[" * 100_000 + b"]" * 100_000,
    "1,000 objects": b'{"a":' * 1000 + b"1" + b"}" * 1000,
    "deep at the end": b"[" + b"0," * 1_000_000 + b"[" * 1000,
    "an endless integer": _filled(b"9"),
    "an endless negative integer": _filled(b"9", b"-%s"),
    "an endless exponent": _filled(b"9", b"1e%s"),
    "an open string": _filled(b"a", b'"%s'),
    "halves of pairs": _filled(rb"\ud800", b'"%s"'),
    "no numbers": _filled(b"NaN,", b"[%s0]"),
    "no utf-8": _filled(b"\xff", b'"%s"'),
    "closing brackets": _filled(b"]"),
}
CARRIED = {
    "200,000 members": b"{" + b",".join(b'"%d":0' % number for number in range(KEYS)) + b"}",
    "200,000 duplicates": b"{" + b",".join([b'"a":0'] * KEYS) + b"}",
    "members in reverse": b"{" + b",".join(b'"%06d":0' % (KEYS - number) for number in range(KEYS)) + b"}",
    "a flat string": _filled(b"a", b'"%s"'),
    "a string that grows in canonical form": _filled(b"<", b'"%s"'),
    "escapes": _filled(rb"\u0000", b'"%s"'),
    "an endless fraction": _filled(b"1", b"0.%s"),
    "an endless small number": _filled(b"9", b"1e-%s"),
    "a list of lists": _filled(b"[],", b"[%s[]]"),
    "512 deep": b"[" * 510 + b"]" * 510,
}


def _places(step_id: str, value: bytes) -> list[tuple[str, bytes]]:
    settle = b'"settle":[{"step_id":"%s","result":%s}]' % (step_id.encode(), value)
    return [
        ("/steps", b'{"kind":"tool_call","target":"t","args":%s}' % value),
        (f"/steps/{step_id}/complete", b'{"result":%s}' % value),
        ("/steps", b'{"kind":"tool_call","target":"t",%s}' % settle),
        ("/complete", b'{"unknown":0,"output":%s}' % value),
    ]


class Neighbour:
    """An agent at work on its own execution while somebody else floods the door, and the longest it had to wait."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._is_over = False
        self.slowest_seconds = 0.0
        self.count = 0

    def leave(self) -> None:
        self._is_over = True

    async def work(self) -> None:
        while not self._is_over:
            started = time.monotonic()
            accepted(await self._lease.heartbeat(), 204)
            await self._lease.done("own", {"n": self.count}, result=self.count)
            self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - started)
            self.count += 1


@pytest.mark.alone
@pytest.mark.parametrize("name", REFUSED)
async def test_c7_a_hostile_body_is_refused_at_once_and_its_neighbour_does_not_notice(
    stack: Stack, kernel: Kernel, name: str
) -> None:
    """Case C7. Policy tests are not built yet, and the door has no thread of its own whose stack could be small."""
    pid = stack.process("server").pid
    lease, neighbour = await _lease_and_neighbour(kernel)
    step_id = await lease.proceed("open")
    before = await kernel.steps(lease.execution_id)
    calls = [lease.call(target, body) for target, body in _places(step_id, REFUSED[name])]

    async with asyncio.TaskGroup() as group:
        group.create_task(neighbour.work())
        try:
            answers = [await _timed(kernel, call) for call in calls]
        finally:
            neighbour.leave()

    for answer in answers:
        assert envelope(answer)["code"] in {"validation_error", "payload_too_large"}
    _assert_unnoticed(stack, pid, neighbour)
    assert await kernel.steps(lease.execution_id) == before
    assert accepted(await lease.complete(step_id, 1)) == {"decision": "recorded"}


@pytest.mark.alone
@pytest.mark.parametrize("name", CARRIED)
async def test_c7_a_heavy_body_is_carried_or_refused_in_time_and_its_neighbour_does_not_notice(
    stack: Stack, kernel: Kernel, name: str
) -> None:
    """Case C7: what is large and right is taken, or refused by its size, and is no burden to others."""
    pid = stack.process("server").pid
    lease, neighbour = await _lease_and_neighbour(kernel)
    step_id = await lease.proceed("open")
    calls = [lease.call(target, body) for target, body in itertools.islice(_places(step_id, CARRIED[name]), 2)]

    async with asyncio.TaskGroup() as group:
        group.create_task(neighbour.work())
        try:
            answers = [await _timed(kernel, call) for call in calls]
        finally:
            neighbour.leave()

    assert {answer.status_code for answer in answers} <= {200, 413}
    _assert_unnoticed(stack, pid, neighbour)


@pytest.mark.alone
async def test_c7_unsigned_and_signed_floods_at_once_leave_the_process_as_it_is(stack: Stack, kernel: Kernel) -> None:
    """Case C7: several at the same moment, half of them from nobody in particular."""
    pid = stack.process("server").pid
    lease, neighbour = await _lease_and_neighbour(kernel)
    bodies = [REFUSED[name] for name in ("open lists", "an endless integer", "halves of pairs", "deep at the end")]
    calls = [lease.call("/steps", b'{"kind":"local","target":"t","args":%s}' % body) for body in bodies]
    forged = [call.with_headers({"Rebuno-Signature": "v1=" + "0" * 64}) for call in calls]

    async with asyncio.TaskGroup() as group:
        group.create_task(neighbour.work())
        try:
            # Each on a connection of its own, so that they are read side by side.
            answers = await asyncio.gather(*(_alone(stack, call) for call in [*calls, *forged]))
        finally:
            neighbour.leave()

    assert [answer.status_code for answer in answers] == [400] * len(calls) + [401] * len(forged)
    _assert_unnoticed(stack, pid, neighbour)
    assert await kernel.steps(lease.execution_id) == []


async def _lease_and_neighbour(kernel: Kernel) -> tuple[Lease, Neighbour]:
    ours, theirs = await kernel.agent(), await kernel.agent()
    return await ours.start(), Neighbour(await theirs.start())


async def _timed(kernel: Kernel, call: Call) -> httpx.Response:
    started = time.monotonic()
    response = await kernel.send(call)
    assert time.monotonic() - started < ANSWER_SECONDS_MAX, response.text[:500]
    return response


async def _alone(stack: Stack, call: Call) -> httpx.Response:
    async with connected(stack.url, stack.api_key) as own:
        return await own.send(call)


def _assert_unnoticed(stack: Stack, pid: int, neighbour: Neighbour) -> None:
    assert stack.process("server").is_running
    assert stack.process("server").pid == pid
    assert neighbour.count > 0
    assert neighbour.slowest_seconds < NEIGHBOUR_SECONDS_MAX
